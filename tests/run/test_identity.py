"""The user's loop gets the batches of plain iteration, however workers start."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.faults import generators, seeded
from support.faulty_datasets import Refuses
from support.loaders import Backwards, BulkNoise, Jitter, Noise, NoiseStream
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)

import stallscope as ss

KINDS = [
    "shuffled", "in order", "sampler", "weighted", "batch sampler", "no batches", "bulk", "subset",
    "concat", "stream", "stream, no batches", "drawn", "subclass",
]  # fmt: skip
FEW = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


class Custom(DataLoader):
    """A loader class of the user's."""


class Drawn:
    """A sampler that is a generator function, and draws each index when it is asked for it."""

    def __iter__(self) -> Any:
        for _ in range(18):
            yield int(torch.randint(24, ()))


def a_loader(kind: str, workers: int, own: torch.Generator, **how: Any) -> DataLoader:
    """Make a loader of this kind; `own` is the generator that the user gave it."""
    data = Noise(24) if how.get("in_order") is False else Noise(24, Jitter())
    arguments = {
        "shuffled": lambda: ((data, 4), {"shuffle": True, "generator": own}),
        "in order": lambda: ((data, 4), {}),
        "sampler": lambda: ((data, 4), {"sampler": Backwards(data)}),
        "weighted": lambda: ((data, 4), {"sampler": _weighted(own)}),
        "batch sampler": lambda: (
            (data,),
            {"batch_sampler": BatchSampler(RandomSampler(data), 5, drop_last=False)},
        ),
        "no batches": lambda: ((data, None), {}),
        "bulk": lambda: ((BulkNoise(24), 4), {"shuffle": True}),
        "subset": lambda: ((Subset(data, range(3, 20)), 4), {"shuffle": True}),
        "concat": lambda: ((ConcatDataset([data, Noise(9)]), 4), {"shuffle": True}),
        "stream": lambda: ((NoiseStream(24), 4), {}),
        "stream, no batches": lambda: ((NoiseStream(24), None), {}),
        "drawn": lambda: ((data, 4), {"sampler": Drawn()}),
        "subclass": lambda: ((data, 4), {"shuffle": True}),
    }[kind]()
    make = Custom if kind == "subclass" else DataLoader
    return make(*arguments[0], **arguments[1], num_workers=workers, **how)


def _weighted(own: torch.Generator) -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0] * 23 + [9.0], 20, generator=own)


def two_epochs(loader: DataLoader) -> list[list[Any]]:
    """Iterate two epochs, the second for three batches; the loop draws after each batch."""
    seen: list[list[Any]] = []
    for most in (100, 3):
        seen.append([])
        for batch in loader:
            seen[-1].append((batch.tolist(), torch.rand(1).item()))
            if len(seen[-1]) == most:
                break
    end_workers(loader)
    return seen


def end_workers(loader: DataLoader) -> None:
    """End persistent workers now."""
    if loader._iterator is not None and loader.num_workers:
        loader._iterator._shutdown_workers()


def in_any_order(epoch: list[Any]) -> list[Any]:
    """Return the indices of an epoch's samples, where the faster worker draws first."""
    rows = (row if isinstance(row, list) else batch for batch, _ in epoch for row in batch)
    return sorted(row[0] for row in rows)


def check(kind: str, workers: int, number: int, *, passes_loader: bool, **how: Any) -> None:
    """Compare two epochs, plain and inside of a block: the same bits, and equal generators."""
    seen, after = [], []
    for inside in (False, True):
        own = seeded(number)
        loader = a_loader(kind, workers, own, **how)
        if inside:
            before = {name: id(value) for name, value in vars(loader.dataset).items()}
            with ss.instrumented(loader if passes_loader else None) as watch:
                seen.append(two_epochs(loader))
            assert before == {name: id(value) for name, value in vars(loader.dataset).items()}
        else:
            seen.append(two_epochs(loader))
        after.append((generators(own), getattr(loader.sampler, "epochs", None)))

    if how["in_order"] or workers < 2:
        assert seen[0] == seen[1]
    else:
        assert in_any_order(seen[0][0]) == in_any_order(seen[1][0])
    assert after[0] == after[1]
    assert len(seen[0][0]) + 3 == watch.run.all_steps.height


class TestInstrumented:
    @pytest.mark.slow
    @FEW
    @given(
        st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 1000), st.booleans(),
        st.booleans(), st.booleans(),
    )  # fmt: skip
    def test_with_forked_workers(  # noqa: PLR0917 - as hypothesis gives them
        self, kind, workers, number, passes_loader, persistent, in_order
    ):
        """Batches are equal for any loader, watched alone or with all others."""
        how = {"persistent_workers": persistent and workers > 0, "in_order": in_order}

        check(kind, workers, number, passes_loader=passes_loader, **how)

    def test_loader_attributes_and_exceptions_are_unchanged(self):
        """Classes, length, attributes and exceptions are those without a block."""
        seen = []
        for inside in (False, True):
            for workers in (0, 1):
                loader = DataLoader(Refuses(), 4, num_workers=workers)
                there = {name: id(value) for name, value in vars(loader).items()}
                block = ss.instrumented() if inside else nullcontext()
                with block:
                    iterator = iter(loader)
                    next(iterator)
                    with pytest.raises(LookupError) as caught:
                        list(iterator)
                    lines = str(caught.value).splitlines()
                    seen.append(
                        (
                            inside,
                            type(loader), type(iterator), len(loader), len(iterator),
                            sorted(vars(iterator)), type(caught.value), lines[0], lines[-1],
                            loader.dataset.asked,
                        )
                    )  # fmt: skip
                if workers:
                    iterator._shutdown_workers()
                assert there == {name: id(value) for name, value in vars(loader).items()}

        plain, inside = ([row[1:] for row in seen if row[0] == side] for side in (False, True))
        assert plain == inside


class TestRecord:
    @pytest.mark.slow
    @FEW
    @given(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 1000))
    def test_leaves_no_trace_in_the_generators(self, kind, workers, number):
        plain = [batch.tolist() for batch in a_loader(kind, workers, seeded(number))]
        own, seen = seeded(number), []
        loader = a_loader(kind, workers, own)
        before = generators(own)

        ss.record(loader, seen.append, batches=len(plain) - max(workers, 1), warmup=0)

        assert plain == [batch.tolist() for batch in seen]
        assert before == generators(own)
        assert plain == [batch.tolist() for batch in loader]

    @pytest.mark.slow
    @FEW
    @given(
        st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 1000), st.booleans(),
        st.booleans(),
    )  # fmt: skip
    def test_the_loop_goes_on_as_without(self, kind, workers, number, persistent, before):
        seen = []
        for recorded in (False, True):
            own = seeded(number)
            loader = a_loader(kind, workers, own, persistent_workers=persistent and workers > 0)
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

            def step(batch: Any, model=model, optimizer=optimizer) -> None:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()

            if before:
                for batch in loader:
                    step(batch)
            pids = _pids(loader)
            if recorded:
                ss.record(loader, step, batches=3, warmup=0)
            assert pids == _pids(loader)
            for batch in loader:
                step(batch)
            end_workers(loader)
            state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            seen.append((str(state), generators(own), getattr(loader.sampler, "epochs", None)))

        assert seen[0] == seen[1]


def _pids(loader: DataLoader) -> list[int]:
    return [worker.pid for worker in getattr(loader._iterator, "_workers", [])]
