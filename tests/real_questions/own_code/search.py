import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Triplets(Samples):
    """An anchor, another patch of its class, and one of a different one."""

    def __init__(self):
        self.labels = torch.arange(1_500_000) % 3000
        self.patches = torch.zeros(500, 1, 32, 32)

    def __getitem__(self, index):
        same = self.positions_of(index % 3000)
        other = self.positions_of((index + 1) % 3000)
        return tuple(self.patches[one % 500] for one in (index, int(same[0]), int(other[0])))

    def positions_of(self, label):
        return torch.nonzero(self.labels == label)[:, 0]


@question(
    source="tfeat #17",
    report="a linear search for each sample; 4.5 to 27 batches/s",
    step_s=0.01,
    causes=("one-transform",),
    place=r"positions_of",
    lever=r"once|beforehand",
)
def search_in_labels(_folder):
    """Search a million labels for each sample."""
    return DataLoader(_Triplets(), batch_size=32, shuffle=True, num_workers=2)
