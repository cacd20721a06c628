"""What is measured next: what decides between the causes that are still possible, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.build_facts import COPIES, IDLE, WAITS_IN_FETCH, known

from stallscope.diagnose import verdict
from stallscope.diagnose.verdict import judge

WAITING = known(work=WAITS_IN_FETCH, use=IDLE)
DECODES = known(work={("decode", "decode"): 0.9, ("Blur", "transform"): 0.1})
SURE = replace(DECODES, megapixels=12.0)


def asked(facts, *before):
    """The phase that is asked for next."""
    found = verdict.next_question(facts, judge(facts), before)
    return found.phase if found else None


class TestQuestions:
    def test_a_clear_cause_asks_for_nothing_more(self):
        """Decoding that dominates without doubt ends the measurement."""
        assert asked(SURE) is None

    def test_what_decodes_no_image_asks_for_its_line(self):
        """A video, a sound or a volume: what helps depends on what reads it."""
        assert verdict.STACKS == asked(DECODES)

    def test_collating_asks_what_a_batch_holds(self):
        """After its line: fewer bytes would take less, where they hold the same."""
        collates = known(work={("collate", "collate"): 0.9, ("Blur", "transform"): 0.1})

        assert verdict.BATCH == asked(collates, verdict.STACKS)
        assert verdict.BATCH != asked(SURE, verdict.STACKS)

    def test_converting_asks_what_a_batch_holds(self):
        """Transforms that make floats may be left to the device; others may not."""
        converts = {("ToTensor", "transform"): 0.5, ("Normalize", "transform"): 0.5}
        blurs = {("Blur", "transform"): 0.5, ("Warp", "transform"): 0.5}

        assert verdict.BATCH == asked(known(work=converts), verdict.STACKS, verdict.ONE_WORKER)
        assert verdict.BATCH != asked(known(work=blurs), verdict.STACKS, verdict.ONE_WORKER)

    def test_stalls_that_may_be_a_healthy_loops_ask_what_there_is_to_gain(self):
        """Their interval holds the limit: a ladder says whether they cost anything."""
        near = known(stalled=0.12, work=WAITS_IN_FETCH, use=IDLE, load=0.6)
        codes = [found.code for found in judge(near)]

        assert "too-little-prefetch" == codes[0]
        assert verdict.LADDER == asked(replace(near, stall_low=0.07))
        assert verdict.LADDER != asked(replace(near, stall_low=0.11))

    def test_a_training_process_that_computes_asks_what(self):
        """In a step that is no timer, and where it is the bottleneck; not where the model is it."""
        step = {"own_parts": {"step": 0.95}, "use": {"loop_cpu": 0.95}}
        healthy = known(stalled=0.01, load=0.4, setup={"simulated": False}, **step)
        sampler = known(work={("main process", "main"): 1.0}, load=0.4)

        assert verdict.LOOP_STACKS == asked(healthy)
        alone = replace(healthy, setup=replace(healthy.setup, num_workers=0))
        assert verdict.LOOP_STACKS == asked(alone)
        assert verdict.LOOP_STACKS == asked(sampler)
        assert verdict.LOOP_STACKS != asked(known(stalled=0.01, load=0.4, **step))
        model = replace(healthy, model_share=0.9, own_parts={"step": 0.05})
        assert verdict.LOOP_STACKS != asked(model)

    def test_without_workers_the_main_process_asks_for_its_line(self):
        """What it makes batches with is what is to be changed, beside workers; or its own part."""
        alone = known(setup={"num_workers": 0})
        busy = replace(alone, own_parts={"logging": 0.9}, model_share=0.1)

        assert verdict.STACKS == asked(alone)
        assert verdict.LOOP_STACKS == asked(busy)

    def test_waiting_asks_whether_it_is_shared(self):
        """Storage, a lock and a full pipe look alike until one worker runs alone."""
        assert verdict.ONE_WORKER == asked(WAITING)

    def test_one_worker_shares_with_nobody(self):
        """A loader with one worker is not measured with one worker again."""
        alone = known(work=WAITS_IN_FETCH, use=IDLE, setup={"num_workers": 1})

        assert verdict.ONE_WORKER != asked(alone)

    def test_a_stream_asks_whether_all_do_the_same(self):
        """Of workers that leave out what they have made, one alone computes half as long."""
        stream = known(setup={"streams": True})

        assert verdict.STACKS == asked(stream)
        assert verdict.ONE_WORKER == asked(stream, verdict.STACKS)
        assert verdict.ONE_WORKER != asked(known(), verdict.STACKS)

    def test_what_is_shared_asks_for_stacks_of_those_that_wait(self):
        """A lock shows in the stacks of workers that wait."""
        shared = replace(WAITING, alone_waiting_s=0.1)

        assert verdict.WAITING_STACKS == asked(shared, verdict.ONE_WORKER)

    def test_what_is_not_shared_does_not(self):
        """Where one worker waits as long, there is no lock to look for."""
        not_shared = replace(WAITING, alone_waiting_s=0.36)

        assert verdict.WAITING_STACKS != asked(not_shared, verdict.ONE_WORKER)

    def test_own_code_that_waits_asks_for_its_line(self):
        """Where nothing was seen to read, stacks of waiting workers show what it waits for."""
        own = known(work={("getitem", "getitem"): (0.9, 1.0), ("Blur", "transform"): 0.1}, use=IDLE)

        assert verdict.WAITING_STACKS == asked(own, verdict.ONE_WORKER)

    def test_threads_that_crowd_a_healthy_loop_ask_for_a_ladder(self):
        """Whether the step is slower beside the workers, no stall tells."""
        crowded = known(stalled=0.01, use={"threads": 67.0})

        assert verdict.LADDER == asked(crowded)
        assert asked(known(stalled=0.01)) is None

    @pytest.mark.parametrize(
        ("copied", "looked_s", "asks"), [(0.0, 5.0, True), (0.0, 60.0, False), (0.95, 5.0, False)]
    )
    def test_memory_that_grows_is_looked_at_for_longer(self, copied, looked_s, asks):
        """A heap that settles grows, too, for some seconds; copies end by themselves."""
        grown = {"copied_share": copied, "grown_bytes": looked_s * COPIES.bytes_per_s}
        facts = known(stalled=0.01, load=0.4, memory_growth=replace(COPIES, **grown))

        assert "memory-growth" == judge(facts)[0].code
        assert asks == (asked(facts) == "memory")
        assert "memory" != asked(facts, "memory")
        full = replace(facts, memory_growth=replace(facts.memory_growth, left_s=60.0))
        assert "memory" != asked(full)

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
