import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from real_questions.parts import compute
from real_questions.question import question


class _Shards(IterableDataset):
    """Two shards, whatever the number of workers."""

    def __iter__(self):
        if get_worker_info().id < 2:
            for _ in range(20_000):
                compute(0.002)
                yield torch.zeros(100)


@question(
    source="several",
    report="fewer shards than workers",
    step_s=0.006,
    causes=("idle-workers",),
    place=r"nothing to do",
    lever=r"shards",
)
def few_shards(_folder):
    """Start more workers than there are shards."""
    return DataLoader(_Shards(), batch_size=8, num_workers=4)
