"""The order of the rules: each cause in numbers that are only its own, and what is named first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from known import IDLE, WAITS_IN_FETCH, known, parts_of

from stallscope.analyze.verdict import limits
from stallscope.analyze.verdict.exposure import Exposure
from stallscope.analyze.verdict.facts import Gain
from stallscope.analyze.verdict.judge import judge
from stallscope.analyze.verdict.samples import Spikes
from stallscope.analyze.verdict.starts import Starts
from stallscope.diagnoses import CAUSES
from stallscope.resources import MEMORY, SHM

EVEN = {
    ("fetch", "fetch"): 0.26,
    ("decode", "decode"): 0.25,
    ("Blur", "transform"): 0.24,
    ("collate", "collate"): 0.25,
}
LOCKED = {("Lookup", "transform"): (0.9, 0.5), ("fetch", "fetch"): 0.1}
USED_UP = {"mean_share": 0.97, "used_up": True}
SPIKES = Spikes(count=8, one_in=50, share=0.5, typical_s=0.3, usual_s=0.01)
SENDS = {("send", "sending"): 0.9, ("Blur", "transform"): 0.1}

CASES = {
    "healthy": known(stalled=0.01, load=0.5),
    "storage-latency": known(work=WAITS_IN_FETCH, use=IDLE, alone_waiting_s=0.36),
    "storage-bandwidth": known(
        work=WAITS_IN_FETCH, use=IDLE, alone_waiting_s=0.18, lock_frames=0.0
    ),
    "decode": known(work={("decode", "decode"): 0.7, ("Blur", "transform"): 0.3}),
    "one-transform": known(work={("Blur", "transform"): 0.7, ("decode", "decode"): 0.3}),
    "transforms": known(work={(name, "transform"): 0.2 for name in "ABCDE"}),
    "collate": known(work={("collate", "collate"): 0.7, ("Blur", "transform"): 0.3}),
    "sending": known(work=SENDS, load=0.4, use=IDLE),
    "too-few-workers": known(setup={"num_workers": 1, "cores": 8.0}),
    "cpu-saturated": known(work=EVEN),
    "oversubscription": known(use={"threads": 17}, extra_threads_share=0.9),
    "main-process": known(setup={"num_workers": 0}, use={"worker_cpu": None}),
    "too-little-prefetch": known(load=0.6, use=IDLE),
    "slow-samples": known(load=1.2, patterns={"slow_samples": 0.9}, spikes=SPIKES),
    "slow-worker": known(
        making={"by_worker_s": {0: 0.9, 1: 0.3}}, stalled_by_worker={0: 0.9, 1: 0.1}
    ),
    "start-up": known(stalled=0.1, load=0.5, starts=Starts(2.0, 2.0, 3, again=True)),
    "copy": known(stalled=0.3, work={("pin", "pin"): 0.9, ("send", "sending"): 0.1}, load=0.4),
    "memory-pressure": known(used_up=({"resource": MEMORY, **USED_UP},)),
    "shm": known(used_up=({"resource": SHM, **USED_UP},)),
    "lock": known(work=LOCKED, use={"worker_cpu": 0.5}, alone_waiting_s=0.0, lock_frames=0.7),
    "inconclusive": known(work={("unattributed", "unattributed"): 0.4, ("A", "transform"): 0.6}),
}


class TestVerdict:
    @pytest.mark.parametrize("code", CASES)
    def test_each_cause_is_named_from_its_own_numbers(self, code):
        """Numbers in which one thing is wrong give that verdict."""
        assert code == judge(CASES[code])[0].code

    def test_every_cause_has_its_numbers_here(self):
        """No cause can be named that is not tried in this file."""
        assert set(CAUSES) == set(CASES)

    @pytest.mark.parametrize("code", CASES)
    def test_a_finding_is_whole(self, code):
        """A finding has a title without open places, numbers, a next step, and shares up to 1."""
        for found in judge(CASES[code]):
            assert "{" not in found.title + found.next_step
            assert found.evidence
            assert found.next_step
            assert 0 <= found.severity <= 1
            assert 0 <= found.confidence <= 1

    @pytest.mark.parametrize("code", CASES)
    def test_no_cause_is_named_twice(self, code):
        """Each code occurs once."""
        codes = [found.code for found in judge(CASES[code])]

        assert len(codes) == len(set(codes))


class TestOrder:
    def test_a_stage_that_dominates_comes_before_used_up_cores(self):
        """Decoding that uses up the cores is decode; used-up cores are said at the end."""
        codes = [found.code for found in judge(CASES["decode"])]

        assert ("decode", "cpu-saturated") == (codes[0], codes[-1])

    def test_the_lesser_of_two_stages_comes_second(self):
        """Collate that holds 60% and waiting for storage that holds 35%: both, in this order."""
        both = known(
            work={("collate", "collate"): 0.6, ("fetch", "fetch"): (0.4, 0.9)}, alone_waiting_s=0.14
        )

        assert ["collate", "storage-latency"] == [found.code for found in judge(both)][:2]

    def test_a_stage_is_no_cause_where_more_workers_are_enough(self):
        """One worker on eight cores that decodes is too few workers, not decode."""
        alone = known(
            work={("decode", "decode"): 0.9, ("A", "transform"): 0.1},
            setup={"num_workers": 1, "cores": 8.0},
        )

        assert "too-few-workers" == judge(alone)[0].code

    def test_more_workers_are_no_answer_where_cores_would_not_do(self):
        """Work that no number of cores at hand can do in a step is named itself."""
        heavy = known(
            load=9.0, stalled=0.9, setup={"num_workers": 1}, work={("decode", "decode"): 1.0}
        )

        assert "decode" == judge(heavy)[0].code

    def test_one_worker_that_only_waits_waits_for_storage(self):
        """Where next to all is waiting for storage, that is what to mend first."""
        waits = known(work=WAITS_IN_FETCH, use=IDLE, setup={"num_workers": 1, "cores": 8.0})

        assert "storage-latency" == judge(waits)[0].code

    def test_reading_is_no_cause_where_workers_keep_up(self):
        """Workers that keep up on average and wait for storage make too little ahead."""
        late = known(work=WAITS_IN_FETCH, use=IDLE, load=0.6)

        assert "too-little-prefetch" == judge(late)[0].code

    def test_slow_samples_are_no_cause_where_the_others_are_too_slow(self):
        """Without the slow samples the workers would still not keep up, so they are not it."""
        slow = known(load=4.0, patterns={"slow_samples": 0.9}, spikes=SPIKES)

        assert "slow-samples" != judge(slow)[0].code

    def test_a_slow_start_is_worth_less_than_many_stalls(self):
        """Starting that takes a tenth of an epoch comes after stalls of half the time."""
        both = known(starts=Starts(1.0, 8.0, 3, again=True))
        codes = [found.code for found in judge(both)]

        assert "start-up" in codes[1:]

    def test_waiting_in_a_transform_is_a_lock_only_if_one_worker_does_not_wait(self):
        """As long with one worker as with two: nothing is shared."""
        sleeps = replace(CASES["lock"], alone_waiting_s=0.18, lock_frames=None)

        assert "one-transform" == judge(sleeps)[0].code

    def test_named_parts_of_the_loop_come_before_fewer_stalls(self):
        """Logging that takes more than all stalls is the main process's own."""
        logs = known(stalled=0.1, load=0.5, own_parts={"logging": 0.4, "step": 0.5})

        found = judge(logs)[0]

        assert "main-process" == found.code
        assert "logging" in found.title


class TestDoubt:
    def test_too_few_steps_are_inconclusive_and_say_how_many_more(self):
        """A run of four steps says how many batches it lacks."""
        facts = known()
        short = replace(facts, time=replace(facts.time, steps=4))

        found = judge(short)[0]

        assert "inconclusive" == found.code
        assert "8 batches more" in found.title

    def test_other_processes_are_no_fault_of_the_loader(self):
        """Workers that would keep up with a core each, and cores that others have: inconclusive."""
        crowded = known(load=1.2, use={"worker_cpu": 0.3, "queued_share": 0.6}, others_share=0.7)

        found = judge(crowded)[0]

        assert "inconclusive" == found.code
        assert "other processes" in found.title

    def test_other_processes_lower_the_confidence(self):
        """The same numbers on a busy machine are less sure."""
        calm = CASES["decode"]

        assert judge(replace(calm, others_share=0.7))[0].confidence < judge(calm)[0].confidence

    def test_without_a_step_nothing_is_healthy(self):
        """A loader that gives batches without a pause may still be too slow for a training."""
        assert "inconclusive" == judge(known(stalled=0.0, setup={"has_step": False}))[0].code

    def test_stalls_near_the_limit_are_healthy_where_a_ladder_gains_nothing(self):
        """Stalls that may be below what matters, and no gain with everything cached."""
        near = known(stalled=0.06, stall_low=0.03, load=0.5)

        assert "healthy" == judge(replace(near, gain=Gain(1.01, 0.98, 1.04)))[0].code
        assert "healthy" != judge(replace(near, gain=Gain(1.2, 1.1, 1.3)))[0].code

    def test_a_healthy_loop_gets_no_cause_beside(self):
        """What takes a worker's time and no time of the loop's is no finding."""
        assert ["healthy"] == [found.code for found in judge(CASES["healthy"])]

    def test_a_rule_that_is_just_met_is_less_sure(self):
        """At its limit a rule is half as sure as far beyond it."""
        just = replace(
            CASES["decode"],
            exposure=Exposure(
                parts_of({("decode", "decode"): limits.DOMINATES, ("A", "transform"): 0.25})
            ),
        )

        assert judge(just)[0].confidence < judge(CASES["decode"])[0].confidence

    def test_samples_that_waited_for_a_core_are_not_slow(self):
        """Spikes no larger than what workers waited for cores say nothing about the samples."""
        preempted = known(
            load=1.2,
            patterns={"slow_samples": 0.9},
            spikes=SPIKES,
            use={"worker_cpu": 0.4, "queued_share": 0.6},
            others_share=0.6,
        )

        assert "slow-samples" not in [found.code for found in judge(preempted)]

    def test_samples_that_stand_out_are_no_cause_of_stalls_in_sending(self):
        """Samples of which some are slow, in a loop whose stalls are something else."""
        sends = known(
            work={("send", "sending"): 0.45, ("A", "transform"): 0.1, ("main", "main"): 0.45},
            load=0.4,
            use=IDLE,
            spikes=SPIKES,
        )

        assert "slow-samples" not in [found.code for found in judge(sends)]

    def test_a_worker_that_is_slower_and_quick_enough_is_no_cause(self):
        """A worker that takes 0.15 s for a batch of which one is due every 0.2 s keeps up."""
        uneven = known(
            stalled=0.1,
            load=0.6,
            making={"by_worker_s": {0: 0.15, 1: 0.09}},
            stalled_by_worker={0: 0.9, 1: 0.1},
        )

        assert "slow-worker" not in [found.code for found in judge(uneven)]

    def test_stalls_that_are_nothing_but_waiting_for_cores_are_no_cause(self):
        """A tenth of the loop's time, of which a third is left if nobody waits for a core."""
        few = known(
            stalled=0.1, work={("send", "sending"): 1.0}, load=0.4, use=IDLE, others_share=0.6
        )
        crowded = replace(few, exposure=replace(few.exposure, free=0.3))

        assert "sending" == judge(few)[0].code
        assert "inconclusive" == judge(crowded)[0].code

    def test_threads_that_every_worker_has_are_not_too_many(self):
        """Three threads in each of three workers on two cores are torch's own."""
        usual = known(setup={"num_workers": 3}, use={"threads": 3}, extra_threads_share=0.5)

        assert "oversubscription" not in [found.code for found in judge(usual)]

    def test_batches_that_compute_vary_with_the_cores_that_others_have(self):
        """Work that keeps up and computes, on a machine that others use: inconclusive."""
        varies = known(load=0.6, use=IDLE, others_share=0.5)

        assert "inconclusive" == judge(varies)[0].code

    def test_batches_that_wait_do_not(self):
        """What waits for storage is not made longer by other processes."""
        waits = known(work=WAITS_IN_FETCH, load=0.6, use=IDLE, others_share=0.5)

        assert "too-little-prefetch" == judge(waits)[0].code

    def test_a_loop_that_loads_little_itself_is_disturbed_too(self):
        """No worker, and next to nothing to do that takes longer for want of a core."""
        little = known(
            stalled=0.1,
            load=0.11,
            setup={"num_workers": 0},
            use={"worker_cpu": None, "queued_share": 0.08},
            others_share=0.9,
        )

        assert "inconclusive" == judge(little)[0].code
