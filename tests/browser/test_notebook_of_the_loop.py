"""A person opens the notebook about the loop, and steps through its stalls."""

import pytest
from browser.page import run_twice_and_use

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.thorough]


def test_runs_twice_answers_the_hand_and_can_be_looked_at(lab):
    """Another order keeps the stall that is shown."""
    run_twice_and_use(lab, "01_is_it_the_loader", "Order", "Stall", redraws=False)
