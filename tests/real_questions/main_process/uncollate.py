import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Vectors(Samples):
    """Samples that are dictionaries of ten vectors."""

    def __init__(self):
        self.values = {f"feature{number}": torch.randn(4000, 16) for number in range(10)}

    def __getitem__(self, index):
        return {name: values[index % 4000] for name, values in self.values.items()}


class Uncollated:
    """A loader whose batches are taken apart again, as they were collated."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            yield self.uncollate(batch)

    @staticmethod
    def uncollate(batch):
        count = len(next(iter(batch.values())))
        return [{name: values[n] for name, values in batch.items()} for n in range(count)]


@question(
    source="fuse-med-ml #267",
    report="each batch is taken apart in a loop, in the main process",
    step_s=0.004,
    causes=("main-process",),
    place=r"[Uu]ncollate",
    lever=r"collate_fn|worker|vector|whole batch|once",
)
def uncollated(_folder):
    """Take each batch apart in the main process."""
    return Uncollated(DataLoader(_Vectors(), batch_size=256, shuffle=True, num_workers=2))
