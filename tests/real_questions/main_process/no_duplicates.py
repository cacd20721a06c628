import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from real_questions.question import question


class NoDuplicatesBatchSampler(Sampler):
    """Makes batches in which no text occurs twice."""

    def __init__(self, dataset, batch_size):
        self.dataset, self.batch_size = dataset, batch_size

    def __len__(self):
        return len(self.dataset) // self.batch_size

    def __iter__(self):
        remaining_indices = dict.fromkeys(torch.randperm(len(self.dataset)).tolist())
        while remaining_indices:
            batch_values: set[str] = set()
            batch_indices = []
            for index in remaining_indices:
                sample_values = {str(value) for value in self.dataset[index].values()}
                if sample_values & batch_values:
                    continue
                batch_indices.append(index)
                if len(batch_indices) == self.batch_size:
                    break
                batch_values.update(sample_values)
            yield batch_indices
            for index in batch_indices:
                del remaining_indices[index]


def sentence_collator(rows):
    texts = [row[key] for row in rows for key in ("query", "positive", "negative")]
    return torch.from_numpy(np.array(texts, "S64").view(np.uint8).reshape(len(texts), 64))


@question(
    source="sentence-transformers #3611",
    report="the sampler compares texts row by row; hashed before",
    step_s=0.005,
    causes=("main-process",),
    place=r"[Ss]ampler",
    lever=r"beforehand|in advance|\bonce\b|precomput|hash|vector|NumPy|arrays?\b",
)
def triplets_without_duplicates(_folder):
    """Read rows in the batch sampler, which compares their texts."""
    import datasets

    draw = random.Random(0)
    queries = [f"what is meant by the {number}. question" for number in range(500)]
    weights = [1 / (number + 10) for number in range(len(queries))]
    passages = [f"this is the {number}. passage of some book" for number in range(3000)]
    count = 40_000
    dataset = datasets.Dataset.from_dict(
        {
            "query": draw.choices(queries, weights, k=count),
            "positive": draw.choices(passages[:1500], k=count),
            "negative": draw.choices(passages[1500:], k=count),
        }
    )
    return DataLoader(
        dataset,
        batch_sampler=NoDuplicatesBatchSampler(dataset, 128),
        num_workers=2,
        collate_fn=sentence_collator,
    )
