"""Resources: their table, their saturation, and the growth of the workers' memory."""

import mmap
import time
from dataclasses import replace

import polars as pl
import pytest
from support.build_run import a_run, deliveries_of, resources_of, steps_of
from torch.utils.data import DataLoader, Dataset

import stallscope as ss
from stallscope import stages
from stallscope.model.attribution import find_stalls
from stallscope.run.decode import RESOURCES, table
from stallscope.run.resource_sampler import PROC
from stallscope.run.resources import memory_growth, saturation, sentence
from stallscope.stages import MEMORY, WORKER_MAPPED, WORKER_MEMORY

SECOND = 1_000_000_000


def sampled(*samples, **entry):
    """Return lines as a sampler writes them: one a second from second 10 on."""
    lines = [{"time_ns": (10 + at) * SECOND, "read": read} for at, read in enumerate(samples)]
    return [entry, *lines] if entry else lines


def table_of(entries):
    return table(entries, origin_ns=9 * SECOND, rank=0)


class TestTable:
    def test_a_counter_becomes_a_rate_over_the_time_between_two_samples(self):
        """From 1 s to 1.25 s of CPU time between two samples is a quarter of a core."""
        frame = table_of(sampled({stages.WORKER: {"7": 1.0}}, {stages.WORKER: {"7": 1.25}}))

        row = (0, SECOND, 2 * SECOND, stages.WORKER, "7", 0.25, None)
        assert [row] == frame.rows()
        assert list(RESOURCES) == frame.columns

    def test_a_value_that_is_no_counter_is_unchanged(self):
        """Bytes in use at the end of the interval."""
        frame = table_of(sampled({stages.MEMORY: {"machine": 5}}, {stages.MEMORY: {"machine": 3}}))

        assert [3.0] == frame["value"].to_list()

    def test_rare_readings_last_until_the_next_one(self):
        """A sample without the value is skipped."""
        read = {stages.SHM: {"/dev/shm": 1}}
        frame = table_of(sampled(read, {}, {}, read))

        assert [(SECOND, 4 * SECOND)] == frame.select("start_ns", "end_ns").rows()

    def test_a_limit_stands_beside_each_value(self):
        """The limit is that of the resource on the device; others have none."""
        read = {stages.DISK_BUSY: {"a": 0.0, "b": 0.0}}
        frame = table_of(sampled(read, read, limits={stages.DISK_BUSY: {"a": 1.0}}))

        assert {"a": 1.0, "b": None} == dict(frame.select("device", "limit").iter_rows())

    def test_a_missing_value_is_null(self):
        frame = table_of(sampled(missing=[stages.GPU, stages.GPU_MEMORY]))

        assert [(stages.GPU, None), (stages.GPU_MEMORY, None)] == frame.select(
            "resource", "value"
        ).rows()


LENGTH_S = 10
CALM = {
    (stages.CORE, "0"): 0.3,
    (stages.CORE, "1"): 0.5,
    (stages.MEMORY, "machine"): (8e9, 32e9),
    (stages.DISK_BUSY, "vda"): (0.1, 1.0),
    (stages.DISK_READ, "vda"): 5e8,
    (stages.WORKER, "100"): 0.6,
    (stages.QUEUED, "100"): 0.0,
    (stages.LOOP, "99"): 0.2,
}
"""Use of each resource while all of them are far from their limits."""
WAITS = [0.5] * 10
"""Ten steps of a second, each of which waits for half of it."""


def judged(use, waits=WAITS, *, workers=1):
    steps = steps_of(waits, step_s=[1.0 - wait for wait in waits])
    return saturation(resources_of(use, LENGTH_S), steps, find_stalls(steps), workers=workers)


class TestUsedUp:
    def test_all_cores(self):
        """Every core that may be used is busy; the title says for which share of the stalls."""
        judgement = judged(CALM | {(stages.CORE, "0"): 0.97, (stages.CORE, "1"): 0.99})

        assert [stages.CORE] == [use["resource"] for use in judgement.saturated]
        assert sentence(judgement).startswith(
            "The 2 usable cores were saturated for 100% of the stall time; the loop stalls 50% of"
        )

    @pytest.mark.parametrize(
        ("use", "subject"),
        [
            ({(stages.QUOTA, "container"): (1.45, 1.5)}, "The container's CPU quota of 1.5 cores"),
            ({(stages.MEMORY, "machine"): (31e9, 32e9)}, "The memory of the machine"),
            ({(stages.SHM, "/dev/shm"): (62e6, 64e6)}, "/dev/shm"),
            ({(stages.DISK_BUSY, "vda"): (0.98, 1.0)}, "The disk vda"),
            ({(stages.RECEIVED, "eth0"): (1.2e8, 1.25e8)}, "The network link eth0 (in)"),
            ({(stages.GPU, "0"): (0.99, 1.0)}, "GPU 0"),
        ],
    )
    def test_is_named(self, use, subject):
        assert sentence(judged(CALM | use)).startswith(f"{subject} was saturated")

    @pytest.mark.parametrize(
        "use", [{(stages.RECEIVED, "eth0"): 1e12}, {(stages.DISK_WRITE, "vda"): 1e12}]
    )
    def test_is_not_claimed_without_a_limit(self, use):
        """The limit of a disk or a virtual link is unknown."""
        assert [] == judged(CALM | use).saturated

    def test_counts_in_the_stalls(self):
        """A disk that is busy only while the loop computes does not cause its waits."""
        disk = [1.0] * 5 + [0.0] * 5
        waits = [0.0] * 5 + [0.5] * 5

        judgement = judged(CALM | {(stages.DISK_BUSY, "vda"): (disk, 1.0)}, waits)

        row = judgement.uses.filter(pl.col("resource") == stages.DISK_BUSY).to_dicts()[0]
        assert (0.5, 0.0, False) == (row["full_share"], row["stalled_share"], row["saturated"])


class TestNothing:
    def test_is_used_up_and_the_loop_stands_still(self):
        """The loop waits for a lock, or for a limit in the software."""
        assert (
            "No resource that the loop needed was saturated while it stalled (50% of the time): "
            "look for a lock or a software limit"
        ) == sentence(judged(CALM))

    def test_is_used_up_and_the_loop_runs(self):
        title = sentence(judged(CALM, [0.0] * 10))

        assert "No resource was saturated, and the loop hardly stalled" == title

    def test_of_the_machine_but_the_workers(self):
        """A worker on each of a few cores, others free: the fix is more workers."""
        title = sentence(judged(CALM | {(stages.WORKER, "100"): 0.98}))

        assert (
            "The 1 worker computed all the time, while the cores were 60% idle: more workers may "
            "help"
        ) == title

    def test_of_the_machine_but_the_main_process(self):
        """The main process counts only without workers, where it makes the batches."""
        busy = CALM | {(stages.LOOP, "99"): 0.99}

        assert sentence(judged(busy, workers=0)).startswith("The main process, which loads")
        assert [] == judged(busy, workers=1).saturated

    def test_is_not_judged_in_a_moment(self):
        """Two half seconds are too short for a judgement."""
        steps = steps_of([0.5])
        judgement = saturation(resources_of(CALM, 1), steps, find_stalls(steps), workers=1)

        assert "The steady state was too short to tell" in sentence(judgement)


def test_cores_of_other_processes_are_named():
    """Both cores are busy, mostly with processes of others."""
    title = sentence(judged(CALM | {(stages.CORE, "0"): 1.0, (stages.CORE, "1"): 1.0}))

    assert title.endswith("other processes used 60% of the cores")


def looked_at(own_mb, all_mb, *, free_mb=None):
    """Return a run of one worker whose memory was sampled once a second."""
    rows = [
        (0, n * SECOND, (n + 1) * SECOND, resource, "100", 1e6 * value, None)
        for resource, values in ((WORKER_MEMORY, own_mb), (WORKER_MAPPED, all_mb))
        for n, value in enumerate(values)
    ]
    for device, mb in (free_mb or {}).items():
        rows.append((0, 0, SECOND, MEMORY, device, 1e9, 1e9 + 1e6 * mb))
    run = a_run([{"fetch": 2.0}] * 80, steps=steps_of([0.25] * 20))
    return replace(run, all_resources=pl.DataFrame(rows, RESOURCES, orient="row", strict=False))


class TestGrowth:
    def test_pages_that_are_copied_add_nothing_to_what_is_mapped(self):
        """A page that one worker shares is half its own: 10 MB a second more are 20 MB copied.

        It ends when all is its own.
        """
        growth = memory_growth(looked_at([100, 110, 120, 130], [500] * 4, free_mb={"machine": 900}))

        assert growth.copied
        assert 20e6 == pytest.approx(growth.bytes_per_s)
        assert 60e6 == pytest.approx(growth.grown_bytes)
        assert (500e6, None) == (growth.end_bytes, growth.left_s)
        assert growth.sentence().startswith(
            "The workers copy what they share with the main process"
        )

    def test_kept_memory_is_new_and_fills_the_nearest_limit(self):
        """20 MB a second more, also of mapped memory, fill 400 MB in 20 s."""
        limits = {"machine": 900, "container": 400}

        growth = memory_growth(
            looked_at([100, 120, 140, 160], [500, 520, 540, 560], free_mb=limits)
        )

        assert not growth.copied
        assert (20.0, "container") == (pytest.approx(growth.left_s), growth.limit)
        assert growth.end_bytes is None
        assert growth.sentence().endswith("the memory of the container is full in 20 s")

    def test_workers_that_end_with_the_epoch_fill_nothing(self):
        """New workers came after 2 s, so 20 MB a second never fill 900 MB."""
        run = looked_at([100, 120, 140, 160], [500, 520, 540, 560], free_mb={"machine": 900})
        same = {"worker": 0, "asked_ns": 0, "taken_ns": 0}
        lives = [
            same | {"pid": pid, "batch": pid + place, "made_ns": place * SECOND}
            for pid in (100, 200)
            for place in (0, 1, 2)
        ]
        growth = memory_growth(replace(run, deliveries=deliveries_of(*lives)))

        assert growth is None

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
    def test_memory_that_grows_only_at_times_is_no_leak(self, own_mb):
        """Memory that ends higher without growing throughout is no leak."""
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
        grows = str(looked_at([1000, 1100, 1200, 1300], [5000] * 4))
        settles = str(looked_at([1000, 1001, 1002, 1003], [5000] * 4))

        assert "The workers copy what they share" in " ".join(grows.split())
        assert "The workers copy what they share" not in " ".join(settles.split())


class Kept(Dataset):
    """Dataset that keeps one more megabyte with every sample, none of it freed before."""

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
        """The leak is a megabyte a sample, within a few per cent, and never ends."""
        growth = memory_growth(self.recorded(Kept()))

        assert growth.matters
        assert growth.copied_share < 0.25
        assert growth.bytes_per_s > 10e6
        assert growth.left_s > 0
