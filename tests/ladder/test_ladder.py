"""Ladders over real workers: measured rungs, unchanged loaders, messages."""

import math
import pickle
from itertools import chain, count, islice
from typing import Any

import polars as pl
import pytest
import torch
from support.loaders import BulkNoise, Fails, Noise, NoiseStream
from support.planted_costs import BusyOp, SlowFetchDataset
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.bench import loops as bench_loops
from stallscope.hooks.device_time import SimulatedDevice
from stallscope.isolation import seed_everywhere
from stallscope.targets.target import SimulatedStep
from stallscope.verbs.ladder import ladder as ladder_module
from stallscope.verbs.ladder.result import (
    AS_IT_IS,
    BATCHES,
    FETCHED,
    ON_DEVICE,
    PINNED,
    TRANSFORMED,
    WARM,
)

IN_WORKERS = (AS_IT_IS.name, WARM.name, FETCHED.name, TRANSFORMED.name)


@pytest.fixture(autouse=True, scope="module")
def short_blocks():
    """Shorten the blocks: these tests check the measured rungs, not their precision."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_loops, "BLOCK_S", 0.03)
        patch.setattr(bench_loops, "FEWEST_SWEEPS", 1)
        patch.setattr(ladder_module, "_NARROW", math.inf)
        yield


def quick(target: Any, step: Any = None, **named: Any) -> ss.Ladder:
    return ss.ladder(target, step or ss.simulated_step(0.002), **{"budget_s": 3.0, **named})


def measured(ladder: ss.Ladder) -> list[str]:
    return ladder.table().drop_nulls("samples_per_s")["rung"].to_list()


def why_not(ladder: ss.Ladder, rung: Any) -> str:
    return ladder.table().row(by_predicate=pl.col("rung") == rung.name, named=True)["why_not"]


def as_dict(samples: list[torch.Tensor]) -> dict[str, Any]:
    return {"image": torch.stack(samples), "names": [str(sample) for sample in samples]}


class TestRungs:
    def test_of_a_dataset_with_a_transform(self):
        dataset = SlowFetchDataset(64, 0.001, BusyOp(0.001))

        ladder = quick(DataLoader(dataset, 4, num_workers=2), budget_s=20.0)

        assert [*IN_WORKERS, BATCHES.name] == measured(ladder)
        assert "no device has its own memory" in why_not(ladder, PINNED)
        assert "no device has its own memory" in why_not(ladder, ON_DEVICE)

    @pytest.mark.slow
    @pytest.mark.parametrize("has_transform", [False, True])
    def test_of_a_dataset_without_a_place_before_its_transform(self, has_transform):
        """A dataset without a transform, or with code after it, has no fetched rung."""
        dataset = Doubling(64, 0.0, BusyOp(0.0001)) if has_transform else Noise(64)
        ladder = quick(DataLoader(dataset, 4, num_workers=int(not has_transform)))

        assert "the dataset has no transform, or processes" in why_not(ladder, FETCHED)
        assert TRANSFORMED.name in measured(ladder)

    def test_of_a_stream(self):
        """A stream cannot repeat a sample, but its samples can be cached."""
        ladder = quick(DataLoader(NoiseStream(400), 4, num_workers=0))

        assert [AS_IT_IS.name, TRANSFORMED.name, BATCHES.name] == measured(ladder)

    def test_of_any_other_iterable(self):
        ladder = quick(Wrapped(DataLoader(Noise(64), 4, num_workers=2)))

        assert [AS_IT_IS.name, BATCHES.name] == measured(ladder)
        assert "a Wrapped iterates by itself" in why_not(ladder, TRANSFORMED)

    @pytest.mark.parametrize(
        "settings", [{"batch_size": 4, "collate_fn": as_dict}, {"batch_size": None}], ids="-".join
    )
    def test_of_every_kind_of_batch(self, settings):
        """Dicts, objects, ragged lists, single samples, a list of lists of indices."""
        ladder = quick(DataLoader(BulkNoise(64), **settings), budget_s=20.0)

        assert [AS_IT_IS.name, WARM.name, TRANSFORMED.name, BATCHES.name] == measured(ladder)

    def test_without_a_step(self):
        """The loader alone is measured, and the device's busy share is reported as unknown."""
        ladder = ss.ladder(DataLoader(SlowFetchDataset(64, 0.001, BusyOp(0.001)), 4))

        assert list(IN_WORKERS) == measured(ladder)
        assert ladder.table()["step_share"].is_null().all()
        assert ladder.table()["device_busy_share"].is_null().all()
        assert "The loader alone gives" in str(ladder)
        assert "how busy a device could be is unknown" in str(ladder)

    def test_larger_than_memory_are_left_out(self):
        """A dataset larger than memory loses only the cached rungs."""
        ladder = quick(DataLoader(Noise(64), 4), max_bytes=100)

        assert [AS_IT_IS.name, WARM.name] == measured(ladder)
        assert "one batch needs more than the 100 B allowed" == why_not(ladder, BATCHES)

    @pytest.mark.slow
    def test_take_no_more_memory_than_allowed(self):
        dataset = SlowFetchDataset(64, 0.0, BusyOp(0.0))

        ladder = quick(DataLoader(dataset, 4), max_bytes=20_000)

        assert 0 < ladder.table()["cached_bytes"].sum() <= 20_000
        assert BATCHES.name in measured(ladder)


class Doubling(SlowFetchDataset):
    """A dataset that changes the output of its transform."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) * 2


class Wrapped:
    """An iterable over a loader's batches that is no DataLoader."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        for batch in self.loader:
            yield batch + 1


class TestOnADeviceWithMemory:
    """A simulated device with known copy times; `tests/gpu` uses a real one."""

    BATCH_BYTES = 4 * 4 * 4
    """Four samples of `Noise`, four floats each."""

    def device(self, **named: Any) -> SimulatedDevice:
        """A batch takes 6 ms from pageable memory, 2 ms from pinned."""
        rates = {"pageable_bytes_per_s": 64 / 0.006, "pinned_bytes_per_s": 64 / 0.002}
        return SimulatedDevice(**rates, **named)

    def test_every_rung_is_there_and_copies_cost_what_the_bus_takes(self):
        """A step takes 4 ms; the copy adds 6 ms from pageable memory, 2 ms from pinned."""
        device = self.device(memory_bytes=64 * 100)
        step = SimulatedStep(0.004, device)
        ladder = quick(DataLoader(Noise(64), 4), step)

        rows = {row["rung"]: row for row in ladder.table().iter_rows(named=True)}
        period_s = {name: 4 / row["samples_per_s"] for name, row in rows.items() if row["blocks"]}
        assert period_s[BATCHES.name] >= 0.01
        assert 0.006 <= period_s[PINNED.name] < period_s[BATCHES.name]
        assert 0.0039 <= period_s[ON_DEVICE.name] < period_s[PINNED.name]  # a ratio of rates
        assert rows[BATCHES.name]["device_busy_share"] < 0.41
        assert 0.41 < rows[ON_DEVICE.name]["device_busy_share"] <= 1
        assert 0 == device.held_bytes, "what was kept there is given back"
        assert "simulated" in str(ladder)
        assert "memory 0% full" in str(ladder)

    @pytest.mark.parametrize(
        ("room", "step_bytes", "fit"), [(2, 0, 2), (1, 0, 1), (6, 3, 2), (4, 3, 1)]
    )
    def test_as_many_batches_are_kept_as_there_is_room_for(self, room, step_bytes, fit):
        device = self.device(memory_bytes=room * self.BATCH_BYTES)
        step = Greedy(device, step_bytes * self.BATCH_BYTES)
        ladder = quick(DataLoader(Noise(64), 4), step)

        assert ON_DEVICE.name in measured(ladder)
        assert f"repeats {fit} batch" in str(ladder)
        assert 0 == device.held_bytes


class Greedy:
    """A step that needs memory of its device."""

    def __init__(self, device: SimulatedDevice, size: int) -> None:
        self.device, self.size = device, size

    def __call__(self, _: Any) -> None:
        self.device.reserve(self.size)
        self.device.launch(0.001)
        self.device.release(self.size)


class Halve:
    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        return sample / 2


class TestUnchanged:
    def test_later_batches_stay_the_same(self):
        plain, loader = (
            DataLoader(Noise(24), 4, shuffle=True, generator=torch.Generator().manual_seed(3))
            for _ in range(2)
        )

        quick(loader)

        seed_everywhere(1)
        batches = [batch.clone() for batch in loader]
        seed_everywhere(1)
        assert all(torch.equal(ours, its) for ours, its in zip(batches, plain, strict=True))

    def test_a_step_never_sees_its_own_changes_again(self):
        spoilt = []

        def step(batch: Any) -> None:
            image = batch["image"]
            spoilt.append(bool((image < 0).any()))
            image.fill_(-1)

        ladder = quick(DataLoader(Noise(64), 4, collate_fn=as_dict), step)

        assert BATCHES.name in measured(ladder)
        assert not any(spoilt)


class TestBadInput:
    def test_a_step_that_raises_on_its_third_batch(self):
        steps = count(1)

        def step(_: Any) -> None:
            if next(steps) == 3:
                raise ArithmeticError("no third")

        with pytest.raises(ArithmeticError, match="no third") as caught:
            quick(DataLoader(Noise(64), 4, num_workers=2), step)

        assert isinstance(caught.value.ladder, ss.Ladder)
        assert any("'as it is'" in note for note in caught.value.__notes__)

    def test_a_dataset_that_raises(self):
        with pytest.raises(KeyError, match="no sample 17"):
            quick(DataLoader(Fails(), 4, num_workers=0), budget_s=20.0)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("budget_s", value) for value in (0, -1, math.nan, "long", None)),
            *(("max_bytes", value) for value in (-1, "much", math.nan)),
        ],
    )
    def test_a_number_that_cannot_be_used(self, name, value):
        with pytest.raises(ss.StallscopeError, match=f"{name}="):
            ss.ladder(DataLoader(Noise(8), 4), **{name: value})

    def test_an_interrupt(self):
        steps = count(1)

        def step(_: Any) -> None:
            if next(steps) == 300:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as caught:
            quick(DataLoader(Noise(64), 4, num_workers=2), step)

        assert AS_IT_IS.name in measured(caught.value.ladder)


def test_a_simulated_device_is_called_simulated():
    ladder = quick(DataLoader(Noise(64), 4))

    assert "the step is simulated" in str(ladder)
    assert "the step is simulated" in ladder._repr_mimebundle_()["text/html"]
    assert any("the step is simulated" in note for note in ladder.plot().notes)


def test_the_cached_samples_are_those_of_the_dataset():
    """Transforming the captured inputs gives the dataset's samples, bit for bit."""
    from stallscope.loops import cached_loaders

    loader = DataLoader(SlowFetchDataset(64, 0.0, Halve()), 4, num_workers=1)
    indices = cached_loaders.next_indices(loader, 3)
    capturing = cached_loaders.capturing(loader, indices)
    captured = [pickle.loads(batch) for batch in capturing]  # noqa: S301 - our own workers made it
    finished = [[whole for whole, _ in batch] for batch in captured]
    halves = [half for batch in captured for _, half in batch]

    counts = [4, 4, 4]
    transforming = cached_loaders.transforming(loader, halves, counts)
    collating = cached_loaders.collating(loader, list(chain(*finished)), counts)
    plain = list(islice(loader, 3)) * 2

    for cached in (transforming, collating):
        batches = iter(cached)
        assert all(torch.equal(next(batches), batch) for batch in plain)
        batches._shutdown_workers()
