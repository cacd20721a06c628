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

from stallscope.charts import sheet
from stallscope.orders.result import FAILS
from stallscope.views.orders_panel import HINT, NO_BENCH, Board, Tries

AS_IT_IS = (TO_TENSOR, CROP, MASK, COLOUR, SCALE)
CROP_FIRST = (CROP, TO_TENSOR, MASK, COLOUR, SCALE)
MASK_FIRST = (MASK, TO_TENSOR, CROP, COLOUR, SCALE)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Pictures of few pixels: what stands in them is what counts here."""
    monkeypatch.setattr(sheet, "SHARP", 0.25)


def a_board(bench=None, **orders):
    bench = bench or PlannedBench()
    made = some_orders(bench=bench, **orders)
    return Board(Tries(made, bench)), bench


def labels(positions):
    return [NAMES[op] for op in positions]


class TestOrder:
    def test_begins_as_it_is(self):
        """The ops stand there as in the pipeline, and the picture is of that."""
        board, bench = a_board()

        assert labels(AS_IT_IS) == board.tags.value
        assert "the original" in board.verdict.value
        assert [AS_IT_IS] == bench.asked["code"]

    def test_dragging_shows_another_order(self):
        """Its cost, its data, its code and its pictures, each of that order."""
        board, bench = a_board()
        before = board.bars.value
        board.tags.value = labels(CROP_FIRST)

        assert "✓ identical: the same bits on 16 samples" in board.verdict.value
        assert before != board.bars.value
        assert "RandomCrop → PILToTensor" in board.copy.text
        assert "<img" in board.pictures.value
        assert CROP_FIRST == bench.asked["compare"][-1]

    def test_the_buttons_move_the_chosen_op(self):
        """Earlier and later, by one place each time; at an end there is no further."""
        board, _ = a_board()
        board.op.value = "RandomCrop"

        board.earlier.click()
        assert labels(CROP_FIRST) == board.tags.value
        assert board.earlier.disabled
        board.earlier.click()
        assert labels(CROP_FIRST) == board.tags.value
        board.later.click()
        assert labels(AS_IT_IS) == board.tags.value
        assert not board.earlier.disabled

    def test_begins_from_an_order_of_the_search(self):
        """Those that work can be chosen by what they change."""
        board, _ = a_board()
        options = dict(board.start.options)

        assert "RandomCrop before PILToTensor, identical" in options
        assert not any(FAILS in option for option in options)
        board.start.value = CROP_FIRST
        assert labels(CROP_FIRST) == board.tags.value

    def test_what_one_began_from_follows_the_order(self):
        """So that the way back is a choice, and no order goes by another one's name."""
        board, _ = a_board()
        board.tags.value = labels((TO_TENSOR, CROP, COLOUR, MASK, SCALE))

        assert board.start.value is None
        board.start.value = AS_IT_IS
        assert labels(AS_IT_IS) == board.tags.value

    def test_an_op_that_was_taken_away_comes_back(self):
        """An order has every op once."""
        board, bench = a_board()
        board.tags.value = labels((CROP, MASK, COLOUR, SCALE))

        assert labels(AS_IT_IS) == board.tags.value
        assert "put back" in board.said.value
        assert [AS_IT_IS] == bench.asked["compare"]

    def test_an_order_is_asked_for_once(self):
        """Going back and forth compares nothing again."""
        board, bench = a_board()
        for order in (CROP_FIRST, AS_IT_IS, CROP_FIRST):
            board.tags.value = labels(order)

        assert [AS_IT_IS, CROP_FIRST] == bench.asked["compare"]
        assert [AS_IT_IS, CROP_FIRST] == bench.asked["predict"]

    def test_an_order_that_fails_says_why(self):
        """It is drawn up to the op that fails."""
        board, _ = a_board()
        board.tags.value = labels(MASK_FIRST)

        assert "✗ fails (RuntimeError: the mask is 256 by 256" in board.verdict.value
        assert "This order fails: RuntimeError" in board.bars.value

    def test_different_data_is_marked(self):
        """As what cannot be used."""
        board, _ = a_board()
        board.tags.value = labels((TO_TENSOR, CROP, COLOUR, MASK, SCALE))

        assert "✗ different data on 16 samples" in board.verdict.value

    @pytest.mark.parametrize("order", [AS_IT_IS, CROP_FIRST, MASK_FIRST])
    def test_every_text_of_the_bars_has_a_place_of_its_own(self, order):
        """No text leaves the sheet, and none lies on another."""
        bench = PlannedBench()

        check_texts(Tries(some_orders(bench=bench), bench).bars(order))


class TestMeasuring:
    def test_shows_predicted_beside_measured(self):
        """The figure, its interval, and where it was measured."""
        board, bench = a_board(measured=())
        board.tags.value = labels(CROP_FIRST)
        assert "1.06× as fast: predicted, not measured" in board.bars.value
        board.run.click()

        assert [CROP_FIRST] == bench.asked["measure"]
        assert "should be 1.06× as fast, and is" in board.bars.value
        assert not board.run.disabled
        assert "hidden" == board.progress.layout.visibility

    def test_moves_a_progress_bar(self):
        """While it measures, the bar is to be seen and moves."""
        board, _ = a_board()
        seen = []
        board.progress.observe(
            lambda change: seen.append((change["new"], board.progress.layout.visibility)), "value"
        )
        board.run.click()

        assert [(0.25, "visible"), (0.5, "visible"), (1.0, "visible")] == seen

    def test_what_the_search_measured_is_known(self):
        """It is not measured again."""
        board, bench = a_board()
        board.tags.value = labels(CROP_FIRST)

        assert not bench.asked["measure"]
        assert ", measured (95% interval" in board.bars.value

    def test_a_narrow_interval_around_one_is_no_difference(self):
        """No gain is claimed that cannot be told from none."""
        board, _ = a_board(orders=(AS_IT_IS, (TO_TENSOR, CROP, MASK, SCALE, COLOUR)), measured=())
        board.start.index = 1
        board.run.click()

        assert "as fast as the original: no significant difference" in board.bars.value

    def test_an_order_that_fails_is_not_measured(self):
        """It is said what to do."""
        board, bench = a_board()
        board.tags.value = labels(MASK_FIRST)
        board.run.click()

        assert not bench.asked["measure"]
        assert "cannot be measured, it fails" in board.said.value

    def test_an_error_of_an_op_is_shown_and_the_panel_goes_on(self):
        """What a callback raises would be shown nowhere."""
        board, bench = a_board(PlannedBench(fails=OSError(f"no disk {HOSTILE}")))
        board.run.click()

        assert "That did not work. OSError: no disk" in board.said.value
        assert HOSTILE not in board.said.value
        assert not board.run.disabled
        bench.fails = None
        board.run.click()
        assert "" == board.said.value

    def test_an_interrupt_passes_and_the_panel_goes_on(self):
        """Ctrl-C ends the measurement; the button can be pressed again."""
        board, _ = a_board(PlannedBench(fails=KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            board.run.click()

        assert "not measured: it was stopped" in board.said.value
        assert not board.run.disabled


class TestTable:
    def test_keeps_what_was_tried(self):
        """A row for each order, the last first."""
        board, _ = a_board()
        board.tags.value = labels(CROP_FIRST)
        board.tags.value = labels(MASK_FIRST)

        rows = board.table.value.split("<tr>")[2:]
        assert 3 == len(rows)
        assert rows[0].count("fails")
        assert "identical" in rows[1]
        assert "the original" in rows[2]

    def test_what_comes_from_a_user_is_escaped(self):
        """Names of ops hold whatever the user wrote."""
        board, _ = a_board(names=(HOSTILE, *NAMES[1:]))

        for part in (board.table, board.verdict, board.bars, board.code):
            assert HOSTILE not in part.value


class TestPanel:
    def test_has_a_picture_for_places_without_widgets(self):
        """The best orders."""
        panel = some_orders(bench=PlannedBench()).panel()

        assert "image/png" in panel._repr_mimebundle_()
        assert HINT in panel.children[0].value

    def test_without_the_pipeline_says_what_to_do(self):
        """Figures alone can be looked at, not tried."""
        panel = some_orders().panel()

        assert NO_BENCH in panel.children[0].value
        assert panel.still is not None

    def test_two_panels_do_not_know_each_other(self):
        """A cell that runs twice makes a second, equal panel."""
        orders = some_orders(bench=PlannedBench())
        first, second = orders.panel(), orders.panel()
        first.children[1].value = labels(CROP_FIRST)

        assert labels(AS_IT_IS) == second.children[1].value
