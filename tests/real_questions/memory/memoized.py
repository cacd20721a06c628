from functools import partial

import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class memoize:  # noqa: N801 - its author's name
    """Keeps what a function returned, for when it is called with the same again."""

    def __init__(self, function):
        self.function = function
        self.cache: dict[tuple[object, ...], object] = {}

    def __get__(self, instance, _owner=None):
        return partial(self, instance)

    def __call__(self, *args):
        key = (id(args[0]), *args[1:])
        if key not in self.cache:
            self.cache[key] = self.function(*args)
        return self.cache[key]


class SafeDataset(Dataset):
    """Leaves the samples out that cannot be read."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def _safe_get_item(self, index):
        try:
            return self.dataset[index]
        except OSError:
            return None

    @memoize
    def __getitem__(self, index):
        while (sample := self._safe_get_item(index)) is None:
            index += 1
        return sample


class DummyDataset(Dataset):
    """Images."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.randn(3, 64, 64), index % 10


@question(
    source="nonechucks #13",
    report="memory grows forever; samples are memoized: 'remove the @memoize line'",
    step_s=0.02,
    causes=("memory-growth",),
    place=r"[Mm]emor|SafeDataset|memoize|grow",
    lever=r"\bcache|memo\w*\b|[Kk]eep|kept|stor(e|es|ed|ing)\b|bound|maxsize|limit",
)
def samples_that_are_safe(_folder):
    """Keep each sample, though none is asked for twice."""
    return DataLoader(SafeDataset(DummyDataset()), batch_size=16, num_workers=2)
