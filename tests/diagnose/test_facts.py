"""The numbers that the rules ask for, from runs whose times are planted to the millisecond."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import polars as pl
import pytest
from support.build_ladder import a_ladder
from support.build_run import a_run, deliveries_of, resources_of, spans_of, steps_of

from stallscope.diagnose.facts import (
    facts,
    gain_of,
    reading,
    spikes,
)
from stallscope.diagnose.setup import Setup
from stallscope.ladder.result import AS_IT_IS, BATCHES, FETCHED
from stallscope.model.batch_times import making
from stallscope.model.exposure import CROWDED, exposure, waiting_s
from stallscope.model.machine_use import MachineUse, use
from stallscope.model.starts import starts
from stallscope.stages import LOOP, QUEUED, THREADS, WORKER
from stallscope.stats import stall_interval

MANY = 12
BATCH_MS = 40
SAMPLE = {"fetch": 2.0, "decode": 5.0, "Blur": 3.0}
"""Milliseconds; four of them are a batch."""


def starving(samples=None, **made):
    """One worker that makes batches of 40 ms, and a loop that waits for each of them."""
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
    given = {"steps": steps_of(waits_s, step_s=0.0), **made}
    return a_run(samples or [SAMPLE] * 4 * MANY, deliveries=deliveries_of(*delivered), **given)


class TestExposure:
    def test_stalls_are_divided_into_groups_of_work(self):
        """A loop that waits for the whole of each batch waits for its stages as they are."""
        found = exposure(starving(), MachineUse()).groups()

        assert found == pytest.approx({"decode": 0.5, "transform": 0.3, "fetch": 0.2})

    def test_workers_without_a_pause_wait_for_all_their_work_alike(self):
        """Stalls that fall upon what is done last are given to every stage by its work."""
        late = starving(steps=steps_of([0.003] * MANY, start_s=0.037, step_s=0.037))

        found = exposure(late, MachineUse(), busy_share=1.0).groups()

        assert {"transform": 1.0} == pytest.approx(exposure(late, MachineUse()).groups())
        assert found == pytest.approx({"decode": 0.5, "transform": 0.3, "fetch": 0.2})

    def test_batches_that_were_not_recorded_are_made_like_the_others(self):
        """Also where the loop stalls for none that was recorded: bursts may fall between them."""
        half = MANY // 2
        seen = pl.col("batch") < half
        rest = MANY - half
        steps = steps_of([0.0] * half + [0.04] * rest, step_s=[0.04] * half + [0.0] * rest)
        late = starving(steps=steps)
        few = replace(
            late, all_spans=late.all_spans.filter(seen), batches=late.batches.filter(seen)
        )

        found = exposure(few, MachineUse()).groups()

        assert "not recorded" in few.parts()["part"].to_list()
        assert found == pytest.approx({"decode": 0.5, "transform": 0.3, "fetch": 0.2})

    def test_workers_that_pause_share_the_stalls_with_what_lies_beside_them(self):
        """Of workers that are busy 80% of their time, that much of a stall is their work."""
        late = starving(steps=steps_of([0.003] * MANY, start_s=0.043, step_s=0.037))

        found = exposure(late, MachineUse(), busy_share=0.8).groups()

        assert 0.8 == pytest.approx(sum(found[name] for name in ("decode", "transform", "fetch")))

    def test_a_stage_in_samples_and_beside_them_is_one(self):
        """8 ms a sample that wait and 8 ms a batch that compute: a fifth computes."""
        busy = {"cpu_share": {"parse": 0.0, "collate": 1.0}, "collate_ms": 8.0}
        run = starving([{"parse": 8.0}] * 4 * MANY, **busy)
        spans = run.all_spans.with_columns(pl.col("stage", "kind").cast(pl.String))
        renamed = spans.with_columns(
            pl.col("stage").replace("collate", "parse"), kind=pl.lit("transform")
        ).cast(run.all_spans.schema)

        (part,) = exposure(replace(run, all_spans=renamed), MachineUse(), busy_share=1.0).parts

        assert "parse" == part.stage
        assert 0.8 == pytest.approx(part.waiting)

    def test_what_does_not_compute_waits(self):
        """Reading that uses no CPU time is waiting; decoding that does is not."""
        run = starving(cpu_share={"fetch": 0.0, "decode": 1.0, "Blur": 1.0})

        found = exposure(run, MachineUse(worker_cpu=0.8, queued_share=0.0))

        assert 0.2 == pytest.approx(found.waiting("fetch"))
        assert 0.0 == found.waiting("decode", "transform")

    def test_what_lies_between_samples_waits_for_nothing_but_a_core(self):
        """A worker loses its core where it reads the clock: that is no waiting of the batch."""
        run = starving([SAMPLE | {"batch": 10.0}] * 4 * MANY, cpu_share={"batch": 0.1})

        found = exposure(run, MachineUse(worker_cpu=0.5, queued_share=0.1))

        assert 0.0 == found.waiting("collate")

    def test_wanting_a_core_is_no_waiting(self):
        """Half of the time computing and half in the queue for a core: nothing is waited for."""
        run = starving(cpu_share={"fetch": 0.5, "decode": 0.5, "Blur": 0.5})

        found = exposure(run, MachineUse(worker_cpu=0.5, queued_share=0.5))

        assert 0.0 == pytest.approx(found.waiting("fetch", "decode", "transform"))

    def test_waiting_of_a_batch_is_told_in_seconds(self):
        """Four samples that wait 2 ms each are 8 ms a batch."""
        run = starving(cpu_share={"fetch": 0.0, "decode": 1.0, "Blur": 1.0})

        assert 0.008 == pytest.approx(waiting_s(run, MachineUse(worker_cpu=0.8, queued_share=0.0)))

    def test_sending_that_mostly_waits_for_a_core_is_no_sending(self):
        """One batch is sent at once, the others late: the delay is a matter of cores."""
        sends_ms = [1.0] * 3 + [10.0] * (MANY - 3)
        sent_ns = [int(one * 1e6) for one in sends_ms]
        begins_ns = [number * BATCH_MS * 1_000_000 for number in range(MANY)]
        delivered = [
            {"batch": number, "asked_ns": 0, "taken_ns": 0, "made_ns": begin, "pickle_ns": begin}
            | {"sent_ns": begin + sent, "arrived_ns": begin + sent}
            for number, (begin, sent) in enumerate(zip(begins_ns, sent_ns, strict=True))
        ]
        spans = [
            {"batch": number, "stage": "send", "start_ns": begin, "end_ns": begin + sent}
            for number, (begin, sent) in enumerate(zip(begins_ns, sent_ns, strict=True))
        ]
        steps = steps_of([one / 1e3 for one in sends_ms], step_s=0.0)
        steps = steps.with_columns(
            start_ns=pl.Series(begins_ns), end_ns=pl.Series(begins_ns) + pl.Series(sent_ns)
        )
        run = a_run(
            [SAMPLE] * 4 * MANY,
            steps=steps,
            deliveries=deliveries_of(*delivered),
            side_spans=spans_of(*spans),
        )

        found = exposure(run, MachineUse()).groups()

        assert found[CROWDED] > found["sending"] > 0

    def test_without_stalls_there_are_no_parts(self):
        """A loop that never waits has nothing to be divided."""
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

        found = making(run, 1)

        assert 2.0 == pytest.approx(found.load)
        assert 1.0 == pytest.approx(found.busy_share)

    @pytest.mark.parametrize(("made", "arrived", "takes_ms"), [(5, 8, 3), (-20, 3, 3), (5, 30, 5)])
    def test_receiving_is_what_the_loop_waits_for_batches_that_are_made(
        self, made, arrived, takes_ms
    ):
        """From when the batch is made or the loop waits, up to its arrival or the wait's end."""
        steps = steps_of([0.01] * MANY, step_s=0.02)
        moments = [
            {"batch": number, "taken_ns": begin - 30_000_000, "made_ns": begin + made * 1_000_000}
            | {"arrived_ns": begin + arrived * 1_000_000}
            for number, begin in enumerate(steps["start_ns"])
        ]

        run = a_run([SAMPLE] * 4 * MANY, steps=steps, deliveries=deliveries_of(*moments))

        found = making(run, 1).handover
        assert ((made + 30) / 1e3, takes_ms / 1e3, 0.03) == pytest.approx(found)
        assert making(run, 0).handover is None

    def test_a_run_without_deliveries_has_none(self):
        """What was never seen is None, and not 0."""
        assert making(a_run([SAMPLE] * 8), 1) is None


class TestGain:
    WHOLE: ClassVar = {AS_IT_IS: 0.4, FETCHED: 0.2, BATCHES: 0.1}

    def test_is_the_whole_way(self):
        """From the loop as it is to batches in memory: 4."""
        assert 4.0 == pytest.approx(gain_of(a_ladder(self.WHOLE)).factor)

    @pytest.mark.parametrize("missing", [AS_IT_IS, BATCHES])
    def test_half_a_ladder_says_nothing(self, missing):
        """What was not cached may be what the loop waits for."""
        part = {rung: took_s for rung, took_s in self.WHOLE.items() if rung != missing}

        assert gain_of(a_ladder(part)) is None


class TestReading:
    def test_what_was_not_recorded_was_read_too(self, tmp_path):
        """Where one batch in two was recorded, twice the bytes of these were read."""
        file = tmp_path / "a"
        file.write_bytes(bytes(1000))
        samples = [SAMPLE] * 4 * MANY
        every = reading(a_run(samples, paths=[str(file)], steps=steps_of([0.0] * MANY)))
        half = reading(a_run(samples, paths=[str(file)], steps=steps_of([0.0] * 2 * MANY)))

        assert 4000 / 0.1 == pytest.approx(every.bytes_per_s, rel=0.1)
        assert half.bytes_per_s == pytest.approx(every.bytes_per_s, rel=0.1)


class TestUse:
    def test_means_are_of_the_workers(self):
        """Queueing is that of the workers, and not of the loop; threads are a worker's."""
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

        found = use(run, 1)

        assert (0.5, 0.25, 0.5, 0.125, 17) == (
            found.worker_cpu,
            found.loop_cpu,
            found.queued_share,
            found.loop_queued_share,
            found.threads,
        )

    def test_what_was_not_read_is_none(self):
        """A machine without these counters gives None."""
        assert MachineUse() == use(a_run([SAMPLE] * 8, steps=steps_of([0.1, 0.1])), 1)


@pytest.mark.parametrize(("every", "validates"), [(6, True), (1, False)])
def test_a_validation_is_no_part_of_the_loops_own(every, validates):
    """A loop over another loader after each step serves the step; one now and then is another."""
    steps = steps_of([0.0] * MANY, step_s=0.05, other_s=0.05)
    spans = [
        {
            "pid": 1,
            "worker": None,
            "batch": place,
            "stage": "another loader",
            "start_ns": int(steps["end_ns"][place] + 50e6),
            "end_ns": int(steps["end_ns"][place] + 100e6),
        }
        for place in range(0, MANY, every)
    ]

    found = facts(a_run([SAMPLE] * 4 * MANY, steps=steps, side_spans=spans_of(*spans)), Setup(0))

    share = 0.5 / every
    assert (share if validates else 0.0) == pytest.approx(found.validation_share)
    assert validates != ("another loader" in found.own_parts)


def begins(run, workers, length=None):
    """Of workers that end with their epoch."""
    return starts(run, workers, persistent=False, epoch_batches=length)


class TestStarts:
    @pytest.mark.parametrize("length", [10, None])
    def test_what_an_epoch_begins_with_is_told_apart(self, length):
        """Epochs of ten steps of 0.1 s that begin with 1 s, a stream's too: half of their time."""
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

        found = begins(run, 1, length)

        assert found.ended
        assert 2 == found.epochs
        assert 0.5 == pytest.approx(found.share)

    def test_iterators_of_one_batch_are_epochs_of_one(self):
        """Whatever length goes around them has: `next(iter(loader))` for each of ten steps."""
        run = a_run(
            [SAMPLE] * 4,
            steps=steps_of([0.3] * 10, step_s=0.1, epoch=list(range(10)), batch=[0] * 10),
        )

        found = begins(run, 1, 1000)

        assert 1 == found.batches
        assert found.share > 0.5
        assert not found.ended

    def test_a_begin_is_told_though_nothing_else_was_seen(self):
        """One step, for which workers took all of the budget to start."""
        run = a_run([SAMPLE] * 4, steps=steps_of([9.0], step_s=0.1))

        found = begins(run, 2, 10)

        assert 9.0 == pytest.approx(found.extra_s, rel=0.02)
        assert found.share > 0.8

    def test_workers_that_live_on_start_once(self):
        """With persistent workers no epoch but the first begins so."""
        run = a_run([SAMPLE] * 4, steps=steps_of([1.0] + [0.0] * 9))

        assert 0.0 == starts(run, 1, persistent=True, epoch_batches=10).share

    @pytest.mark.parametrize(
        ("batch", "seen", "before"),
        [
            ([70, 71, 72], range(72), 70),
            ([70], range(70), 70),
            ([0, 1, 2], range(3), 0),
            ([31, 63, 95], range(96), 0),
            ([70, 71], [70, 71], 0),
        ],
        ids=["left out", "one step", "from the first one", "32 for each step", "begun before"],
    )
    def test_batches_that_no_step_gets_are_counted(self, batch, seen, before):
        """Those before the first step: a step that takes several leaves none out."""
        steps = steps_of([9.0, *[0.0] * (len(batch) - 1)], step_s=0.1, batch=batch)
        delivered = deliveries_of(*({"batch": number} for number in seen))

        found = begins(a_run([SAMPLE] * 4, steps=steps, deliveries=delivered), 2)

        assert (before, 9.0) == (found.before, found.before_s)

    def test_an_iteration_longer_than_an_epoch_starts_once(self):
        """Loaders that keep one iterator over all epochs give more batches than their length."""
        run = a_run([SAMPLE] * 4, steps=steps_of([1.0] + [0.0] * 29))

        assert 0.0 == begins(run, 1, 10).share


class TestSamples:
    def test_slow_ones_stand_out(self):
        """Two of forty samples take 200 ms, the others 10 ms."""
        slow = {"fetch": 200.0}
        made = [slow if number in (7, 31) else SAMPLE for number in range(40)]

        found = spikes(a_run(made, steps=steps_of([0.0] * 10)))

        assert 2 == found.count
        assert 20 == found.one_in
        assert 0.2 == pytest.approx(found.typical_s)

    def test_a_slow_batch_is_no_slow_sample(self):
        """Four samples of one batch that take 200 ms each: the batch is slow, and no sample."""
        slow = {"fetch": 200.0}
        made = [slow if number // 4 == 3 else SAMPLE for number in range(40)]

        assert 0 == spikes(a_run(made, steps=steps_of([0.0] * 10))).count

    def test_equal_ones_do_not(self):
        """Where all take as long, none is slow."""
        assert 0 == spikes(a_run([SAMPLE] * 40, steps=steps_of([0.0] * 10))).count


class TestInterval:
    def test_equal_steps_leave_no_doubt(self):
        """Every step waits half of its time: the interval is that share."""
        steps = steps_of([0.1] * 40, step_s=0.1)
        stalls = steps.select("rank", "step", stall_s="wait_s")

        assert (0.5, 0.5) == pytest.approx(stall_interval(steps, stalls, 2))

    def test_few_steps_leave_all_doubt(self):
        """From three rounds nothing can be told."""
        steps = steps_of([0.1] * 6)

        assert (0.0, 1.0) == stall_interval(
            steps,
            pl.DataFrame(schema={"rank": pl.Int16, "step": pl.Int32, "stall_s": pl.Float64}),
            2,
        )


def test_facts_of_a_run_hold_together():
    """What is taken from a run of a starving loop: all its time, and its stages by name."""
    found = facts(starving(), Setup(num_workers=1, cores=2.0))

    assert 1.0 == pytest.approx(found.stall_share)
    assert MANY == found.steps
    assert 0.005 == pytest.approx(found.stage_s["decode"])


def test_a_stage_that_is_done_many_times_for_a_sample_is_counted():
    """Each sample reads once, and decodes on."""
    assert {"fetch": 1.0} == facts(starving(), Setup(1)).calls


class TestUnits:
    def test_a_stage_of_whole_batches_takes_a_batch_its_time(self):
        """A function that is called with whole batches: its 12 ms are no sample's."""
        found = facts(starving(per_batch=True), Setup(num_workers=1))

        assert "12 ms per batch" == found.each("Blur")

    def test_a_stage_of_samples_takes_a_sample_its_time(self):
        """And one that was not seen takes nothing that could be said."""
        found = facts(starving(), Setup(num_workers=1))

        assert ("3.0 ms per sample", "") == (found.each("Blur"), found.each("unseen"))


class TestThreads:
    @pytest.mark.parametrize(
        ("cores", "threads", "waiting"), [(1.5, 7, False), (0.15, 7, True), (1.5, 3, True)]
    )
    def test_a_worker_that_waits_for_its_own_threads_computes(self, cores, threads, waiting):
        """Decoding that takes no CPU in the main thread, while its process keeps cores busy.

        With no more threads than torch has, these do not decode.
        """
        run = starving(cpu_share={"fetch": 0.2, "decode": 0.1, "Blur": 0.2})
        used = resources_of({(WORKER, "100"): cores, (THREADS, "100"): threads}, 2)
        run = replace(run, all_resources=used)

        found = facts(run, Setup(num_workers=1))

        assert waiting == (found.exposure.waiting("fetch", "decode", "transform") > 0.5)
