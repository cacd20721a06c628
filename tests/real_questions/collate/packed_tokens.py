import random

import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class SFTDataset(Samples):
    """Conversations in tokens, with the part that is learnt from."""

    def __init__(self, count=500):
        draw = random.Random(0)
        self.examples = []
        for _ in range(count):
            tokens, answer = draw.randint(600, 1800), draw.randint(100, 500)
            input_ids = [draw.randrange(32_000) for _ in range(tokens)]
            mask = [1] * answer
            self.examples.append({"input_ids": input_ids, "num_actions": answer, "loss_mask": mask})

    def __getitem__(self, index):
        return self.examples[index % len(self.examples)]


class PackedDataCollator:
    """Packs several examples into each row of a batch."""

    def __init__(self, max_tokens=4096):
        self.max_tokens = max_tokens

    def _pack(self, lengths):
        bins: list[list[int]] = []
        free: list[int] = []
        for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
            fits = (row for row, room in enumerate(free) if room >= lengths[number])
            row = next(fits, None)
            if row is None:
                row = len(bins)
                bins.append([])
                free.append(self.max_tokens)
            bins[row].append(number)
            free[row] -= lengths[number]
        return bins

    def __call__(self, examples):
        lengths = [len(example["input_ids"]) for example in examples]
        bins = self._pack(lengths)
        sequences = torch.zeros(len(bins), self.max_tokens, dtype=torch.long)
        attention_mask = torch.zeros_like(sequences)
        loss_mask = torch.zeros(len(bins), self.max_tokens)
        for row_idx, numbers in enumerate(bins):
            start = 0
            for number in numbers:
                example, length = examples[number], lengths[number]
                full_mask = [0] * (length - example["num_actions"]) + example["loss_mask"]
                end = start + length
                sequences[row_idx, start:end] = torch.tensor(example["input_ids"])
                attention_mask[row_idx, start:end] = 1
                for p_local in range(length - 1):
                    row_p = start + p_local
                    loss_mask[row_idx, row_p] = float(full_mask[p_local + 1])
                start = end
        return {
            "sequences": sequences,
            "attention_mask": attention_mask,
            "loss_mask": loss_mask,
        }


@question(
    source="SkyRL #1808, #1809",
    report="masks are written token by token where batches are packed; vectorized",
    step_s=0.05,
    causes=("collate", "main-process"),
    place=r"PackedDataCollator|[Cc]ollat|main process|own process|num_workers|no workers",
    lever=r"vector|NumPy|at once|slice|whole|loop|tensor|num_workers|workers|background|thread",
)
def conversations_packed(_folder):
    """Write masks token by token, in the process that trains."""
    return DataLoader(SFTDataset(), batch_size=16, shuffle=True, collate_fn=PackedDataCollator())
