"""What the workers' memory grows by, from planted looks and from real workers."""

from __future__ import annotations

import mmap
import time
from dataclasses import replace

import polars as pl
import pytest
from support.build_run import a_run, deliveries_of, steps_of
from torch.utils.data import DataLoader, Dataset

import stallscope as ss
from stallscope.run.decode import RESOURCES
from stallscope.run.resource_sampler import PROC
from stallscope.run.resources import memory_growth
from stallscope.stages import (
    MEMORY,
    WORKER_MAPPED,
    WORKER_MEMORY,
)

SECOND = 1_000_000_000


def looked_at(own_mb, all_mb, *, free_mb=None, **made):
    """A run of one worker whose memory was looked at once a second."""
    rows = [
        (0, n * SECOND, (n + 1) * SECOND, resource, "100", 1e6 * value, None)
        for resource, values in ((WORKER_MEMORY, own_mb), (WORKER_MAPPED, all_mb))
        for n, value in enumerate(values)
    ]
    for device, mb in (free_mb or {}).items():
        rows.append((0, 0, SECOND, MEMORY, device, 1e9, 1e9 + 1e6 * mb))
    run = a_run([{"fetch": 2.0}] * 80, steps=steps_of([0.25] * 20), **made)
    return replace(run, all_resources=pl.DataFrame(rows, RESOURCES, orient="row", strict=False))


class TestGrowth:
    def test_pages_that_are_copied_add_nothing_to_what_is_mapped(self):
        """Half of a page that one worker shares was its own: 10 MB a second more are 20 MB copied.

        It ends when all is its own.
        """
        found = memory_growth(looked_at([100, 110, 120, 130], [500] * 4, free_mb={"machine": 900}))

        assert found.copied
        assert 20e6 == pytest.approx(found.bytes_per_s)
        assert 60e6 == pytest.approx(found.grown_bytes)
        assert (500e6, None) == (found.end_bytes, found.left_s)
        assert found.sentence().startswith("The workers copy what they share with the main process")

    def test_what_is_kept_is_new_memory_and_fills_the_nearest_limit(self):
        """20 MB a second more, also of what is mapped: 400 MB are full in 20 s."""
        limits = {"machine": 900, "container": 400}

        found = memory_growth(looked_at([100, 120, 140, 160], [500, 520, 540, 560], free_mb=limits))

        assert not found.copied
        assert (20.0, "container") == (pytest.approx(found.left_s), found.limit)
        assert found.end_bytes is None
        assert found.sentence().endswith("the memory of the container is full in 20 s")

    def test_workers_that_end_with_the_epoch_fill_nothing(self):
        """New ones came after 2 s: 900 MB at 20 MB a second are not met."""
        run = looked_at([100, 120, 140, 160], [500, 520, 540, 560], free_mb={"machine": 900})
        made = {"worker": 0, "asked_ns": 0, "taken_ns": 0}
        lives = [
            made | {"pid": pid, "batch": pid + place, "made_ns": place * SECOND}
            for pid in (100, 200)
            for place in (0, 1, 2)
        ]
        found = memory_growth(replace(run, deliveries=deliveries_of(*lives)))

        assert found is None

    @pytest.mark.parametrize(
        "own_mb",
        [
            pytest.param([100, 160, 160, 160], id="a cache that was filled"),
            pytest.param([100, 160, 162, 163], id="a cache that is nearly full"),
            pytest.param([100, 150, 120, 170], id="garbage that is collected now and then"),
            pytest.param([100, 100, 100, 160], id="one large sample"),
            pytest.param([100, 160], id="two looks"),
        ],
    )
    def test_what_does_not_grow_all_the_time_is_nothing(self, own_mb):
        """Each of them has more in the end than in the beginning."""
        growth = memory_growth(looked_at(own_mb, [5 * mb for mb in own_mb]))

        assert growth is None or not growth.matters


class TestWhereItShows:
    def test_the_chart_is_titled_with_it(self):
        """Nothing is saturated: the growth is the answer, and own and mapped memory are a row."""
        run = looked_at([1000, 1100, 1200, 1300], [5000] * 4)

        figure = run.plot("resources")

        assert figure.title.startswith("The workers copy what they share with the main process")
        shown = "\n".join(text.get_text() for ax in figure.axes for text in ax.texts)
        assert "workers' memory" in shown
        assert "5.0 GB with shared (dashed)" in shown

    def test_a_run_says_it_in_its_notes(self):
        """In a terminal, too; where it is a heap that settles nothing is said."""
        grows = str(looked_at([1000, 1100, 1200, 1300], [5000] * 4))
        settles = str(looked_at([1000, 1001, 1002, 1003], [5000] * 4))

        assert "The workers copy what they share" in " ".join(grows.split())
        assert "The workers copy what they share" not in " ".join(settles.split())


class Kept(Dataset):
    """One megabyte more with every sample, none of it from what the main process has freed."""

    def __init__(self):
        self.kept = []

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.02)
        page = mmap.mmap(-1, 1_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.write(bytes(1_000_000))
        self.kept.append(page)
        return index


@pytest.mark.slow
@pytest.mark.skipif(not PROC.exists(), reason="no /proc")
class TestRealWorkers:
    @staticmethod
    def recorded(dataset):
        loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork")
        return ss.record(loader, ss.simulated_step(0.02), batches=160, budget_s=30)

    def test_a_list_that_grows_is_a_leak(self):
        """A megabyte a sample, to a few per cent, and no end."""
        found = memory_growth(self.recorded(Kept()))

        assert found.matters
        assert found.copied_share < 0.25
        assert found.bytes_per_s > 10e6
        assert found.left_s > 0
