"""`ss.tune` on real loaders: predictions, measurements, and no change to the user's loader."""

import random
import time

import pytest
import torch
from support.planted_costs import BusyCollate, busy, waiting
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

import stallscope as ss
from stallscope.errors import ArgumentError, UnsupportedError
from stallscope.machine import cores_available
from stallscope.model.settings import setting_of
from stallscope.verbs.tune.result import FAILED, NOT_TRIED

STEP = ss.simulated_step(0.004)


class Samples(Dataset):
    """Samples that wait and compute for set times.

    Args:
        wait_s: waits for storage.
        compute_s: CPU time.
        fails_in_workers: True: only the main process can make them.
    """

    def __init__(self, wait_s=0.0, compute_s=0.0, *, fails_in_workers=False) -> None:
        self.wait_s, self.compute_s, self.fails = wait_s, compute_s, fails_in_workers

    def __len__(self) -> int:
        return 4_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.fails and torch.utils.data.get_worker_info():
            raise RuntimeError("no worker may have this file")
        waiting(self.wait_s)
        busy(self.compute_s)
        return torch.full((8,), float(index))


def loader(workers=0, **samples) -> DataLoader:
    return DataLoader(Samples(**samples), 4, num_workers=workers)


def the_other(tuning) -> dict:
    """Return the row of the only setting beside the current one."""
    (row,) = (row for row in tuning.settings().to_dicts() if row["trial"])
    return row


def of_workers(tuning, workers: int) -> dict:
    """Return the row of this number of workers, without persistent workers."""
    rows = tuning.settings().to_dicts()
    return next(
        row
        for row in sorted(rows, key=lambda each: each["trial"])
        if row["num_workers"] == workers and not row["persistent_workers"]
    )


class TestDirection:
    """Predictions before the first measurement."""

    @pytest.mark.slow
    def test_without_workers_more_workers_are_faster(self):
        """The rate of samples that wait grows with each worker."""
        candidates = [{"num_workers": 1}, {"num_workers": 4}]

        tuning = ss.tune(loader(wait_s=0.004), STEP, budget_s=5, settings=candidates)

        four, single = of_workers(tuning, 4), of_workers(tuning, 1)
        assert four["predicted_gain"] > max(single["predicted_gain"], 1.5)
        assert {"as it is", "recommended", "measured", "predicted"} >= {
            row["status"] for row in tuning.settings().to_dicts()
        }
        assert tuning.apply(loader(), four["trial"]).num_workers == 4
        assert tuning.circumstances.batch_bytes == 4 * 8 * 4

    @pytest.mark.slow
    def test_with_too_many_workers_fewer_need_less_memory(self):
        """Fewer workers are tried if there are more than cores (rates: test_simulator)."""
        cores = int(cores_available())
        candidates = [{"num_workers": cores}]

        tuning = ss.tune(loader(4 * cores, compute_s=0.004), STEP, budget_s=6, settings=candidates)

        fewer = of_workers(tuning, cores)
        assert fewer["memory_bytes"] < of_workers(tuning, 4 * cores)["memory_bytes"]

    @pytest.mark.slow
    def test_a_loader_that_keeps_up_stays(self):
        """More workers gain nothing if the step takes longer than its batches."""
        tuning = ss.tune(loader(2, wait_s=0.001), ss.simulated_step(0.03), budget_s=6)

        four = of_workers(tuning, 4)
        assert four["predicted_gain"] < 1.2
        assert four["trial"] != tuning.best["trial"]


class TestHeedsTheUser:
    """The user's objects stay unchanged, and only the user's settings are tried."""

    def test_state_is_unchanged(self):
        generator = torch.Generator().manual_seed(1)
        mine = DataLoader(Samples(), 4, shuffle=True, generator=generator, num_workers=0)

        def state():
            states = (generator.get_state().tolist(), torch.get_rng_state().tolist())
            return *states, random.getstate(), vars(mine).copy()

        before = state()
        ss.tune(mine, budget_s=1.5, settings=[{"num_workers": 1}])

        assert before == state()

    @pytest.mark.slow
    def test_a_setting_that_raises_is_a_row_with_its_reason(self):
        tuning = ss.tune(
            loader(wait_s=0.001, fails_in_workers=True), budget_s=20, settings=[{"num_workers": 1}]
        )

        row = the_other(tuning)
        assert row["status"] == FAILED
        assert "no worker may have this file" in row["reason"]
        assert tuning.best["trial"] == 0

    def test_a_setting_that_needs_too_much_memory_is_not_tried(self):
        tuning = ss.tune(loader(), budget_s=2, settings=[{"num_workers": 4}], max_bytes=300)

        row = the_other(tuning)
        assert row["status"] == NOT_TRIED
        assert "of 300 B allowed" in row["reason"]
        assert row["starts"] == 0

    def test_a_stream_without_workers_gets_none(self):
        """Each worker would yield the whole stream."""

        class Stream(IterableDataset):
            def __iter__(self):
                return iter(range(4_000))

        tuning = ss.tune(DataLoader(Stream(), 4), budget_s=1.5)

        assert tuning.settings()["num_workers"].unique().to_list() == [0]
        assert "no workers were tried" in str(tuning)

    @pytest.mark.slow
    def test_an_exception_of_the_users_carries_the_result_so_far(self):
        """An error of the user's loader passes, with the tuning measured so far."""

        class Passes(SequentialSampler):
            begun = 0  # of the class: what is looked at may be a copy, or be put back

            def __iter__(self):
                Passes.begun += 1
                return super().__iter__()

        class Breaks(Samples):
            def __getitem__(self, index):
                if Passes.begun > 2:  # the first is recorded, of the second one batch is looked at
                    raise KeyError("a later pass")
                return super().__getitem__(index)

        samples = Breaks(wait_s=0.002)
        mine = DataLoader(samples, 4, sampler=Passes(samples))

        with pytest.raises(KeyError, match="a later pass") as caught:
            ss.tune(mine, budget_s=20, settings=[{"num_workers": 1}])

        assert any("stallscope: raised while" in note for note in caught.value.__notes__)
        assert "ended early, by KeyError" in str(caught.value.tuning)


@pytest.mark.parametrize(
    ("target", "arguments", "error"),
    [
        (iter([torch.zeros(2)] * 3), {}, UnsupportedError),
        ([torch.zeros(2)] * 3, {}, UnsupportedError),
        (loader(), {"budget_s": 0}, ArgumentError),
        (loader(), {"max_bytes": -1}, ArgumentError),
        (loader(), {"settings": [{"batch_size": 2}]}, ArgumentError),
    ],
    ids=["its own iterator", "a list", "no budget", "no memory", "no setting"],
)
def test_wrong_arguments_are_refused_in_a_sentence(target, arguments, error):
    with pytest.raises(error) as caught:
        ss.tune(target, **arguments)

    assert "\n" not in str(caught.value)


def test_it_ends_within_its_budget():
    began = time.perf_counter()

    tuning = ss.tune(DataLoader(Samples(0.002), 4, collate_fn=BusyCollate(0.001)), budget_s=2.5)

    assert time.perf_counter() - began < 2.5 * 1.1 + 3  # and starting, on a busy machine
    assert tuning.circumstances.took_s > 0
    assert setting_of(loader()).num_workers == tuning.setting(0).num_workers
