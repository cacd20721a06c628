"""A comparison of runs in a notebook and a terminal: what changed, what differs, the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.bench.comparison import LITTLE
from stallscope.columns import NO_VALUE, unit_of
from stallscope.stats import INTERVAL, NOT_DISTINGUISHABLE
from stallscope.units import printable, share
from stallscope.verbs.compare.compare import LOOP, SPEED, STALLS
from stallscope.views.document import Document, Heading, Notes, Table, View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.verbs.compare.compare import Comparison


_NAMES: Final = {SPEED: "samples per second", STALLS: "stalled share", LOOP: "loop, per sample"}
WITHIN_DRIFT: Final = "may be the machine's"
"""A change that is significant, but within the drift of the machine."""


def document(comparison: Comparison) -> Document:
    """Return the answer, what differs between the runs, and the changes as a table."""
    blocks: list[Any] = []
    for run in range(1, len(comparison.names)):
        heads = ("", "kind", comparison.names[0], comparison.names[run], "change", INTERVAL)
        before, after = comparison.verdicts[0], comparison.verdicts[run]
        verdict = f"verdict: {before.code} → {after.code}: {printable(after.title, 400)}"
        blocks.append(Heading(headline(comparison, run), [verdict]))
        blocks.append(Table(heads, list(_rows(comparison, run))))
    differs = [f"differs: {text}" for text in comparison.differs]
    return Document("comparison", [*blocks, Notes([*differs, *comparison.notes])])


def headline(comparison: Comparison, run: int = -1) -> str:
    """Return the speedup of a run over the first one, and how long each stalls."""
    run = run % len(comparison.names)
    speed, stalls = comparison.of(SPEED, run), comparison.of(STALLS, run)
    first, later = printable(comparison.names[0]), printable(comparison.names[run])
    stalled = f"stalls: {share(stalls['before'])} → {share(stalls['after'])} of the time"
    if speed["change_low"] is None:
        return f"Too few steps to tell whether {later} is faster than {first}; {stalled}"
    before = speed["before"]
    ratios = [
        max(value, 0.0) / before
        for value in (speed["after"], before + speed["change_low"], before + speed["change_high"])
    ]
    factor, low, high = (f"{ratio:.2f}×" for ratio in ratios)
    fast = f"{factor} as fast as {first} ({low} to {high})"
    if speed["distinguishable"]:
        return f"{later} is {fast}; {stalled}"
    is_chance = ratios[1] <= 1 <= ratios[2]
    if is_chance and ratios[2] < LITTLE:
        return f"{later} is about as fast as {first}: {factor} ({low} to {high}); {stalled}"
    why = "other processes or the machine may explain: record both again"
    return f"{later} ran {fast}, which {'may be chance' if is_chance else why}; {stalled}"


def signed(measure: str, number: float) -> str:
    """Return a difference with its sign and its unit."""
    return f"{'-' if number < 0 else '+'}{unit_of(measure)[1](abs(number))}"


def _rows(comparison: Comparison, run: int) -> Iterator[tuple[str, ...]]:
    for row in comparison.changes.filter(pl.col("run") == run).iter_rows(named=True):
        measure, value = row["measure"], unit_of(row["measure"])[1]
        low, high = row["change_low"], row["change_high"]
        ends = NO_VALUE if low is None else f"{signed(measure, low)} to {signed(measure, high)}"
        # A change that is not significant may be chance, or the machine's
        is_chance = low is None or low <= 0 <= high
        change = NOT_DISTINGUISHABLE if is_chance else WITHIN_DRIFT
        if row["distinguishable"]:
            change = signed(measure, row["change"])
        name = _NAMES.get(measure, printable(measure.removesuffix("_s").replace("/", ": ")))
        yield name, row["kind"], value(row["before"]), value(row["after"]), change, ends


def _figure(comparison: Comparison) -> Any:
    from stallscope.charts.results import comparison_figure

    return comparison_figure(comparison, headline(comparison))


VIEW: Final = View(
    "a comparison",
    document,
    {"changes": ("a sample's time in each run, and the changes", _figure)},
    {},
    lambda comparison: {
        "answer": headline(comparison),
        "names": comparison.names,
        "changes": comparison.changes.to_dicts(),
        "verdicts": [finding.code for finding in comparison.verdicts],
        "differs": comparison.differs,
    },
)
