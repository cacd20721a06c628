"""The sliders over the replay: the prediction and the button that measures."""

import re
from dataclasses import replace

import pytest
from support.build_tuning import NOW, a_full_tuning, a_tuning
from support.virtual_loop import a_loop

from stallscope.model.costs import costs_of
from stallscope.verbs.tune.tune import TuneBench
from stallscope.views.boards import NO_LOADER, SettingBoard


@pytest.fixture(scope="module")
def costs():
    """Return the costs of a loop that waits for reading and decoding."""
    run = a_loop({"fetch": 20.0, "decode": 30.0}, using={"forward": 4.0}, batches=40, workers=2)
    return costs_of(run, NOW, epoch_batches=None, batch_bytes=1_000, cores=4.0)


class Bench(TuneBench):
    """A bench that returns a planted result."""

    def trial(self, setting):
        return setting

    def measure(self, trial, budget_s):
        assert budget_s > 0
        asked = a_full_tuning().setting(1)
        assert trial == {"num_workers": asked.num_workers, "prefetch_factor": 2}
        return a_tuning({NOW: [200] * 6, asked: [380] * 6}, settings=(asked,))


def board_of(costs) -> SettingBoard:
    tuning = replace(a_tuning(), bench=Bench(None, None, costs))
    return SettingBoard(tuning)


@pytest.fixture
def board(costs):
    return board_of(costs)


def rate(board) -> float:
    return float(re.search(r"<b>([\d.,]+) samples/s", board.answer.value)[1].replace(",", ""))


def test_each_slider_changes_the_answer(board):
    rates = [rate(board)]
    for slider, value in ((board.workers, 4), (board.decode, 4.0), (board.reading, 4.0)):
        slider.value = value
        rates.append(rate(board))
    board.step.value = board.step.max
    slow = rate(board)

    assert sorted(rates) == rates
    assert len(set(rates)) == len(rates)
    assert slow < rates[-1]


def test_a_stage_that_was_not_recorded_has_a_disabled_slider(board, costs):
    without = board_of(replace(costs, stages=(("fetch", "fetch"), ("Blur", "transform"))))

    assert (True, False) == (without.decode.disabled, without.reading.disabled)
    assert "none recorded" in without.decode.description
    assert (False, False) == (board.decode.disabled, board.reading.disabled)


def test_the_button_measures_the_chosen_setting(board):
    """The message holds the measured gain; the current setting is not measured."""
    board.run.click()
    assert "the current loader" in board.message.value

    board.workers.value = 4
    board.run.click()

    assert "1.90× the current loader" in board.message.value
    assert "1.90× the current loader" in board.answer.value
    assert not board.run.disabled


def test_without_the_loader_it_says_so():
    panel = a_full_tuning().panel()

    assert NO_LOADER in panel.children[0].value
    assert panel.still is not None
