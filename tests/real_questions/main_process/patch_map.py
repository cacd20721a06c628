from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
)

from real_questions.question import Question

if TYPE_CHECKING:
    from pathlib import Path


class SubjectsDataset(Dataset):
    """Volumes, with how likely a patch is to be taken at each of their places."""

    def __init__(self, count: int = 12, size: int = 44) -> None:
        self.volumes = torch.rand(count, size, size, size)
        self.sampling = torch.rand(count, size, size, size) ** 4

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index):
        number = index % len(self.volumes)
        return {"image": self.volumes[number], "sampling_map": self.sampling[number]}


class WeightedSampler:
    """Takes patches of volumes where they are likely."""

    def __init__(self, patch_size: int = 12) -> None:
        self.patch_size = patch_size

    def get_random_index(self, probability_map: np.ndarray) -> tuple[int, ...]:
        """Draw a place."""
        flat_map = probability_map.ravel()
        flat_map = flat_map / flat_map.sum()
        sorted_indices = np.argsort(flat_map)
        cdf = np.cumsum(flat_map[sorted_indices])
        place = sorted_indices[np.argmax(cdf > random.random() * cdf[-1])]
        return np.unravel_index(place, probability_map.shape)

    def __call__(self, subject: dict):
        """Take patches without end."""
        image, sampling_map = subject["image"], subject["sampling_map"].numpy()
        last = image.shape[0] - self.patch_size
        while True:
            starts = self.get_random_index(sampling_map)
            where = [slice(min(int(s), last), min(int(s), last) + self.patch_size) for s in starts]
            yield image[tuple(where)].clone()


class Queue(Dataset):
    """Patches of some volumes, which workers of its own read."""

    def __init__(self, subjects: SubjectsDataset, samples_per_volume: int = 8) -> None:
        self.subjects, self.samples_per_volume = subjects, samples_per_volume
        self.sampler = WeightedSampler()
        self.patches: list[torch.Tensor] = []
        self.subjects_iterable = None

    def __len__(self) -> int:
        return len(self.subjects) * self.samples_per_volume

    def __getitem__(self, _index):
        if not self.patches:
            self._fill()
        return self.patches.pop()

    def _fill(self) -> None:
        if self.subjects_iterable is None:
            self.subjects_iterable = iter(
                DataLoader(self.subjects, batch_size=None, shuffle=True, num_workers=1)
            )
        for subject in islice(self.subjects_iterable, 4):
            self.patches.extend(islice(self.sampler(subject), self.samples_per_volume))
        random.shuffle(self.patches)


def patches_of_queue(_folder: Path) -> DataLoader:
    """Sort all places of a volume for each patch of it, in the main process."""
    return DataLoader(Queue(SubjectsDataset()), batch_size=4)


QUESTION = Question(
    name="patch-map",
    source="torchio #308, #312",
    report="all weights are sorted for each patch; cumsum and searchsorted",
    make=patches_of_queue,
    step_s=0.005,
    causes=("main-process", "one-transform"),
    place=r"WeightedSampler|get_random_index|Queue|argsort",
    lever=r"searchsorted|\bsort|\bonce\b|beforehand|in advance|[Kk]eep|\bcache|smaller|fewer|less",
)
