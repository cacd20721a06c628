import gc

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class Impressions(Dataset):
    """Features of the impressions of a shop, very many."""

    def __init__(self, impressions=8_000_000, kept=100_000):
        self.impressions = impressions
        self.features = np.random.default_rng(0).random((kept, 32), np.float32)

    def __len__(self):
        return self.impressions

    def __getitem__(self, index):
        return torch.from_numpy(self.features[index % len(self.features)])


class TrainLoader(DataLoader):
    """Collects garbage at fixed batches, so that all ranks pause at the same time."""

    collect_every = 2

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number % self.collect_every == 0:
                gc.collect()
            yield batch


@question(
    source="pytorch #103339",
    report="RandomSampler holds a list of all indices, and each gc.collect takes seconds to walk "
    "through it; without the list it takes no longer than for a small dataset",
    step_s=0.02,
    causes=("garbage", "main-process"),
    place=r"\bgc\b|[Gg]arbage|collect\b|collector|collection|[Ss]ampler|TrainLoader|indices",
    lever=r"freeze|less often|rare|seldom|fewer|collect_every|disable|\barray|tensor|[Nn]um[Pp]y"
    r"|without (a|the) list|replacement",
)
def collector_and_indices(_folder):
    """Collect garbage while the sampler holds millions of objects."""
    return TrainLoader(Impressions(), batch_size=128, shuffle=True, num_workers=2)
