"""What users do that a recording must survive without changing a bit of it."""

from __future__ import annotations

import dataclasses
import functools
import operator
import random
import signal
from typing import Any

import numpy as np
import pytest
import torch
from support.loaders import Noise
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms as v1

import stallscope as ss
from stallscope.errors import UnsupportedError
from stallscope.interrupts import held_back


def plus_one(x: Any) -> Any:
    """A function in a slot."""
    return x + 1


def same(x: Any) -> Any:
    """Another one."""
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
    """The numbers in some batches."""
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
        """What the user puts into a slot during the recording stays there."""
        data = Numbers(plus_one)
        loader = DataLoader(data, 4)
        with ss.instrumented(loader):
            for number, _ in enumerate(loader):
                if number == 2:
                    data.t = same

        assert data.t is same

    @pytest.mark.parametrize("change", ["pop", "insert", "replace"])
    def test_a_list_of_transforms_that_changes_meanwhile(self, change):
        """Items that come and go leave no hook behind and end no recording."""
        data = Numbers([PlusOne(), same, plus_one])
        loader = DataLoader(data, 4)
        with ss.instrumented(loader):
            for number, _ in enumerate(loader):
                if number == 2:
                    match change:
                        case "pop":
                            data.t.pop()
                        case "insert":
                            data.t.insert(0, same)
                        case "replace":
                            data.t[2] = same

        assert all(op in (same, plus_one) for op in data.t if not isinstance(op, PlusOne))

    def test_a_sampler_that_shuffles_its_list(self):
        """A list that a sampler shuffles in place is put back."""

        class Shuffles:
            def __init__(self):
                self.order = list(range(20))
                self.rng = random.Random(0)

            def __len__(self):
                return 20

            def __iter__(self):
                self.rng.shuffle(self.order)
                return iter(self.order)

        def first_epoch(*, after_recording: bool) -> list[list[float]]:
            loader = DataLoader(Numbers(same, 20), 4, sampler=Shuffles())
            if after_recording:
                ss.record(loader, batches=4)
            return values(loader)

        assert first_epoch(after_recording=False) == first_epoch(after_recording=True)

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

    def test_a_buffer_that_is_not_saved(self):
        """A model's non-persistent buffers are put back, in place."""
        net = nn.Linear(4, 1)
        net.register_buffer("seen", torch.zeros(1), persistent=False)
        buffer = net.seen

        def step(batch):
            net.seen += 1
            return net(batch)

        ss.record(DataLoader(Noise(), 4), step, batches=3)

        assert net.seen is buffer
        assert [0.0] == buffer.tolist()


class TestTheirCodeRuns:
    @pytest.mark.parametrize("kind", ["static", "class", "builtin", "torch", "frozen", "locked"])
    def test_unusual_ops(self, kind):
        """However `__call__` comes to be, the op gives what it gives."""

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

    def test_a_partial_keeps_its_attributes(self):
        """Code that looks into a partial finds what it looks for."""

        class Looks(Numbers):
            def __getitem__(self, index):
                return torch.tensor([float(index)]) + self.t.keywords["other"]

        loader = DataLoader(Looks(functools.partial(torch.add, other=1)), 4)

        assert ss.record(loader, batches=4).steps().height == 4

    @pytest.mark.parametrize("answer", [dict.get, dict.__getitem__])
    def test_a_dict_that_answers_to_any_name(self, answer):
        """A configuration with `__getattr__` is not taken for a model."""

        class DotDict(dict):
            __getattr__ = answer

        config = DotDict(lr=2.0)

        ss.record(DataLoader(Noise(), 4), lambda batch: batch.sum() * config.lr, batches=2)

        assert {"lr": 2.0} == config

    def test_a_lazy_module(self):
        """A model without weights is left out, and the run says so."""
        lazy = nn.LazyLinear(2)

        run = ss.record(DataLoader(Noise(), 4), lazy, batches=2)

        assert any("LazyLinear" in note for note in run.notes)

    @pytest.mark.parametrize("first", ["outer", "inner"])
    def test_two_loaders_at_once(self, first):
        """Two watched loaders, used in either order, leave nothing behind and see their own."""
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

    def test_a_second_interrupt_is_felt_at_once(self):
        """Ctrl-C pressed twice is not held back."""
        reached = []
        with pytest.raises(KeyboardInterrupt), held_back():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            reached.append("end")

        assert [] == reached


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

    def test_more_stages_than_there_is_room_for(self):
        """The ops beyond the last name share a stage that says so."""
        classes = [type(f"Op{i}", (PlusOne,), {}) for i in range(400)]
        data = Numbers(v1.Compose([cls() for cls in classes]))
        run = ss.record(DataLoader(data, 2), batches=2)

        assert "other names" in run.stages()["stage"]
        assert any("other names" in note for note in run.notes)

    def test_the_model_is_no_part_of_the_pipeline(self):
        """What the training step calls is not charged to the samples."""
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

    def test_a_table_called_dataset(self):
        """Something with items called `dataset` is not taken for the dataset inside."""

        class Columns(Numbers):
            def __init__(self):
                super().__init__(same)
                self.dataset = {"a": torch.arange(40.0), "b": torch.arange(40.0)}

            def __getitems__(self, indices):
                return [self.dataset["a"][i] + self.dataset["b"][i] for i in indices]

        run = ss.record(DataLoader(Columns(), 4), batches=4)

        assert run.samples().is_empty()
        assert {"batch", "collate", "getitem"} == set(run.work["stage"])
