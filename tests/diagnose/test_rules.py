"""What the loop does itself, beside waiting and training."""

from __future__ import annotations

import pytest
from support.build_facts import known

from stallscope.diagnose.rules import computes_in_python, copies, idle_device, own_parts
from stallscope.diagnose.verdict import judge

CALM = {"stalled": 0.01, "load": 0.4}


class TestOwnParts:
    def test_garbage_and_logging_add_up(self):
        """Parts that are each too small for a finding are one together, named by the longest."""
        parts = {"logging": 0.15, "garbage collection": 0.1, "step": 0.7}

        found = own_parts(known(**CALM, own_parts=parts))

        assert "logging" in found.title
        assert 0.25 == pytest.approx(found.severity)

    def test_the_step_is_no_part_where_no_model_is_seen(self):
        """A step of which nothing is known may be all model."""
        assert own_parts(known(**CALM, own_parts={"step": 0.9})) is None

    def test_the_rest_of_a_step_with_a_model_is_one(self):
        """Where forward and backward are seen, what is left of the step is something else."""
        found = own_parts(known(**CALM, own_parts={"step": 0.5}, model_share=0.4))

        assert "outside of the model" in found.title

    def test_a_sampler_that_computes_is_the_main_process(self):
        """Stalls in the loader's own work in the main process are no work of the workers."""
        slow = known(work={("main process", "main"): 0.9, ("Blur", "transform"): 0.1}, load=0.4)

        assert "main-process" == judge(slow)[0].code


class TestComputesInPython:
    def test_a_step_that_computes_for_a_half_is_asked_about(self):
        """Half waiting for a device, half computing, and no model within reach."""
        facts = known(
            **CALM, setup={"simulated": False}, use={"loop_cpu": 0.5}, own_parts={"step": 0.95}
        )

        assert "ss.stage" in computes_in_python(facts).next_step

    def test_a_step_that_computes_all_the_time_may_be_the_model(self):
        """A model on the CPU is no fault."""
        facts = known(
            **CALM, setup={"simulated": False}, use={"loop_cpu": 0.95}, own_parts={"step": 0.97}
        )

        assert computes_in_python(facts) is None

    def test_a_step_that_computes_and_waits_for_a_core_is_the_same(self):
        """Workers that have the cores at times are no device that it waits for."""
        queued = {"loop_cpu": 0.75, "loop_queued_share": 0.2}
        facts = known(**CALM, setup={"simulated": False}, use=queued, own_parts={"step": 0.95})

        assert computes_in_python(facts) is None


class TestDevice:
    def test_a_gpu_that_is_idle_though_batches_are_there_waits_for_the_host(self):
        """No stall, and a GPU that is read as 30% busy."""
        facts = known(**CALM, setup={"on_gpu": True}, use={"gpu_busy_share": 0.3})

        assert "main-process" == idle_device(facts).code

    def test_without_a_gpu_nothing_is_said_of_one(self):
        """What was not read is not judged."""
        assert idle_device(known(**CALM)) is None

    def test_a_copy_is_marked_as_not_tested(self):
        """Pinning that holds half of the loop's time is named, and that nobody tried the rule."""
        found = copies(known(stalled=0.5, work={("pin", "pin"): 1.0}))

        assert "copy" == found.code
        assert not found.tested
