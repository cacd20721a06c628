"""What is measured next: what decides between the causes that are still possible, and no more."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
from support.build_facts import IDLE, WAITS_IN_FETCH, known

from stallscope.diagnose import verdict
from stallscope.diagnose.facts import line_of, lock_frames
from stallscope.diagnose.verdict import judge
from stallscope.flame.result import SAMPLES, Flame, FlameConditions

WAITING = known(work=WAITS_IN_FETCH, use=IDLE)
SURE = known(work={("decode", "decode"): 0.9, ("Blur", "transform"): 0.1})


def asked(facts, *before):
    """The phase that is asked for next."""
    found = verdict.next_question(facts, judge(facts), before)
    return found.phase if found else None


def a_flame(*rows, idle=False):
    """Stacks with their stage and how often each was seen."""
    full = [(0, 100, 0, stage, stack, hits) for stage, stack, hits in rows]
    return Flame(pl.DataFrame(full, SAMPLES, orient="row"), FlameConditions(idle=idle))


class TestQuestions:
    def test_a_clear_cause_asks_for_nothing_more(self):
        """Decoding that dominates without doubt ends the measurement."""
        assert asked(SURE) is None

    def test_waiting_asks_whether_it_is_shared(self):
        """Storage, a lock and a full pipe look alike until one worker runs alone."""
        assert verdict.ONE_WORKER == asked(WAITING)

    def test_one_worker_shares_with_nobody(self):
        """A loader with one worker is not measured with one worker again."""
        alone = known(work=WAITS_IN_FETCH, use=IDLE, setup={"num_workers": 1})

        assert verdict.ONE_WORKER != asked(alone)

    def test_what_is_shared_asks_for_stacks_of_those_that_wait(self):
        """A lock shows in the stacks of workers that wait."""
        shared = replace(WAITING, alone_waiting_s=0.1)

        assert verdict.WAITING_STACKS == asked(shared, verdict.ONE_WORKER)

    def test_what_is_not_shared_does_not(self):
        """Where one worker waits as long, there is no lock to look for."""
        not_shared = replace(WAITING, alone_waiting_s=0.36)

        assert verdict.WAITING_STACKS != asked(not_shared, verdict.ONE_WORKER)

    def test_doubt_asks_for_a_ladder(self):
        """A cause that is not sure is tried by taking costs away."""
        assert verdict.LADDER == asked(replace(SURE, others_share=0.8))

    def test_without_a_step_no_ladder_is_asked_for(self):
        """It would cache everything but the batches, which decides nothing."""
        unsure = replace(SURE, others_share=0.8)

        assert verdict.LADDER != asked(replace(unsure, setup=replace(unsure.setup, has_step=False)))

    def test_a_transform_asks_for_its_line(self):
        """What lies in the user's code is looked for in stacks."""
        transform = known(work={("Blur", "transform"): 0.9, ("decode", "decode"): 0.1})

        assert verdict.STACKS == asked(transform)

    def test_nothing_is_asked_twice(self):
        """A measurement that was tried is not asked for again."""
        assert verdict.ONE_WORKER != asked(WAITING, verdict.ONE_WORKER)


class TestStacks:
    ACQUIRES = "load (mine.py:7);SemLock.__enter__ (multiprocessing/synchronize.py:95)"

    def test_waiting_at_a_lock_is_seen(self):
        """Three of four samples of a stage wait in a semaphore's `__enter__`."""
        flame = a_flame(("Lookup", self.ACQUIRES, 30), ("Lookup", "load (mine.py:8)", 10))

        assert 0.75 == lock_frames(flame)

    def test_the_thread_that_sends_is_no_lock(self):
        """A feeder thread waits at its condition between two batches, whatever is wrong."""
        waits = "Queue._feed (multiprocessing/queues.py:231);Condition.wait (threading.py:327)"
        flame = a_flame(("send", waits, 90), ("fetch", "load (mine.py:8)", 10))

        assert 0.0 == lock_frames(flame)

    def test_threads_of_one_process_wait_for_each_other(self):
        """Waiting for a pool of one's own, as reading from object storage does, is no lock."""
        waits = "load (mine.py:7);Future.result (concurrent/futures/_base.py:1);"
        flame = a_flame(("fetch", waits + "Condition.wait (threading.py:327)", 90))

        assert 0.0 == lock_frames(flame)

    def test_few_samples_say_nothing(self):
        """From nine samples no share is told."""
        assert lock_frames(a_flame(("fetch", self.ACQUIRES, 9))) is None

    def test_the_line_is_the_users_innermost(self):
        """Of a stage's stacks the line of the user's that was seen most; no library's."""
        flame = a_flame(
            ("Blur", "load (mine.py:7);blur (mine.py:31);conv (site-packages/torch/nn.py:5)", 30),
            ("Blur", "load (mine.py:7);blur (mine.py:40)", 10),
            ("decode", "load (mine.py:9)", 90),
        )

        assert "blur (mine.py:31)" == line_of(flame, "Blur")

    def test_a_line_is_named_in_the_next_step(self):
        """A verdict about a transform points to where its time goes."""
        flame = a_flame(("Blur", "load (mine.py:7);blur (mine.py:31)", 30))
        transform = known(work={("Blur", "transform"): 1.0}, flame=flame)

        assert "blur (mine.py:31)" in judge(transform)[0].next_step
