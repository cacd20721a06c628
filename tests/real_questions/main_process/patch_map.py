import random
from itertools import islice

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.parts import Samples
from real_questions.question import question


class SubjectsDataset(Samples):
    """Volumes, with how likely a patch is to be taken at each of their places."""

    def __init__(self, count=12, size=44):
        self.volumes = torch.rand(count, size, size, size)
        self.sampling = torch.rand(count, size, size, size) ** 4

    def __getitem__(self, index):
        number = index % len(self.volumes)
        return {"image": self.volumes[number], "sampling_map": self.sampling[number]}


class WeightedSampler:
    """Takes patches of volumes where they are likely."""

    def __init__(self, patch_size=12):
        self.patch_size = patch_size

    def get_random_index(self, probability_map):
        flat_map = probability_map.ravel()
        flat_map = flat_map / flat_map.sum()
        sorted_indices = np.argsort(flat_map)
        cdf = np.cumsum(flat_map[sorted_indices])
        place = sorted_indices[np.argmax(cdf > random.random() * cdf[-1])]
        return np.unravel_index(place, probability_map.shape)

    def __call__(self, subject):
        image, sampling_map = subject["image"], subject["sampling_map"].numpy()
        last = image.shape[0] - self.patch_size
        while True:
            starts = self.get_random_index(sampling_map)
            where = [slice(min(int(s), last), min(int(s), last) + self.patch_size) for s in starts]
            yield image[tuple(where)].clone()


class Queue(Dataset):
    """Patches of some volumes, which workers of its own read."""

    def __init__(self, subjects, samples_per_volume=8):
        self.subjects, self.samples_per_volume = subjects, samples_per_volume
        self.sampler = WeightedSampler()
        self.patches: list[torch.Tensor] = []
        self.subjects_iterable = None

    def __len__(self):
        return len(self.subjects) * self.samples_per_volume

    def __getitem__(self, _index):
        if not self.patches:
            self._fill()
        return self.patches.pop()

    def _fill(self):
        if self.subjects_iterable is None:
            self.subjects_iterable = iter(
                DataLoader(self.subjects, batch_size=None, shuffle=True, num_workers=1)
            )
        for subject in islice(self.subjects_iterable, 4):
            self.patches.extend(islice(self.sampler(subject), self.samples_per_volume))
        random.shuffle(self.patches)


@question(
    source="torchio #308, #312",
    report="all weights are sorted for each patch; cumsum and searchsorted",
    step_s=0.005,
    causes=("main-process", "one-transform"),
    place=r"WeightedSampler|get_random_index|Queue|argsort",
    lever=r"searchsorted|\bsort|\bonce\b|beforehand|in advance|[Kk]eep|\bcache|smaller|fewer|less",
)
def patches_of_queue(_folder):
    """Sort all places of a volume for each patch of it, in the main process."""
    return DataLoader(Queue(SubjectsDataset()), batch_size=4)
