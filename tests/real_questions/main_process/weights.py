import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _Nodes(Dataset):
    def __init__(self, count):
        self.features = torch.randn(1000, 32)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.features[index % 1000]


class DegreeSampler:
    """Draws nodes, those with more neighbours more often."""

    def __init__(self, degrees):
        self.degrees = degrees

    def __len__(self):
        return 2000

    def __iter__(self):
        for _ in range(len(self)):
            chances = self.degrees / self.degrees.sum()
            yield np.random.choice(len(chances), 64, p=chances).tolist()


@question(
    source="dgl #3879",
    report="keep the probabilities in place of computing them for each draw",
    step_s=0.005,
    causes=("main-process",),
    place=r"DegreeSampler\.__iter__",
    lever=r"beforehand|once",
)
def weights_for_each_draw(_folder):
    """Compute the chances of a million nodes for each batch."""
    nodes = _Nodes(1_000_000)
    degrees = np.random.default_rng(0).integers(1, 100, len(nodes)).astype(np.float64)
    return DataLoader(nodes, batch_sampler=DegreeSampler(degrees), num_workers=2)
