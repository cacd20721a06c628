"""A small part of `benchmarks/verdicts.py`: real workers, a planted cause, and what is said of it.

How often a verdict is right is for the benchmark to say: a busy machine changes what is found. Here
the loop is real, and so are the numbers behind what is said of it.
"""

import pytest

import planted
import stallscope as ss
from stallscope.verbs.diagnose import result


@pytest.mark.slow
def test_a_real_loop_gets_a_verdict_with_its_numbers():
    """One of the causes is named, with the stalls that were measured; the loop is as it was."""
    loop = planted.plant("slow-worker", seed=5)
    workers = loop.loader.num_workers

    found = ss.diagnose(loop.loader, loop.step, budget_s=20.0, prove=False)

    assert found.verdict.code in result.CAUSES
    assert found.verdict.evidence
    assert found.circumstances.simulated_step_s == loop.step.seconds
    assert loop.loader.num_workers == workers


def test_every_cause_is_a_target_by_name():
    for code in (planted.HEALTHY_CODE, *planted.PLANTED):
        assert callable(getattr(planted, code.replace("-", "_")))
    assert not hasattr(planted, "copy")
