import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Expert(Samples):
    """Batches of a million steps of an expert, drawn without repetition."""

    def __init__(self):
        self.observations = np.zeros((1_000_000, 17), np.float32)
        self._random_range = np.arange(1_000_000)

    def __getitem__(self, _index):
        indices = np.random.choice(self._random_range, 100, replace=False)
        return torch.from_numpy(self.observations[indices])


@question(
    source="tf2rl #126",
    report="np.random.choice without replacement; 1000 times as fast with",
    step_s=0.005,
    causes=("one-transform",),
    place=r"__getitem__",
    lever=r"replace|Generator|integers|permut",
)
def drawn_without_repetition(_folder):
    """Put a million numbers in a random order to use a hundred."""
    return DataLoader(_Expert(), batch_size=None, num_workers=2)
