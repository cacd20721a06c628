"""What is not said: too little was measured, something else had the cores, nothing is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.build_facts import EVEN, IDLE, SPIKES, WAITS_IN_FETCH, known, parts_of, taking

from stallscope.diagnose.facts import Gain
from stallscope.diagnose.verdict import judge
from stallscope.model import thresholds
from stallscope.model.exposure import CROWDED, Exposure

DECODE = known(work={("decode", "decode"): 0.7, ("Blur", "transform"): 0.3})
HEALTHY = known(stalled=0.01, load=0.5)


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

    def test_other_processes_that_lengthen_the_step_excuse_no_worker(self):
        """Workers keep up with a step that waits for a core, too, and would not with its own."""
        crowd = {"worker_cpu": 0.4, "queued_share": 0.5}
        crowded = known(load=1.6, use=crowd, others_share=0.6, work={("decode", "decode"): 1.0})

        lengthened = replace(crowded, use=replace(crowded.use, loop_queued_share=0.4))

        assert "inconclusive" == judge(crowded)[0].code
        assert "decode" == judge(lengthened)[0].code

    def test_work_that_is_too_much_for_its_own_cores_is_one_whatever_others_do(self):
        """Nine tenths waiting for cores, and twice what the step leaves is left without that."""
        use = {"worker_cpu": 0.3, "queued_share": 0.6, "loop_queued_share": 0.5}
        work = {("Blur", "transform"): 1.0}
        slow = known(stalled=0.9, work=work, load=10.0, use=use, others_share=0.6)
        slow = replace(slow, exposure=replace(slow.exposure, free=0.1))

        assert "one-transform" == judge(slow)[0].code

    def test_a_sampler_that_computes_is_one_whatever_others_do(self):
        """What is left of it is a third of a loop that is shorter without the neighbours."""
        work = {("main process", "main"): 0.4, (CROWDED, CROWDED): 0.6}
        slow = known(stalled=0.85, work=work, load=0.4, use=IDLE, others_share=0.6)
        slow = replace(slow, exposure=replace(slow.exposure, free=0.1))

        assert "main-process" == judge(slow)[0].code

    def test_other_processes_lower_the_confidence(self):
        """The same numbers on a busy machine are less sure."""
        calm = DECODE

        assert judge(replace(calm, others_share=0.7))[0].confidence < judge(calm)[0].confidence

    def test_what_computes_too_much_for_sure_is_no_doubt(self):
        """CPU time is no longer for the neighbours: three times the step's is too much anywhere."""
        use = {"worker_cpu": 0.1, "queued_share": 0.85}
        busy = known(
            stalled=0.9, work={("Blur", "transform"): 1.0}, load=40.0, use=use, others_share=0.7
        )

        assert "inconclusive" == judge(busy)[0].code
        assert "one-transform" == judge(replace(busy, computed_s=0.6))[0].code

    def test_without_a_step_nothing_is_healthy(self):
        """A loader that gives batches without a pause may still be too slow for a training."""
        assert "inconclusive" == judge(known(stalled=0.0, setup={"has_step": False}))[0].code

    def test_stalls_near_the_limit_are_healthy_where_a_ladder_gains_nothing(self):
        """Stalls that may be below what matters, and no gain with everything cached."""
        near = known(stalled=0.12, stall_low=0.08, load=0.5)

        assert "healthy" == judge(replace(near, gain=Gain(1.01, 0.98, 1.04)))[0].code
        assert "healthy" != judge(replace(near, gain=Gain(1.2, 1.1, 1.3)))[0].code

    def test_stalls_near_the_limit_are_a_cause_where_a_ladder_gains_more(self):
        """Also where the stage that leads holds little of them: the rest waited for cores."""
        little = {("decode", "decode"): 0.3, ("rest", "crowded"): 0.7}
        near = known(stalled=0.14, work=little)

        assert "healthy" == judge(near)[0].code
        assert "healthy" == judge(replace(near, gain=Gain(1.15, 1.07, 1.2)))[0].code
        assert "decode" == judge(replace(near, gain=Gain(1.15, 1.13, 1.17)))[0].code

    def test_what_sending_always_takes_is_no_cause(self):
        """Batches that are made in time, and a third of few stalls in passing them on: healthy."""
        passing = {("send", "sending"): 0.34, ("main", "main"): 0.33, ("rest", "crowded"): 0.33}

        found = judge(known(stalled=0.13, work=passing, load=0.3, use=IDLE))

        assert ["healthy"] == [one.code for one in found]

    def test_what_passing_batches_on_costs_is_no_cause(self):
        """Also where a ladder gains more than that, and where it is most of what can be told."""
        passing = {("send", "sending"): 0.5, ("rest", "crowded"): 0.5}
        loop = known(stalled=0.12, work=passing, load=0.95, gain=Gain(1.13, 1.11, 1.15))

        assert "sending" not in [found.code for found in judge(loop)]
        assert "sending" in [found.code for found in judge(known(work=passing))]

    def test_what_waits_unseen_may_not_be_reading(self):
        """Waiting in the dataset's own code: said as that, less sure, and once."""
        waits = known(
            work={("getitem", "getitem"): (0.9, 0.95), ("Blur", "transform"): 0.1}, use=IDLE
        )

        found = judge(waits)

        assert ["storage-latency"] == [one.code for one in found]
        assert found[0].title.startswith("__getitem__ itself waits")
        assert found[0].confidence <= thresholds.UNSEEN
        assert "04_worker_flamegraphs" in found[0].next_step

    def test_what_waits_unseen_is_not_counted_as_a_transform(self):
        """A transform beside it that is worth a word is told with its own share only."""
        waits = known(
            work={("getitem", "getitem"): (0.7, 0.95), ("Blur", "transform"): 0.3}, use=IDLE
        )

        verdict, other = judge(waits)

        assert "storage-latency" == verdict.code
        assert ("one-transform", 0.3) == (
            other.code,
            other.evidence["all_transforms_exposed_share"],
        )
        assert "Blur" in other.title

    def test_what_the_dataset_computes_is_no_reading(self):
        """The same stage, as work on a CPU."""
        computes = known(work={("getitem", "getitem"): 0.9, ("Blur", "transform"): 0.1})

        assert "one-transform" == judge(computes)[0].code

    def test_cores_that_others_have_are_not_used_up_by_the_loop(self):
        """Workers that use a tenth of the cores beside processes that use the rest."""
        beside = known(work=WAITS_IN_FETCH, use=IDLE, others_share=0.85)

        assert "cpu-saturated" not in [found.code for found in judge(beside)]

    def test_without_a_step_nothing_is_said_of_one(self):
        """Used-up cores are then cores, not so many times what a step leaves."""
        alone = known(work=EVEN, setup={"has_step": False})

        (used_up,) = [found for found in judge(alone) if found.code == "cpu-saturated"]

        assert "use 2.0 of 2 cores" in used_up.title
        assert "cpu_load_factor" not in used_up.evidence

    def test_cores_that_are_free_are_not_used_up(self):
        """Work that would be too much for the cores, in a loop that hardly uses them."""
        waits = known(work=WAITS_IN_FETCH, making={"period_s": 0.5}, use={"worker_cpu": 0.5})

        assert "cpu-saturated" not in [found.code for found in judge(waits)]

    def test_a_healthy_loop_gets_no_cause_beside(self):
        """What takes a worker's time and no time of the loop's is no finding."""
        assert ["healthy"] == [found.code for found in judge(HEALTHY)]

    def test_a_rule_that_is_just_met_is_less_sure(self):
        """At its limit a rule is half as sure as far beyond it."""
        just = replace(
            DECODE,
            exposure=Exposure(
                parts_of({("decode", "decode"): thresholds.DOMINATES, ("A", "transform"): 0.25})
            ),
        )

        assert judge(just)[0].confidence < judge(DECODE)[0].confidence

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
            making={"by_worker": {0: taking(0.15), 1: taking(0.09)}},
            stalled_by_worker={0: 0.9, 1: 0.1},
        )

        assert "slow-worker" not in [found.code for found in judge(uneven)]

    def test_a_worker_whose_batches_differ_as_much_as_workers_do_is_no_cause(self):
        """Half as slow again, with a quarter of its batches as quick as the other worker's."""
        varies = known(
            making={"by_worker": {0: taking(0.45, spread=0.5), 1: taking(0.3, spread=0.2)}},
            stalled_by_worker={0: 0.9, 1: 0.1},
        )

        assert "slow-worker" not in [found.code for found in judge(varies)]

    @pytest.mark.parametrize(("others_share", "slow"), [(0.0, True), (0.5, False)])
    def test_a_worker_that_shares_its_core_is_not_slow(self, others_share, slow):
        """Twice as long for a batch, where another process has one of two cores."""
        uneven = known(
            making={"by_worker": {0: taking(0.4), 1: taking(0.2)}},
            stalled_by_worker={0: 0.95, 1: 0.05},
            others_share=others_share,
        )

        assert slow == ("slow-worker" in [found.code for found in judge(uneven)])

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
