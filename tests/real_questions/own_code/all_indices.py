import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class LuxonisLoader(Dataset):
    """Images, of which four are put together as a mosaic."""

    def __init__(self, count=150_000, batched=4):
        self.count, self.batched = count, batched
        self.images = np.random.default_rng(0).integers(0, 255, (200, 64, 64, 3), dtype=np.uint8)

    def __len__(self):
        return self.count

    def _load(self, index):
        return self.images[index % len(self.images)]

    def _pick_indices(self, index):
        possible = list(range(len(self)))
        possible.remove(index)
        return [index, *random.sample(possible, self.batched - 1)]

    def __getitem__(self, index):
        images = [self._load(number) for number in self._pick_indices(index)]
        mosaic = np.vstack((np.hstack(images[:2]), np.hstack(images[2:])))
        return torch.from_numpy(mosaic).permute(2, 0, 1)


@question(
    source="luxonis-ml #183",
    report="a list of all possible indices on every getitem; random values instead",
    step_s=0.008,
    causes=("one-transform",),
    place=r"_pick_indices|LuxonisLoader|__getitem__",
    lever=r"rand(range|int|om)|draw|\bonce\b|__init__|[Kk]eep|\bcache|beforehand|in advance|NumPy",
)
def mosaics_of_images(_folder):
    """List all images there are, to draw three."""
    return DataLoader(LuxonisLoader(), batch_size=16, shuffle=True, num_workers=2)
