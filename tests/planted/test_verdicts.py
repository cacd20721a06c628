"""A small part of `benchmarks/verdicts.py`: real workers, a planted cause, and what is said of it.

How often a verdict is right is for the benchmark to say. Here a loop is never blamed for something
that is not wrong with it; on a machine that is too busy to tell, `inconclusive` is no blame.
"""

import pytest

import stallscope as ss
from stallscope import planted


@pytest.mark.slow
@pytest.mark.parametrize("code", ["slow-worker", "healthy"])
def test_nothing_else_is_blamed(code):
    """The verdict on a loop is its planted cause, or that it cannot be told: no other cause."""
    loop = planted.plant(code, seed=5)

    found = ss.diagnose(loop.loader, loop.step, budget_s=30.0)

    assert found.verdict.code in (loop.truth, "inconclusive")


def test_every_cause_is_a_target_by_name():
    """Each cause can be asked for by its name as a function's, and an unknown one is none."""
    for code in (planted.HEALTHY_CODE, *planted.PLANTED):
        assert callable(getattr(planted, code.replace("-", "_")))
    assert not hasattr(planted, "copy")
