import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Graph:
    """A sample with many small tensors."""

    def __init__(self):
        self.tensors = [torch.ones(8) for _ in range(12)]


class _Graphs(Samples):
    def __getitem__(self, index):
        return _Graph()


def as_objects(samples):
    return samples


@question(
    source="pytorch #123439",
    report="slow when collate returns objects",
    step_s=0.005,
    causes=("sending",),
    place=r"[Ss]ending",
    lever=r"tensor|objects",
)
def small_tensors(_folder):
    """Send hundreds of tensors, each in shared memory of its own."""
    return DataLoader(_Graphs(), batch_size=48, num_workers=2, collate_fn=as_objects)
