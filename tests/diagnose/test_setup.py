"""Caches of a dataset that workers fill, and objects that they copy."""

from functools import cache, lru_cache

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from stallscope.targets.target import Target
from stallscope.verbs.diagnose.setup import cache_of, holds_objects, setup_of


class Kept(Dataset):
    """Keeps each sample in a dictionary."""

    def __init__(self, samples):
        self.kept = samples
        self.kept_before = {}
        self.kept_before["all"] = 0

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = index
        return self.kept[index]


class Derived(Kept):
    """Inherits the cache of its base."""


class Counts(Dataset):
    """Counts samples and keeps none."""

    def __init__(self):
        self.kept = {0: 0, 1: 0}

    def __len__(self):
        return 3

    def __getitem__(self, index):
        self.kept[index % 2] += 1
        return index


class OfFunctions(Counts):
    """Keeps what a function returned."""

    @cache  # noqa: B019 - that is what it is about
    def read(self, index):
        return index


class OfFew(Counts):
    """Keeps the last ones only."""

    @lru_cache(maxsize=8)  # noqa: B019 - that is what it is about
    def read(self, index):
        return index


class Fitted(Dataset):
    """Keeps what it has learned before it is read, and what it reads."""

    def __init__(self):
        self.encoders, self.rows = {}, {}
        self.fit()

    def __len__(self):
        return 4

    def fit(self):
        self.encoders["kind"] = 1

    def __getitem__(self, index):
        return self.load(index)

    def load(self, index):
        return index + self.encoders["kind"]


class Caches(Fitted):
    """Keeps what a method reads that reading calls."""

    def load(self, index):
        if index not in self.rows:
            self.rows[index] = super().load(index)
        return self.rows[index]


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        (Kept({}), "self.kept"),
        (Kept([None, 1, None]), "self.kept"),
        (Derived({}), "self.kept"),
        (Subset(Kept({}), [0, 1]), "self.kept"),
        (Kept({0: 0, 1: 1, 2: 2}), ""),
        (Kept([0, 1, 2]), ""),
        (Counts(), ""),
        (OfFunctions(), "OfFunctions.read"),
        (OfFew(), ""),
        (range(3), ""),
        (Fitted(), ""),
        (Caches(), "self.rows"),
    ],
)
def test_a_cache_is_what_the_class_stores_samples_in(dataset, named):
    """A cache is a dictionary or list that is not full, or an unlimited cache of a method.

    Values that the constructor or `fit` has set are in every worker, so they are no cache.
    """
    assert named == cache_of(dataset)


class Coco:
    def __init__(self, count):
        self.anns = {number: {"bbox": [0, 0, 1, 1]} for number in range(count)}


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ([("a.jpg", 0)] * 2000, True),
        (Coco(2000), True),
        ([{"rows": list(range(2000))}], True),
        (np.full(2000, "a.jpg", dtype=object), True),
        (np.full(2000, "a.jpg"), False),
        (np.zeros((2000, 8)), False),
        (Coco(60), False),
        (torch.zeros(2000), False),
    ],
)
def test_objects_that_workers_would_copy_are_found(contents, expected):
    """Arrays of numbers and letters hold none."""
    dataset = Kept(contents)
    dataset.itself = dataset

    assert holds_objects(dataset) is expected


class WithState(Kept):
    """A dataset that can go on where it stopped."""

    def state_dict(self):
        return {"kept": self.kept}


@pytest.mark.parametrize(
    ("dataset", "every", "sends"),
    [(WithState({}), 1, True), (WithState({}), 100, False), (Kept({}), 1, False)],
    ids=["each batch", "each 100th", "no state"],
)
def test_a_loader_that_sends_the_state_of_its_dataset_is_found(dataset, every, sends):
    """Torchdata's StatefulDataLoader does so with each batch by default."""
    loader = DataLoader(dataset, num_workers=2)
    loader.snapshot_every_n_steps = every

    assert setup_of(Target(loader, None)).sends_state is sends
