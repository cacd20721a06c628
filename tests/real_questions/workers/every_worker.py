import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from real_questions.parts import compute
from real_questions.question import question


class _Stream(IterableDataset):
    """Samples that are made by every worker, and left to one of them."""

    def __iter__(self):
        worker = get_worker_info()
        for number in range(20_000):
            sample = self.preprocess(number)
            if worker is None or number % worker.num_workers == worker.id:
                yield sample

    @staticmethod
    def preprocess(number):
        compute(0.002)
        return torch.full((3, 32, 32), float(number))


@question(
    source="pytorch/data #454, #487",
    report="divide among the workers as early as possible",
    step_s=0.006,
    causes=("repeated-work",),
    place=r"[Ee]very worker",
    lever=r"divide|shard",
)
def made_by_every_worker(_folder):
    """Divide samples among workers after the work is done."""
    return DataLoader(_Stream(), batch_size=8, num_workers=2)
