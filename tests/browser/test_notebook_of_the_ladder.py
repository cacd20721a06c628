"""A person opens the notebook about the cached ladder, and slides over the timeline."""

import pytest
from browser.page import run_twice_and_use

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.thorough]


def test_runs_twice_answers_the_hand_and_can_be_looked_at(lab):
    """Another choice is another picture."""
    run_twice_and_use(lab, "03_cached_baseline", "Steps", "From step", redraws=True)
