"""The table of orders: what stands first, what is recommended, what is null."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from stallscope.orders.result import (
    COSTS,
    LAPS,
    OPS,
    TABLE,
    TRIALS,
    NoSuchOrderError,
    Orders,
    OrdersConditions,
)

FIRST = ["order", "change", "predicted_s", "measured_s", "measured_low_s", "measured_high_s"]
FIRST += ["speedup", "equivalence"]


def trial(number: int, equivalence: str = "identical", predicted: float | None = 0.010) -> list:
    """A row of `TRIALS`; all but the original would be recommended."""
    same = equivalence == "identical"
    row = [number, "order", [0, 1], f"order {number}", "", "", predicted, equivalence]
    return [*row, None, None, 16, "", bool(number) and same, ""]


def orders(trials: list, seconds: dict[int, list[float]] | None = None) -> Orders:
    """A result with so many seconds per sample in each start of each trial."""
    laps = [
        (number, 10 * block + number, one, 8, "workers")
        for number, blocks in (seconds or {}).items()
        for block, one in enumerate(blocks)
        for _ in range(3)
    ]
    return Orders(
        ops=pl.DataFrame(schema=OPS),
        trials=pl.DataFrame(trials, TRIALS, orient="row"),
        laps=pl.DataFrame(laps, LAPS, orient="row"),
        costs=pl.DataFrame(schema=COSTS),
    )


def test_has_the_columns_that_others_rely_on():
    """They come first, in this order, and others after them."""
    table = orders([trial(0), trial(1)]).table()

    assert FIRST == table.columns[: len(FIRST)]
    assert list(TABLE) == table.columns


def test_measured_beside_predicted():
    """Two starts of 8 and of 4 ms per sample: twice as fast, with an interval around it."""
    trials = [trial(0), trial(1, predicted=0.005)]
    table = orders(trials, {0: [0.008] * 2, 1: [0.004] * 2}).table()

    best = table.row(0, named=True)
    assert (1, 0.005) == (best["trial"], best["predicted_s"])
    assert [0.004, 2.0] == pytest.approx([best["measured_s"], best["speedup"]])
    assert [2.0, 2.0] == pytest.approx([best["speedup_low"], best["speedup_high"]])
    assert "workers" == best["place"]


@pytest.mark.parametrize(("starts", "claimed"), [(2, False), (5, False), (6, True)])
def test_a_gain_that_nothing_predicted_needs_more_starts(starts, claimed):
    """Twice as fast where the ops promise nothing: bad luck of the original, until it is not."""
    found = orders([trial(0), trial(1)], {0: [0.008] * starts, 1: [0.004] * starts})

    assert claimed == (found.best is not None)


def test_a_gain_does_not_rest_on_one_bad_start_of_the_original():
    """A neighbour that had the cores during one start of six moves one pair of six."""
    unlucky = [0.008, 0.008, 0.080, 0.008, 0.008, 0.008]
    found = orders([trial(0), trial(1)], {0: unlucky, 1: [0.008] * 6})

    assert found.best is None
    assert 1.0 == pytest.approx(found.table().row(1, named=True)["speedup"])


def test_on_a_machine_that_others_use_a_prediction_is_not_enough():
    """Two starts that agree with it are claimed on a calm machine; else it takes six."""
    trials = [trial(0), trial(1, predicted=0.005)]
    calm = orders(trials, {0: [0.008] * 2, 1: [0.004] * 2})
    crowded = replace(calm, circumstances=OrdersConditions(others_share=0.5))

    assert calm.best is not None
    assert crowded.best is None


def test_a_gain_of_next_to_nothing_is_not_claimed():
    """One per cent, however sure, is not worth a change of somebody's pipeline."""
    found = orders([trial(0), trial(1)], {0: [0.00808] * 8, 1: [0.008] * 8})

    assert found.best is None


def test_what_was_not_measured_is_null():
    """A trial that was only predicted has no measured figure, and no place."""
    row = orders([trial(0), trial(1)], {0: [0.008] * 2}).table().row(1, named=True)

    missing = ("measured_s", "measured_low_s", "measured_high_s", "speedup", "place")
    assert [None] * len(missing) == [row[name] for name in missing]


@pytest.mark.parametrize("equivalence", ["close", "not-distinguished", "different", "fails"])
def test_nothing_but_the_same_bits_is_recommended(equivalence):
    """Whatever it would save."""
    found = orders([trial(0), trial(1, equivalence, 0.001)], {0: [0.008] * 2, 1: [0.001] * 2})

    assert found.best is None
    assert not found.table()["recommended"].any()


def test_what_was_measured_to_be_slower_is_not_recommended():
    """The prediction does not count where there is a measurement."""
    found = orders([trial(0), trial(1, predicted=0.005)], {0: [0.008] * 2, 1: [0.009] * 2})

    assert found.best is None


def test_what_is_predicted_to_gain_next_to_nothing_is_not_recommended():
    """A prediction has noise: 2% are not enough."""
    assert orders([trial(0), trial(1, predicted=0.0098)]).best is None


def test_recommended_then_original_then_the_rest():
    """Measured before predicted, and what fails at the end."""
    trials = [
        *(trial(0), trial(1, "fails", None), trial(2, predicted=0.002)),
        *(trial(3, predicted=0.005), trial(4, "different", 0.001)),
    ]

    table = orders(trials, {0: [0.008] * 2, 3: [0.004] * 2}).table()

    assert [3, 2, 0, 4, 1] == table["trial"].to_list()


def test_nothing_can_be_applied_without_the_pipeline():
    """Figures alone do not make a loader, and the error says what to do."""
    with pytest.raises(NoSuchOrderError, match=r"call ss\.orders in this process"):
        orders([trial(0), trial(1)]).apply(object())
