"""A pipeline's orders: pictures, table, sentences, and the panel in which orders are tried."""

import numpy as np
import pytest
from support.build_orders import (
    COLOUR,
    CROP,
    MASK,
    NAMES,
    SCALE,
    TO_TENSOR,
    Other,
    PlannedBench,
    some_orders,
    some_pictures,
)
from support.chart_texts import check_texts, words

from stallscope.charts.orders import amplification, comparison_figure
from stallscope.verbs.orders.text import sentence, verdict
from stallscope.views.boards import HINT, NO_PIPELINE, OrderBoard
from stallscope.views.results import ORDERS as VIEW

HOSTILE = "<img src=x onerror=alert(1)>"
LONG = tuple(f"AnOpWhoseNameIsLongerThanAnyPicture{number}" for number in range(5))
ORDERS = {
    "full": some_orders(bench=PlannedBench()),
    "only figures": some_orders(),
    "not measured": some_orders(measured=()),
    "one pair": some_orders(pairs=1, noise=0.0),
    "no others": some_orders(others=(), orders=((0, 1, 2, 3, 4),), measured=(0,)),
    "far off": some_orders(measured_share=3.0),
    "long names": some_orders(names=LONG, pipeline="a.b.c." * 30),
}
DRAWN = [(name, kind) for name in ("full", "long names") for kind in VIEW.pictures]
DRAWN += [("not measured", None)]


class TestPictures:
    @pytest.mark.parametrize(("name", "kind"), DRAWN)
    def test_every_text_has_a_place_of_its_own(self, name, kind):
        check_texts(ORDERS[name].plot(kind))

    def test_different_data_is_not_among_the_best(self):
        drawn = " ".join(words(ORDERS["full"].plot()))

        assert "order (0, 1, 3, 2, 4)" not in drawn
        assert "order (0, 2, 1, 3, 4)" not in drawn


class TestDifference:
    @pytest.mark.parametrize("noise", [0, 1, 3, 20, 200])
    def test_is_made_visible(self, noise):
        """A difference is scaled up to half of the shades; no difference stays none."""
        pair = some_pictures(noise)
        far = int(np.abs(pair[0].astype(int) - pair[1].astype(int)).max())
        factor = amplification((pair,))

        assert 1 == factor if far in {0, *range(128, 256)} else 128 <= far * factor

    def test_says_by_how_much(self):
        bench = PlannedBench()
        variant = bench.compare(bench.predict((0, 1, 2, 4, 3)))

        assert "difference × 50" in words(comparison_figure(variant))


class TestTable:
    @pytest.mark.parametrize("name", ORDERS)
    def test_the_answer_comes_first(self, name):
        orders = ORDERS[name]
        title = sentence(orders)

        assert str(orders).startswith(title)
        assert title in orders._repr_mimebundle_()["text/html"]

    def test_says_why_others_cannot_be_used(self):
        html = ORDERS["full"]._repr_mimebundle_()["text/html"]

        assert "RandomMask → RandomCrop" in html
        assert "the mask is 256 by 256" in html

    def test_the_cost_of_a_cache_is_shown(self):
        others = (Other("cache", "all in memory", 2.0, changes="300 MB in each worker"),)
        orders = some_orders(others=others, measured=(0,))

        assert "all in memory: 300 MB in each worker" in str(orders)
        assert "all in memory" not in sentence(orders)

    def test_user_text_is_escaped(self):
        others = (Other("alternative", HOSTILE, 3.0, changes=HOSTILE, recommended=True),)
        orders = some_orders(names=(HOSTILE, *NAMES[1:]), notes=(HOSTILE,), others=others)

        assert HOSTILE not in orders._repr_mimebundle_()["text/html"]


class TestSentences:
    def test_nothing_faster_is_an_answer(self):
        assert "Keep the pipeline" in sentence(ORDERS["no others"])
        assert sentence(ORDERS["far off"]).startswith("Keep the pipeline")

    def test_an_unmeasured_gain_is_called_a_prediction(self):
        """A prediction may still be the best order."""
        text = sentence(some_orders(measured=(0, 5), pairs=1, noise=0.0))

        assert text.endswith("1.7× faster with identical output (predicted)")

    def test_one_pair_settles_nothing(self):
        """The sentence asks for more time, and says for which order and how much."""
        orders = some_orders(pairs=1, took_s=20.0)
        text = sentence(orders)

        assert text.startswith("Not settled: RandomCrop before PILToTensor; FasterRandom")
        assert text.endswith("set budget_s to 60 s")

    def test_a_possibly_faster_order_is_named(self):
        """An interval that holds 1 is no gain."""
        text = sentence(some_orders(others=(), measured=(0, 1), noise=0.2))

        assert text.startswith(
            "No order gains more than 1.13× (best: RandomCrop before PILToTensor, 1.0"
        )

    def test_every_equivalence_is_put_into_words(self):
        verdicts = [verdict(variant.grade) for variant in ORDERS["full"].variants]

        assert "identical: the same bits on 16 samples" in verdicts
        rounded = "rounding: differs by at most 4e-07 of the values' range (PSNR 130 dB)"
        assert any(text.startswith(rounded) for text in verdicts)
        assert "fails (RuntimeError: the mask is 256 by 256, the image 533 by 800)" in verdicts


# ---- the panel -----------------------------------------------------------------------------------

AS_IT_IS = (TO_TENSOR, CROP, MASK, COLOUR, SCALE)
CROP_FIRST = (CROP, TO_TENSOR, MASK, COLOUR, SCALE)
MASK_FIRST = (MASK, TO_TENSOR, CROP, COLOUR, SCALE)


def a_board(**orders):
    bench = PlannedBench()
    return OrderBoard(some_orders(bench=bench, **orders)), bench


def labels(positions):
    return [NAMES[op] for op in positions]


class TestOrder:
    def test_begins_as_it_is(self):
        """The ops are in the pipeline's order, and so is the picture."""
        board, bench = a_board()

        assert labels(AS_IT_IS) == board.tags.value
        assert "the original" in board.verdict.value
        assert not bench.asked["measure"]

    def test_dragging_shows_another_order(self):
        """Time, data, code and pictures are those of the new order, at once."""
        board, bench = a_board(measured=())
        before = board.bars.value
        board.tags.value = labels(CROP_FIRST)

        assert "✓ identical: the same bits on 16 samples" in board.verdict.value
        assert before != board.bars.value
        assert "RandomCrop → PILToTensor" in board.code.value
        assert "<img" in board.pictures.value
        assert [CROP_FIRST] == bench.asked["compare"] == bench.asked["measure"]
        assert "× the original&#39;s speed (95% interval" in board.bars.value

    def test_an_order_is_not_said_to_fail_before_it_is_compared(self):
        """A comparison takes a moment; the panel says that it is under way."""
        board, bench = a_board(others=(), orders=(AS_IT_IS,), measured=(0,))
        verdicts, compare = [], bench.compare
        bench.compare = lambda variant: [verdicts.append(board.verdict.value), compare(variant)][1]
        board.tags.value = labels(CROP_FIRST)

        assert ["comparing its data" in text for text in verdicts] == [True]
        assert not any("fails" in text for text in verdicts)

    def test_the_slider_moves_along_the_best_orders_of_each_grade(self):
        """The slider also returns to the pipeline as it is; no order is measured twice."""
        board, bench = a_board()
        assert ("as it is", "identical", "rounding", "8-bit rounding") == board.tolerance.options

        board.tolerance.value = "identical"
        assert labels(CROP_FIRST) == board.tags.value
        assert "✓ identical" in board.verdict.value
        board.tolerance.value = "as it is"
        assert labels(AS_IT_IS) == board.tags.value
        assert not bench.asked["measure"]

    def test_an_order_that_fails_says_why(self):
        """The reason is one line; the order is drawn up to the op that fails, and not measured."""
        board, bench = a_board()
        board.tags.value = labels(MASK_FIRST)

        assert "✗ fails (RuntimeError: the mask is 256 by 256" in board.verdict.value
        assert "This order fails: RuntimeError" in board.bars.value
        assert board.run.disabled
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
        board, _ = a_board()
        board.op.value = "RandomCrop"

        board.earlier.click()
        assert labels(CROP_FIRST) == board.tags.value
        board.earlier.click()
        assert labels(CROP_FIRST) == board.tags.value
        board.later.click()
        assert labels(AS_IT_IS) == board.tags.value

    def test_measures_longer_on_request(self):
        """The panel adds to the existing measurement at once."""
        board, bench = a_board(measured=())
        board.tags.value = labels(CROP_FIRST)
        board.run.click()

        assert [CROP_FIRST, CROP_FIRST] == bench.asked["measure"]
        assert not board.run.disabled


def test_names_on_the_panel_are_escaped():
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
