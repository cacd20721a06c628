import random

import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class WordInferenceDataset(Samples):
    """Documents, with what may depend on what."""

    def __init__(self, documents=500, max_seq_length=96, relations=3):
        self.max_seq_length, self.relations = max_seq_length, relations
        draw = random.Random(0)
        self.documents = [
            [draw.randint(5, 16) for _ in range(draw.randint(3, 6))] for _ in range(documents)
        ]

    def encode(self, sentences):
        length = self.max_seq_length
        no_row = [False] * length
        dependency_mask = [no_row] * length
        cohesion_rows = [no_row] * length
        start = 0
        for words in sentences:
            row = [False] * start + [True] * words + [False] * (length - start - words)
            seen = [True] * (start + words) + [False] * (length - start - words)
            for number in range(start, start + words):
                dependency_mask[number] = row
                cohesion_rows[number] = seen
            start += words
        input_ids = [7] * start + [0] * (length - start)
        return {
            "input_ids": input_ids,
            "attention_mask": [True] * start + [False] * (length - start),
            "dependency_mask": dependency_mask,
            "cohesion_mask": [cohesion_rows] * self.relations,
        }

    def __getitem__(self, index):
        return self.encode(self.documents[index % len(self.documents)])


def dataclass_data_collator(features):
    batch = {}
    for field in features[0]:
        batch[field] = torch.as_tensor([feature[field] for feature in features])
    longest = int(batch["attention_mask"].sum(dim=1).max())
    for field, value in batch.items():
        value = value[..., :longest]  # noqa: PLW2901 - as it was written
        batch[field] = value[..., :longest, :] if field.endswith("y_mask") else value
    return batch


@question(
    source="kwja #254",
    report="making tensors of nested lists of masks dominates collation; tensors from then",
    step_s=0.004,
    causes=("collate",),
    place=r"dataclass_data_collator|[Cc]ollat|as_tensor",
    lever=r"tensors?\b|NumPy|arrays?\b|at once|vector|beforehand|\bonce\b",
)
def masks_of_documents(_folder):
    """Hand masks over as lists of lists of lists."""
    return DataLoader(
        WordInferenceDataset(), batch_size=8, num_workers=2, collate_fn=dataclass_data_collator
    )
