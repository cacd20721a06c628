"""Which resource was saturated, out of planted use."""

from __future__ import annotations

import polars as pl
import pytest
from support.build_run import resources_of, steps_of

from stallscope import stages
from stallscope.model.attribution import find_stalls
from stallscope.run.resources import saturation, sentence

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
"""No resource is anywhere near its end."""
WAITS = [0.5] * 10
"""Ten steps of a second, each of which waits for half of it."""


def judged(use, waits=WAITS, *, workers=1, **columns):
    steps = steps_of(waits, step_s=[1.0 - wait for wait in waits], **columns)
    return saturation(resources_of(use, LENGTH_S), steps, find_stalls(steps), workers=workers)


class TestUsedUp:
    def test_all_cores(self):
        """Every core that may be used is busy; the title says for how much of the stalls."""
        found = judged(CALM | {(stages.CORE, "0"): 0.97, (stages.CORE, "1"): 0.99})

        assert [stages.CORE] == [use["resource"] for use in found.saturated]
        assert sentence(found).startswith(
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
        """By its device, where it has one."""
        assert sentence(judged(CALM | use)).startswith(f"{subject} was saturated")

    @pytest.mark.parametrize(
        "use", [{(stages.RECEIVED, "eth0"): 1e12}, {(stages.DISK_WRITE, "vda"): 1e12}]
    )
    def test_is_not_claimed_without_a_limit(self, use):
        """How much a disk or a virtual link could do is not known."""
        assert [] == judged(CALM | use).saturated

    def test_counts_in_the_stalls(self):
        """A disk that is busy only while the loop computes is not what it waits for."""
        disk = [1.0] * 5 + [0.0] * 5
        waits = [0.0] * 5 + [0.5] * 5

        found = judged(CALM | {(stages.DISK_BUSY, "vda"): (disk, 1.0)}, waits)

        row = found.uses.filter(pl.col("resource") == stages.DISK_BUSY).to_dicts()[0]
        assert (0.5, 0.0, False) == (row["full_share"], row["stalled_share"], row["saturated"])


class TestNothing:
    def test_is_used_up_and_the_loop_stands_still(self):
        """Then it is a lock, or a limit in the software."""
        assert (
            "No resource that the loop needed was saturated while it stalled (50% of the time): "
            "look for a lock or a software limit"
        ) == sentence(judged(CALM))

    def test_is_used_up_and_the_loop_runs(self):
        """All is well."""
        told = sentence(judged(CALM, [0.0] * 10))

        assert "No resource was saturated, and the loop hardly stalled" == told

    def test_of_the_machine_but_the_workers(self):
        """A worker on each of a few cores, others free: more workers."""
        told = sentence(judged(CALM | {(stages.WORKER, "100"): 0.98}))

        assert (
            "The 1 worker computed all the time, while the cores were 60% idle: more workers may "
            "help"
        ) == told

    def test_of_the_machine_but_the_main_process(self):
        """Without workers it makes the batches; with workers its own use does not matter."""
        busy = CALM | {(stages.LOOP, "99"): 0.99}

        assert sentence(judged(busy, workers=0)).startswith("The main process, which loads")
        assert [] == judged(busy, workers=1).saturated

    def test_can_be_said_of_a_moment(self):
        """Two half seconds carry no judgement."""
        steps = steps_of([0.5])
        found = saturation(resources_of(CALM, 1), steps, find_stalls(steps), workers=1)

        assert "The steady state was too short to tell" in sentence(found)


def test_cores_of_other_processes_are_said():
    """Both cores are busy, and the recording's own processes had little of them."""
    told = sentence(judged(CALM | {(stages.CORE, "0"): 1.0, (stages.CORE, "1"): 1.0}))

    assert told.endswith("other processes used 60% of the cores")
