import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Series(Samples):
    """Series of floats, one array a sample."""

    def __init__(self, shape=(24 * 14, 4)):
        self.values = np.random.default_rng(0).normal(size=(64, *shape)).astype(np.float32)

    def __getitem__(self, index):
        return {"past": self.values[index % 64], "scale": self.values[index % 64, 0, 0]}


def stack_as_tensor(samples):
    return {name: torch.tensor([sample[name] for sample in samples]) for name in samples[0]}


@question(
    source="gluonts #1732",
    report="making batches is extremely slow",
    step_s=0.008,
    causes=("collate",),
    place=r"stack_as_tensor",
    lever=r"np\.stack|from_numpy",
)
def tensor_of_arrays(_folder):
    """Convert number by number."""
    return DataLoader(_Series(), batch_size=64, num_workers=2, collate_fn=stack_as_tensor)
