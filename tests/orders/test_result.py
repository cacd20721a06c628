"""The table of orders: what stands first, what is recommended, what is null."""

from dataclasses import replace

import polars as pl
import pytest

import stallscope as ss
from stallscope.bench.comparison import BLOCKS
from stallscope.bench.samples import PAIRS
from stallscope.verbs.orders.result import (
    OPS,
    TABLE,
    TRIALS,
    NoSuchOrderError,
    Orders,
)
from stallscope.verbs.orders.text import sentence

FIRST = ["order", "change", "predicted_s", "measured_s", "measured_low_s", "measured_high_s"]
FIRST += ["speedup", "equivalence", "max_difference"]


def trial(number: int, equivalence: str = "identical", predicted: float | None = 0.010) -> list:
    """A row of `TRIALS`; all but the original should gain."""
    row = [number, "order", [0, 1], "", f"order {number}", "", predicted, equivalence]
    return [*row, None, None, 16, "", bool(number), ""]


def orders(trials: list, seconds: dict[int, list[float]] | None = None) -> Orders:
    """A result with so many seconds per sample by each trial; those as it is under 0."""
    took_s = seconds or {}
    pairs = [
        (number, pair, 1, own_s, other_s)
        for number, times_s in took_s.items()
        if number
        for pair, (own_s, other_s) in enumerate(zip(took_s[0], times_s, strict=True))
    ]
    return Orders(
        ops=pl.DataFrame(schema=OPS),
        trials=pl.DataFrame(trials, TRIALS, orient="row"),
        pairs=pl.DataFrame(pairs, PAIRS, orient="row"),
    )


def test_has_the_columns_that_others_rely_on():
    """These columns come first, in this order."""
    table = orders([trial(0), trial(1)]).table()

    assert FIRST == table.columns[: len(FIRST)]
    assert list(TABLE) == table.columns


def test_measured_beside_predicted():
    """Samples of 8 and of 4 ms: twice as fast, with an interval around it."""
    trials = [trial(0), trial(1, predicted=0.005)]
    table = orders(trials, {0: [0.008] * 20, 1: [0.004] * 20}).table()

    best = table.row(0, named=True)
    assert (1, 0.005) == (best["trial"], best["predicted_s"])
    assert [0.004, 2.0] == pytest.approx([best["measured_s"], best["speedup"]])
    assert 1.85 < best["speedup_low"] < 2 < best["speedup_high"] < 2.15
    assert "faster" == best["says"]


@pytest.mark.parametrize(("factor", "says"), [(1.5, "faster"), (0.6, "slower")])
def test_what_the_loader_gives_is_told_beside_it(factor, says):
    """One that makes it slower is not recommended, whatever it saves on a sample."""
    result = orders([trial(0), trial(1)], {0: [0.008] * 20, 1: [0.004] * 20})
    blocks = [
        (place, start, sweep, 64 / (100 * (factor if place else 1)), None, 64, 0.1, 0.0)
        for start in (0, 1)
        for sweep in range(4)
        for place in (0, 1)
    ]
    result = replace(result, blocks=pl.DataFrame(blocks, BLOCKS, orient="row"))
    row = result.table().row(by_predicate=pl.col("trial") == 1, named=True)

    assert says == row["loader_says"]
    assert pytest.approx(factor) == row["loader_gain"]
    assert (says == "faster") == (result.best() is not None)
    if says == "slower":
        assert sentence(result).startswith(
            "Keep the pipeline: order 1 makes samples 2.00× faster (95% interval "
        )
        assert "but the loader slower: 0.60× (" in sentence(result)


def test_what_was_not_measured_is_null():
    """A trial that was only predicted has no measured figure, and nothing is said of it."""
    row = orders([trial(0), trial(1)], {0: [0.008] * 2}).table().row(1, named=True)

    missing = ("measured_s", "measured_low_s", "measured_high_s", "speedup", "says")
    assert [None] * len(missing) == [row[name] for name in missing]


@pytest.mark.parametrize("equivalence", ["8-bit rounding", "different", "fails"])
def test_nothing_but_the_same_data_is_recommended(equivalence):
    """Whatever it would save; rounding to 8 bits is one's own choice."""
    result = orders([trial(0), trial(1, equivalence, 0.001)], {0: [0.008] * 20, 1: [0.001] * 20})

    assert result.best() is None
    assert not result.table()["recommended"].any()
    assert (equivalence == "8-bit rounding") == (result.best("8-bit rounding") is not None)


def test_a_tolerance_that_is_none_names_those_that_there_are():
    with pytest.raises(ss.StallscopeError, match=r"tolerance='close': give one of 'identical', "):
        orders([trial(0)]).best("close")


def test_what_was_measured_to_be_slower_is_not_recommended():
    """The prediction does not count where there is a measurement."""
    result = orders([trial(0), trial(1, predicted=0.005)], {0: [0.008] * 20, 1: [0.009] * 20})

    assert result.best() is None


def test_recommended_then_original_then_the_rest():
    """Measured before predicted, and what fails at the end."""
    trials = [
        *(trial(0), trial(1, "fails", None), trial(2, predicted=0.002)),
        *(trial(3, predicted=0.005), trial(4, "different", 0.001)),
    ]

    table = orders(trials, {0: [0.008] * 20, 3: [0.004] * 20}).table()

    assert [3, 2, 0, 4, 1] == table["trial"].to_list()


def test_nothing_can_be_applied_without_the_pipeline():
    """Figures alone do not make a loader, and the error says what to do."""
    with pytest.raises(NoSuchOrderError, match=r"call ss\.orders in this process"):
        orders([trial(0), trial(1)]).apply(object())


def test_the_code_of_the_best_is_at_hand():
    """A change beyond the order of ops prints the code that makes it; no gain, no code."""
    result = orders([trial(0), trial(1)], {0: [0.008] * 20, 1: [0.004] * 20})

    assert "# order 1: loader = orders.apply(loader)" == result.code()
    with pytest.raises(NoSuchOrderError, match="keep the current loader"):
        orders([trial(0)]).code()
