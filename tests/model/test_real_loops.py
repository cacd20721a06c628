"""Loops with a planted reason for standing still, run with real workers: the reason is found."""

from __future__ import annotations

import pytest
from support.stalling_loops import PLANTS, Plant, find, slow_step, wrong, wrong_parts

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than cores


@pytest.mark.thorough  # a busy machine makes a loop stand still for reasons of its own
@pytest.mark.parametrize("plant", PLANTS, ids=[plant.name for plant in PLANTS])
def test_finds_what_was_planted(plant):
    """The longest part is right, the parts add up, and hardly anything is unattributed.

    The pattern in time is not asked for: on a machine that is busy with something else it may
    rightly not be found.
    """
    assert [] == list(wrong_parts(plant, find(plant)))


@pytest.mark.slow
def test_notices_what_is_not_found():
    """A loop in which nothing of what is expected was planted fails for each of it."""
    plant = Plant("no such loop", slow_step, ("fetch",), pattern=("slow_worker",))

    stands, longest, pattern = wrong(plant, find(plant))[:3]

    assert stands.startswith("stands still only")
    assert longest.startswith("the longest part is")
    assert pattern.startswith("what explains most is")
