import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _Features(Dataset):
    def __init__(self):
        self.labels = [number % 400 for number in range(40_000)]
        self.values = torch.randn(1000, 64)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.values[index % 1000], self.labels[index]


class BalancedSampler:
    """Draws eight classes for a batch, and eight samples of each."""

    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels) // 64

    def __iter__(self):
        for _ in range(len(self)):
            batch = []
            for one in np.random.choice(400, 8, replace=False):
                where = np.nonzero(np.array(self.labels) == one)[0]
                batch.extend(np.random.choice(where, 8))
            yield batch


@question(
    source="Proxy-Anchor-CVPR2020 #26",
    report="way too slow with many classes",
    step_s=0.003,
    causes=("main-process",),
    place=r"BalancedSampler\.__iter__",
    lever=r"with arrays",
)
def balanced(_folder):
    """Make an array of all labels for each class of each batch, in the main process."""
    features = _Features()
    return DataLoader(features, batch_sampler=BalancedSampler(features.labels), num_workers=2)
