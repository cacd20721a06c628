"""The panel in which orders are tried: what each control does, with and without a pipeline."""

from __future__ import annotations

import pytest
from support.build_orders import (
    COLOUR,
    CROP,
    MASK,
    NAMES,
    SCALE,
    TO_TENSOR,
    PlannedBench,
    some_orders,
)
from support.chart_texts import check_texts

from stallscope.views.boards import HINT, NO_PIPELINE, OrderBoard

AS_IT_IS = (TO_TENSOR, CROP, MASK, COLOUR, SCALE)
CROP_FIRST = (CROP, TO_TENSOR, MASK, COLOUR, SCALE)
MASK_FIRST = (MASK, TO_TENSOR, CROP, COLOUR, SCALE)
HOSTILE = "<img src=x onerror=alert(1)>"


def a_board(bench=None, **orders):
    bench = bench or PlannedBench()
    made = some_orders(bench=bench, **orders)
    return OrderBoard(made, bench), bench


def labels(positions):
    return [NAMES[op] for op in positions]


class TestOrder:
    def test_begins_as_it_is(self):
        """The ops stand there as in the pipeline, and the picture is of that."""
        board, bench = a_board()

        assert labels(AS_IT_IS) == board.tags.value
        assert "the original" in board.verdict.value
        assert not bench.asked["measure"]

    def test_dragging_shows_another_order(self):
        """Its time, its data, its code and its pictures, each of that order, at once."""
        board, bench = a_board(measured=())
        before = board.bars.value
        board.tags.value = labels(CROP_FIRST)

        assert "✓ identical: the same bits on 16 samples" in board.verdict.value
        assert before != board.bars.value
        assert "RandomCrop → PILToTensor" in board.code.value
        assert "<img" in board.pictures.value
        assert [CROP_FIRST] == bench.asked["compare"] == bench.asked["measure"]
        assert "× the original&#39;s speed (95% interval" in board.bars.value

    def test_the_slider_moves_along_the_best_orders_of_each_grade(self):
        """And back to the pipeline as it is; what the search measured is not measured again."""
        board, bench = a_board()
        assert ("as it is", "identical", "rounding", "8-bit rounding") == board.tolerance.options

        board.tolerance.value = "identical"
        assert labels(CROP_FIRST) == board.tags.value
        assert "✓ identical" in board.verdict.value
        board.tolerance.value = "as it is"
        assert labels(AS_IT_IS) == board.tags.value
        assert not bench.asked["measure"]

    def test_an_order_that_fails_says_why(self):
        """In one line; it is drawn up to the op that fails, and not measured."""
        board, bench = a_board()
        board.tags.value = labels(MASK_FIRST)

        assert "✗ fails (RuntimeError: the mask is 256 by 256" in board.verdict.value
        assert "This order fails: RuntimeError" in board.bars.value
        assert not bench.asked["measure"]

    def test_different_data_is_marked(self):
        board, _ = a_board()
        board.tags.value = labels((TO_TENSOR, CROP, COLOUR, MASK, SCALE))

        assert "✗ different data on 16 samples" in board.verdict.value

    @pytest.mark.parametrize("order", [AS_IT_IS, CROP_FIRST, MASK_FIRST])
    def test_every_text_of_the_bars_has_a_place_of_its_own(self, order):
        check_texts(a_board()[0].picture(order))


class TestMeasuring:
    def test_the_buttons_move_the_chosen_op(self):
        """Earlier and later, by one place each time; at an end there is no further."""
        board, _ = a_board()
        board.op.value = "RandomCrop"

        board.earlier.click()
        assert labels(CROP_FIRST) == board.tags.value
        board.earlier.click()
        assert labels(CROP_FIRST) == board.tags.value
        board.later.click()
        assert labels(AS_IT_IS) == board.tags.value

    def test_measures_longer_on_request(self):
        """It goes on with what was measured at once."""
        board, bench = a_board(measured=())
        board.tags.value = labels(CROP_FIRST)
        board.run.click()

        assert [CROP_FIRST, CROP_FIRST] == bench.asked["measure"]
        assert not board.run.disabled


def test_what_comes_from_a_user_is_escaped():
    board, _ = a_board(names=(HOSTILE, *NAMES[1:]))

    for part in (board.verdict, board.bars, board.code):
        assert HOSTILE not in part.value


class TestPanel:
    def test_has_a_picture_for_places_without_widgets(self):
        panel = some_orders(bench=PlannedBench()).panel()

        assert "image/png" in panel._repr_mimebundle_()
        assert HINT in panel.children[0].value

    def test_without_the_pipeline_says_what_to_do(self):
        panel = some_orders().panel()

        assert NO_PIPELINE in panel.children[0].value
        assert panel.still is not None
