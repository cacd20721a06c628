"""Unusual user code that a recording must survive without changing a bit of it."""

import dataclasses
import operator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms as v1

import stallscope as ss
from stallscope.errors import UnsupportedError


def plus_one(x: Any) -> Any:
    """Return the next number, as a function in a slot."""
    return x + 1


def same(x: Any) -> Any:
    """Return the input, as another function in a slot."""
    return x


class PlusOne:
    """An op."""

    def __call__(self, x: Any) -> Any:
        return x + 1


class Numbers(Dataset):
    """Numbers that go through `t`, slow enough to be recorded each time."""

    def __init__(self, t: Any, entries: int = 40) -> None:
        self.t = t
        self.entries = entries

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> torch.Tensor:
        x = torch.tensor([float(index)])
        for op in self.t if isinstance(self.t, list) else [self.t]:
            x = op(x)
        return x


def values(batches: Any) -> list[list[float]]:
    """Return the numbers in the batches."""
    return [batch.flatten().tolist() for batch in batches]


class TestTheDataStaysTheirs:
    def test_indices_that_can_be_read_only_once(self):
        """A batch sampler that yields generators loses no index."""

        class Once:
            def __len__(self):
                return 3

            def __iter__(self):
                return ((j for j in range(k * 4, k * 4 + 4)) for k in range(3))

        loader = DataLoader(Subset(Numbers(same), range(40)), batch_sampler=Once())
        with ss.instrumented(loader):
            seen = values(loader)

        assert values(loader) == seen

    def test_a_transform_that_is_replaced_meanwhile(self):
        data = Numbers(plus_one)
        loader = DataLoader(data, 4)
        with ss.instrumented(loader):
            for number, _ in enumerate(loader):
                if number == 2:
                    data.t = same

        assert data.t is same

    def test_a_generator_deep_inside(self):
        """A generator in an op in a Compose of a Subset's dataset is put back."""

        class Draws:
            def __init__(self):
                self.rng = np.random.default_rng(0)

            def __call__(self, x):
                return x + self.rng.random()

        def first_epoch(*, after_recording: bool) -> list[list[float]]:
            data = Subset(Numbers(v1.Compose([v1.Compose([Draws()])])), range(20))
            loader = DataLoader(data, 4)
            if after_recording:
                ss.record(loader, batches=4)
            return values(loader)

        assert first_epoch(after_recording=False) == first_epoch(after_recording=True)


class TestTheirCodeRuns:
    @pytest.mark.parametrize("kind", ["static", "class", "builtin", "torch", "frozen", "locked"])
    def test_unusual_ops(self, kind):
        class Static:
            @staticmethod
            def __call__(x):
                return x + 1

        class OfClass:
            @classmethod
            def __call__(cls, x):
                return x + 1

        class Builtin:
            __call__ = operator.neg

        class Torch:
            __call__ = torch.neg

        @dataclasses.dataclass(frozen=True)
        class Frozen:
            inner: Any

            def __call__(self, x):
                return self.inner(x)

        class Locks(type):
            def __setattr__(cls, *_):
                raise AttributeError("locked")

        class Locked(metaclass=Locks):
            def __call__(self, x):
                return x + 1

        op = {
            "static": Static, "class": OfClass, "frozen": lambda: Frozen(plus_one),
            "builtin": lambda: operator.neg, "torch": lambda: torch.neg, "locked": Locked,
        }[kind]()  # fmt: skip
        loader = DataLoader(Numbers(op), 4)

        seen = []
        ss.record(loader, seen.append, batches=9)

        assert values(loader) == values(seen)[:10]

    @pytest.mark.parametrize("first", ["outer", "inner"])
    def test_two_loaders_at_once(self, first):
        """Two watched loaders, used in either order, record only their own batches."""
        a, b = (DataLoader(Numbers(op, 24), 4) for op in (PlusOne(), [PlusOne(), same]))
        with ss.instrumented(a) as of_a, ss.instrumented(b) as of_b:
            for loader in (a, b) if first == "outer" else (b, a):
                list(loader)

        assert 6 == of_a.run.batches.height == of_b.run.batches.height
        assert "same" not in of_a.run.stages()["stage"]

    def test_the_same_loader_twice(self):
        """A loader that is watched already is refused with a sentence."""
        loader = DataLoader(Numbers(same), 4)

        with (
            ss.instrumented(loader),
            pytest.raises(UnsupportedError, match="already"),
            ss.instrumented(loader),
        ):
            pass


class TestTheMeasurementIsTrue:
    def test_a_pipeline_that_is_built_for_every_sample(self):
        """Ops built anew each time are the same stages each time."""

        class Builds(Numbers):
            def __getitem__(self, index):
                return v1.Compose([PlusOne(), PlusOne()])(torch.tensor([float(index)]))

        run = ss.record(DataLoader(Builds(same), 4), batches=6)

        assert {"PlusOne", "PlusOne #2"} == {
            stage for stage in run.stages()["stage"] if "Plus" in stage
        }

    def test_the_model_is_no_part_of_the_pipeline(self):
        """Calls of the training step are not charged to the samples."""
        net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 1))
        loader = DataLoader(Numbers(v1.Compose([PlusOne()])), 4)
        with ss.instrumented(loader) as watch:
            for batch in loader:
                net(batch)

        assert {"batch", "collate", "getitem", "PlusOne"} == set(watch.run.work["stage"])

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_loader_inside_of_a_dataset(self, workers):
        """An inner loader's batches are part of the sample that asks for them."""

        class Outer(Dataset):
            def __len__(self):
                return 16

            def __getitem__(self, index):
                return sum(batch.sum() for batch in DataLoader(Numbers(PlusOne(), 8), 4)) + index

        run = ss.record(DataLoader(Outer(), 4, num_workers=workers), batches=2, warmup=0)

        used = run.samples(steady=False).join(run.all_steps, on=["epoch", "batch"], how="semi")
        assert used.height == 4 * run.all_steps.height
