"""The numbers that the rules ask for, from runs whose times are planted to the millisecond."""

from dataclasses import replace
from typing import ClassVar

import polars as pl
import pytest
from support.build_ladder import a_ladder
from support.build_run import a_run, deliveries_of, resources_of, spans_of, steps_of

from stallscope.model.batch_times import MachineUse, making, use
from stallscope.model.exposure import exposure
from stallscope.model.loop_time import starts
from stallscope.stages import LOOP, QUEUED, THREADS, WORKER
from stallscope.stats import stall_interval
from stallscope.verbs.diagnose.facts import _of_spans, gain_of
from stallscope.verbs.ladder.result import AS_IT_IS, BATCHES, FETCHED

MANY = 12
BATCH_MS = 40
SAMPLE = {"fetch": 2.0, "decode": 5.0, "Blur": 3.0}
"""Milliseconds; four of them are a batch."""


def starving(samples=None, **fields):
    """Return a run whose worker makes batches of 40 ms and whose loop waits for each."""
    waits_s = [BATCH_MS / 1e3] * MANY
    delivered = [
        {
            "batch": number,
            "asked_ns": 0,
            "taken_ns": number * BATCH_MS * 1_000_000,
            "made_ns": (number + 1) * BATCH_MS * 1_000_000,
            "arrived_ns": (number + 1) * BATCH_MS * 1_000_000,
        }
        for number in range(MANY)
    ]
    columns = {"steps": steps_of(waits_s, step_s=0.0), **fields}
    return a_run(samples or [SAMPLE] * 4 * MANY, deliveries=deliveries_of(*delivered), **columns)


class TestExposure:
    def test_stalls_are_divided_into_groups_of_work(self):
        """A loop that waits for the whole of each batch waits for its stages as they are."""
        groups = exposure(starving(), MachineUse()).groups()

        assert groups == pytest.approx({"decode": 0.5, "transform": 0.3, "fetch": 0.2})

    def test_workers_without_a_pause_wait_for_all_their_work_alike(self):
        """Stalls during the last stage are divided among all stages by their work."""
        late = starving(steps=steps_of([0.003] * MANY, start_s=0.037, step_s=0.037))

        groups = exposure(late, MachineUse(), busy_share=1.0).groups()

        assert {"transform": 1.0} == pytest.approx(exposure(late, MachineUse()).groups())
        assert groups == pytest.approx({"decode": 0.5, "transform": 0.3, "fetch": 0.2})

    def test_batches_that_were_not_recorded_are_made_like_the_others(self):
        """This also holds if the loop stalls for no recorded batch."""
        half = MANY // 2
        seen = pl.col("batch") < half
        rest = MANY - half
        steps = steps_of([0.0] * half + [0.04] * rest, step_s=[0.04] * half + [0.0] * rest)
        late = starving(steps=steps)
        few = replace(
            late, all_spans=late.all_spans.filter(seen), batches=late.batches.filter(seen)
        )

        groups = exposure(few, MachineUse()).groups()

        assert "not recorded" in few.parts()["part"].to_list()
        assert groups == pytest.approx({"decode": 0.5, "transform": 0.3, "fetch": 0.2})

    def test_what_does_not_compute_waits(self):
        """Reading that uses no CPU time is waiting; decoding that does is not."""
        run = starving(cpu_share={"fetch": 0.0, "decode": 1.0, "Blur": 1.0})

        exposed = exposure(run, MachineUse(worker_cpu=0.8, queued_share=0.0))

        assert 0.2 == pytest.approx(exposed.waiting("fetch"))
        assert 0.0 == exposed.waiting("decode", "transform")

    def test_queueing_for_a_core_is_no_waiting(self):
        """Half of the time computing and half in the queue for a core: nothing is waited for."""
        run = starving(cpu_share={"fetch": 0.5, "decode": 0.5, "Blur": 0.5})

        exposed = exposure(run, MachineUse(worker_cpu=0.5, queued_share=0.5))

        assert 0.0 == pytest.approx(exposed.waiting("fetch", "decode", "transform"))

    def test_without_stalls_there_are_no_parts(self):
        run = a_run([SAMPLE] * 8, steps=steps_of([0.0, 0.0]))

        assert () == exposure(run, MachineUse()).parts


class TestMaking:
    def test_load_is_what_workers_need_over_what_the_step_leaves(self):
        """One worker that takes 40 ms for a batch, and a loop that uses one for 20 ms: 2."""
        run = a_run(
            [SAMPLE] * 4 * MANY,
            steps=steps_of([0.02] * MANY, step_s=0.02),
            deliveries=deliveries_of(
                *({"batch": number, "taken_ns": 0, "made_ns": 40_000_000} for number in range(MANY))
            ),
        )

        batch_times = making(run, 1)

        assert 2.0 == pytest.approx(batch_times.load)
        assert 1.0 == pytest.approx(batch_times.busy_share)

    @pytest.mark.parametrize(
        ("made_ms", "arrived_ms", "takes_ms"), [(5, 8, 3), (-20, 3, 3), (5, 30, 5)]
    )
    def test_receiving_is_what_the_loop_waits_for_batches_that_are_made(
        self, made_ms, arrived_ms, takes_ms
    ):
        """Receiving begins when the batch is made or the loop waits, and ends with the wait."""
        steps = steps_of([0.01] * MANY, step_s=0.02)
        moments = [
            {
                "batch": number,
                "taken_ns": begin - 30_000_000,
                "made_ns": begin + made_ms * 1_000_000,
            }
            | {"arrived_ns": begin + arrived_ms * 1_000_000}
            for number, begin in enumerate(steps["start_ns"])
        ]

        run = a_run([SAMPLE] * 4 * MANY, steps=steps, deliveries=deliveries_of(*moments))

        handover = making(run, 1).handover
        assert ((made_ms + 30) / 1e3, takes_ms / 1e3, 0.03) == pytest.approx(handover)
        assert making(run, 0).handover is None

    def test_a_run_without_deliveries_has_none(self):
        """Unknown times are None, not 0."""
        assert making(a_run([SAMPLE] * 8), 1) is None


class TestGain:
    WHOLE: ClassVar = {AS_IT_IS: 0.4, FETCHED: 0.2, BATCHES: 0.1}

    @pytest.mark.parametrize("missing", [AS_IT_IS, BATCHES])
    def test_half_a_ladder_says_nothing(self, missing):
        """The loop may wait for the part that was not cached."""
        part = {rung: took_s for rung, took_s in self.WHOLE.items() if rung != missing}

        assert gain_of(a_ladder(part)) is None


class TestUse:
    def test_means_are_of_the_workers(self):
        resources = resources_of(
            {
                (WORKER, "100"): 0.5,
                (LOOP, "7"): 0.25,
                (QUEUED, "100"): 0.5,
                (QUEUED, "7"): 0.125,
                (THREADS, "100"): 17,
            },
            2,
        )
        run = a_run([SAMPLE] * 80, steps=steps_of([0.0] * 20))
        run = replace(run, all_resources=resources)

        machine_use = use(run, 1)

        assert (0.5, 0.25, 0.5, 0.125, 17) == (
            machine_use.worker_cpu,
            machine_use.loop_cpu,
            machine_use.queued_share,
            machine_use.loop_queued_share,
            machine_use.threads,
        )

    def test_what_was_not_read_is_none(self):
        """A machine without these counters gives None."""
        assert MachineUse() == use(a_run([SAMPLE] * 8, steps=steps_of([0.1, 0.1])), 1)


def begins(run, workers, length=None):
    """Return the starts of workers that end with their epoch."""
    return starts(run, workers, persistent=False, epoch_batches=length)


class TestStarts:
    @pytest.mark.parametrize("length", [10, None])
    def test_the_start_up_of_an_epoch_is_found(self, length):
        """Epochs of ten steps of 0.1 s begin with 1 s, half of their time; so do a stream's."""
        wait_s = ([0.9] + [0.0] * 9) * 3
        run = a_run(
            [SAMPLE] * 4,
            steps=steps_of(
                wait_s,
                step_s=0.1,
                epoch=[number // 10 for number in range(30)],
                batch=[number % 10 for number in range(30)],
                restart_s=([0.1] + [None] * 9) * 3,
            ),
            side_spans=spans_of({"stage": "end of epoch", "start_ns": 0, "end_ns": 0}),
        )

        begin = begins(run, 1, length)

        assert begin.ended
        assert 2 == begin.epochs
        assert 0.5 == pytest.approx(begin.share)

    def test_persistent_workers_start_once(self):
        run = a_run([SAMPLE] * 4, steps=steps_of([1.0] + [0.0] * 9))

        assert 0.0 == starts(run, 1, persistent=True, epoch_batches=10).share


class TestInterval:
    def test_few_steps_give_the_widest_interval(self):
        """Three rounds are too few for an interval."""
        steps = steps_of([0.1] * 6)

        assert (0.0, 1.0) == stall_interval(
            steps,
            pl.DataFrame(schema={"rank": pl.Int16, "step": pl.Int32, "stall_s": pl.Float64}),
            2,
        )


READ_ON = [("fetch", 1.0), ("decode", 1.0), ("fetch", 0.1), ("decode", 1.0)]
"""A decoder that reads on while it decodes one image."""


@pytest.mark.parametrize(
    ("sample", "calls"),
    [
        (READ_ON, 1.0),
        ([*READ_ON, ("Blur", 1.0), *READ_ON], 2.0),
        (3 * [("header", 1.0), *READ_ON], 3.0),
    ],
    ids=["one image", "two, each with a transform", "three in a row, each with a header"],
)
def test_reading_on_is_no_further_call(sample, calls):
    """Calls for each sample are counted by images, not by reads."""
    run = a_run([sample] * MANY)
    reads = pl.when(pl.col("stage") == "header").then(pl.lit("fetch")).otherwise(pl.col("kind"))
    run = replace(run, all_spans=run.all_spans.with_columns(kind=reads))

    assert calls == max(_of_spans(run)["calls"].values())
