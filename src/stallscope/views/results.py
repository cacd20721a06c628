"""Results that are a sentence, tables and notes, in a notebook and a terminal.

The tables come from the columns that the results declare; this module adds the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.bench.comparison import FASTER, OPEN, SAME, SLOWER
from stallscope.columns import NO_VALUE, unit_of
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.units import count, file_name, printable, seconds, speedup, times
from stallscope.verbs import compare
from stallscope.verbs.experiments import result as experiments_result
from stallscope.verbs.ladder import result as ladder_result
from stallscope.verbs.orders import text as orders_text
from stallscope.verbs.orders.variant import NEAR
from stallscope.verbs.storage import layout_result
from stallscope.verbs.storage import result as storage_result
from stallscope.verbs.storage.reads import COLD
from stallscope.verbs.tune import result as tune_result
from stallscope.views import document as page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.verbs.compare import Comparison
    from stallscope.verbs.experiments.result import Experiments
    from stallscope.verbs.ladder.result import Ladder
    from stallscope.verbs.orders.result import Orders
    from stallscope.verbs.orders.variant import Variant
    from stallscope.verbs.storage.layout_result import Layouts
    from stallscope.verbs.storage.result import Storage
    from stallscope.verbs.tune.result import Tuning


def _ladder(ladder: Ladder) -> page.Document:
    gains = {row["rung"]: row for row in ladder.gains().iter_rows(named=True)}
    rows = [row for row in ladder.table().to_dicts() if row["samples_per_s"] is not None]
    last = page.RowText("vs. previous rung", lambda row: _gain_text(gains.get(row["rung"])))
    table = page.Table.of([*ladder_result.TABLE.shown(), last], rows)
    heading = page.Heading(ladder_result.sentence(ladder))
    return page.Document("ladder", [heading, table, page.Notes(ladder_result.notes_of(ladder))])


def _gain_text(gain: dict[str, Any] | None) -> str:
    """Return the speedup of a rung over the previous rung; a row of `Ladder.gains`."""
    if gain is None:
        return NO_VALUE
    if gain["says"] == SAME or gain["factor_low"] is None:
        return str(gain["says"])
    return f"{times(gain['factor'])} ({gain['factor_low']:.2f} to {gain['factor_high']:.2f})"


def rungs_panel(ladder: Ladder) -> Any:
    """Return widgets to choose two rungs, and their speedup."""
    from stallscope.charts.results import ladder_figure
    from stallscope.views.panels import dropdown, pick, saying

    names = list(ladder.rates)
    if len(names) < 2:  # noqa: PLR2004 - two to compare
        return saying(ladder_result.sentence(ladder))
    picture, form = ladder_figure(ladder), "<p><b>{}</b></p>"
    return pick(
        lambda upper, lower: (picture, page.html(form, compared(ladder, lower, upper))),
        dropdown("This rung", names, names[-1]),
        dropdown("against", names, names[0]),
    )


def compared(ladder: Ladder, lower: str, upper: str) -> str:
    """Return the speedup of one rung over another, in a sentence."""
    if lower == upper:
        return "Choose two different rungs"
    comparison = ladder.compared(upper, lower)
    if comparison.low is None:
        return f"'{upper}' against '{lower}': {comparison.says}"
    ends = f"{INTERVAL} {comparison.low:.2f} to {comparison.high:.2f}"
    sentence = f"'{upper}' is {times(comparison.factor)} as fast as '{lower}' ({ends})"
    return sentence if comparison.says in (FASTER, SLOWER) else f"{sentence}: {comparison.says}"


LADDER: Final = page.View(
    "a ladder",
    _ladder,
    {"ladder": ("the loop without each of the loader's costs", "results.ladder_figure")},
    {"compare": ("any two rungs against each other", "results.rungs_panel")},
    page.answered(ladder_result.sentence, rungs="table", gains="gains"),
)


_MOST_PREDICTED: Final = 5
"""Rows of settings that were only predicted: these are alike, and the best were measured."""
_MOST_SETTINGS: Final = 14
"""Rows of the displayed table; `Tuning.settings` has all."""


def _tuning(tuning: Tuning) -> page.Document:
    rows = tuning.settings().to_dicts()
    tried = [row for row in rows if row["status"] != tune_result.NOT_TRIED]
    guesses = [row for row in tried if row["status"] == tune_result.PREDICTED][:_MOST_PREDICTED]
    shown = [row for row in tried if row["status"] != tune_result.PREDICTED or row in guesses]
    shown = shown[:_MOST_SETTINGS]
    bars = [page.CellBar(row["predicted_per_s"] or 0.0, COLOURS["transform"]) for row in shown]
    hidden = len(rows) - len(shown)
    hidden_note = [f"not shown: {count(hidden, 'more setting')}, all of them in .settings()"]
    reasons = [
        printable(f"{row['setting']}: {row['reason']}", 400)
        for row in rows
        if row["reason"] and row["status"] != tune_result.AS_IT_IS
    ]
    return page.Document(
        "tuning",
        [
            page.Heading(tune_result.sentence(tuning)),
            page.Table.of(tune_result.SETTINGS.shown(), shown, bars=bars),
            page.Notes([*tune_result.notes_of(tuning), *hidden_note * (hidden > 0)]),
            page.Bullets(reasons, f"{count(len(reasons), 'setting')} with a reservation"),
        ],
    )


TUNING: Final = page.View(
    "a tuning",
    _tuning,
    {"predicted": ("predicted and measured speedups of settings", "results.settings_figure")},
    {"try": ("the loop with other settings, replayed", "boards.tuning_panel")},
    page.answered(tune_result.sentence, best="best", code="code", settings="settings"),
)


_STORAGE_KEY: Final = (
    "in cache: share of the requested bytes in the page cache before the read; cold reads that "
    "turned out warm are left out"
)


def _storage(storage: Storage) -> page.Document:
    rows, places = storage.table().to_dicts(), storage.places.to_dicts()
    colours = [COLOURS["fetch" if row["state"] == COLD else "other"] for row in rows]
    bars = [page.CellBar(row["bytes_per_s"], c) for row, c in zip(rows, colours, strict=True)]
    shown = storage_result.READS.shown(
        "readers state latency_s latency_p95_s requests_per_s requests_low_per_s bytes_per_s "
        "cached_share"
    )
    read = page.RowText("read", storage_result.describe)
    where = page.RowText("where", lambda row: printable(f"{row['path']} ({row['device']})", 60))
    return page.Document(
        "storage",
        [
            page.Heading(storage_result.sentence(storage)),
            page.Table.of([read, *shown], rows, bars=bars, key=_STORAGE_KEY),
            page.Table.of([where, *storage_result.PLACES.shown()], places),
            page.Notes(storage_result.notes_of(storage)),
        ],
    )


STORAGE: Final = page.View(
    "a measurement of storage",
    _storage,
    {
        "samples": ("samples per second, cold and warm, by readers", "results.samples_figure"),
        "pieces": ("bytes per second of small and large reads", "results.pieces_figure"),
    },
    {},
    page.answered(storage_result.sentence, reads="table", places="places"),
)


_LAYOUTS_KEY: Final = (
    "shuffle: 100% is uniform; sizes are of the written samples, times of the whole dataset"
)


def _layouts(layouts: Layouts) -> page.Document:
    rows = layouts.table().to_dicts()
    shown = [row for row in rows if row["samples_per_s"] is not None]
    bars = [page.CellBar(row["samples_per_s"], COLOURS["fetch"]) for row in shown]
    pixels = layouts.circumstances.image_pixels
    columns = layout_result.LAYOUTS.shown()
    name = page.RowText("layout", lambda row: layout_result.name_of(row, pixels))
    left_out = [f"not measured: {row['kind']}: {row['why_not']}" for row in rows if row["why_not"]]
    recipe = []
    if (best := layouts.best or layouts.nearest) is not None:
        title = f"To convert all files to {layout_result.name_of(best, pixels)}"
        recipe = [page.Code(f"{title} (replace DATA and OUT)", layouts.recipe())]
    return page.Document(
        "layouts",
        [
            page.Heading(layout_result.sentence(layouts)),
            page.Table.of([name, *columns], shown, bars=bars, key=_LAYOUTS_KEY),
            *recipe,
            page.Notes([*left_out, *layout_result.notes_of(layouts)]),
        ],
    )


LAYOUTS: Final = page.View(
    "a comparison of layouts",
    _layouts,
    {"samples": ("samples per second of each layout", "results.layouts_figure")},
    {},
    page.answered(layout_result.sentence, best="best", layouts="table"),
)


_EXPERIMENTS_KEY: Final = (
    "as it is, changed: the median step · loss difference: the largest between the same steps; "
    "'as it is' is run twice"
)


def _experiments(experiments: Experiments) -> page.Document:
    table = experiments.table().to_dicts()
    as_it_is, step_s = experiments_result.AS_IT_IS, experiments.circumstances.step_s
    tried = [
        {**row, "before_s": step_s if row["factor"] is None else row["before_s"]}
        for row in table
        if (row["factor"] is not None or row["experiment"] == as_it_is) and step_s is not None
    ]
    behind = experiments.circumstances.kernels_per_step is not None
    waits = experiments.waits.to_dicts()
    waited = experiments_result.WAITS.shown(f"what calls_per_step{' wait_s' * behind}")
    not_tried = [outcome(row) for row in table if row["why_not"]]
    title = experiments_result.sentence(experiments)
    return page.Document(
        "experiments",
        [
            page.Heading(title, experiments_result.findings_of(experiments)),
            page.Table.of(experiments_result.TABLE.shown(), tried, key=_EXPERIMENTS_KEY),
            page.Table.of([*waited, page.RowText("where", _where)], waits),
            page.Table.of(experiments_result.COPIES.shown(), experiments.copies().to_dicts()),
            page.Notes([*not_tried, *experiments_result.notes_of(experiments)]),
        ],
    )


def _where(row: dict[str, Any]) -> str:
    line = f"{file_name(row['file'], 40)}:{row['line']} {row['source']}"
    return line if row["line"] else row["function"]


def outcome(row: dict[str, Any]) -> str:
    """Return the outcome of an experiment in a sentence; a row of `Experiments.table`."""
    name, factor = row["experiment"], row["factor"]
    if factor is None:
        return f"{name}: not tried ({row['why_not'] or 'no time was left'})"
    low, high = row["factor_low"], row["factor_high"]
    ends = "—" if low is None else f"{low:.2f} to {high:.2f}"
    what = row["says"] if row["says"] in (SAME, OPEN) else f"the step is {times(factor)} as fast"
    return f"{name}: {what} ({INTERVAL} {ends})"


def experiments_panel(experiments: Experiments) -> Any:
    """Return a list of changes to choose from, with their code and outcome."""
    from stallscope.charts.results import gains_figure
    from stallscope.views.panels import dropdown, pick

    rows = experiments.table().to_dicts()[1:]
    picture, form = gains_figure(experiments), "<pre>{}</pre><p>{}</p>"
    names = [(row["experiment"], place) for place, row in enumerate(rows)]
    return pick(
        lambda place: (picture, page.html(form, rows[place]["code"], outcome(rows[place]))),
        dropdown("Change", names, 0),
    )


EXPERIMENTS: Final = page.View(
    "experiments",
    _experiments,
    {"gains": ("the speedup of the step with each change", "results.gains_figure")},
    {"experiment": ("one change, its code and its speedup", "results.experiments_panel")},
    page.answered(experiments_result.sentence, experiments="table", waits="waits", copies="copies"),
)


_ORDER_HEADS: Final = (
    "pipeline",
    "predicted",
    "measured",
    INTERVAL,
    "speedup",
    "data",
    "recommended",
)
_MOST_ORDERS: Final = 12
"""Rows of the table on a page; `Orders.table` has all."""
_MOST_REASONS: Final = 30
_LONGEST_CHANGE: Final = 70


def _orders(orders: Orders) -> page.Document:
    """Show usable orders as a table; unusable ones, with their reasons, on a click."""
    usable = [variant for variant in orders.variants if variant.grade.within(NEAR)]
    unusable = [variant for variant in orders.variants if variant not in usable]
    rows = usable[:_MOST_ORDERS]
    hidden = len(orders.variants) - len(rows)
    hidden_note = [f"not shown: {count(hidden, 'more pipeline')}; .table() has all"] * (hidden > 0)
    has_guess = any(row.trial and row.speedup is None and row.fast for row in rows)
    brackets = ["speedup in brackets: predicted, not measured"] * has_guess
    reasons = [printable(f"{row.order}: {orders_text.verdict(row.grade)}", 400) for row in unusable]
    further = orders_text.beyond(orders) if orders.best_variant() else ""
    cells = [(*_cells(row), "yes" if orders.recommends(row) else "") for row in rows]
    bars = [page.CellBar(row.predicted_s or 0.0, COLOURS["transform"]) for row in rows]
    why = f"{count(len(unusable), 'pipeline')} that cannot be used, and why"
    return page.Document(
        "orders",
        [
            page.Heading(orders_text.sentence(orders), [further] if further else []),
            page.Table(_ORDER_HEADS, cells, bars),
            page.Notes([*brackets, *hidden_note, *orders_text.notes_of(orders)]),
            page.Bullets(reasons[:_MOST_REASONS], why),
        ],
    )


def _cells(variant: Variant) -> tuple[str, ...]:
    """Write a pipeline as a row of the table, without the last column of `_ORDER_HEADS`."""
    took = variant.measured
    fast = speedup(variant.fast) if variant.fast else "—"
    return (
        printable(variant.change, _LONGEST_CHANGE),
        seconds(variant.predicted_s),
        seconds(took.value if took else None),
        "—" if took is None or took.low is None else _interval(took.low, took.high or took.low),
        "—" if variant.is_original else fast if variant.speedup or fast == "—" else f"({fast})",
        "the original" if variant.is_original else variant.grade.equivalence,
    )


def _interval(low: float, high: float) -> str:
    """Write the ends of an interval of times; a common unit is written once."""
    first, last = seconds(low), seconds(high)
    number, _, unit = first.partition(" ")
    return f"{number if last.endswith(f' {unit}') else first} to {last}"


ORDERS: Final = page.View(
    "orders",
    _orders,
    {
        "orders": ("the best pipelines, part by part", "orders.figure"),
        "front": ("speed against distance from the original data", "orders.front_figure"),
    },
    {"try": ("the ops in any order, with cost and code", "boards.orders_panel")},
    page.answered(orders_text.sentence, orders="table", best="best"),
)


_NAMES: Final = {
    compare.SPEED: "samples per second",
    compare.STALLS: "stalled share",
    compare.LOOP: "loop, per sample",
}
_WITHIN_DRIFT: Final = "may be the machine's"
"""A change that is significant, but within the drift of the machine."""


def _comparison(comparison: Comparison) -> page.Document:
    blocks: list[Any] = []
    for run in range(1, len(comparison.names)):
        heads = ("", "kind", comparison.names[0], comparison.names[run], "change", INTERVAL)
        before, after = comparison.verdicts[0], comparison.verdicts[run]
        verdict = f"verdict: {before.code} → {after.code}: {printable(after.title, 400)}"
        blocks.append(page.Heading(compare.sentence(comparison, run), [verdict]))
        blocks.append(page.Table(heads, list(_changes(comparison, run))))
    differs = [f"differs: {text}" for text in comparison.differs]
    return page.Document("comparison", [*blocks, page.Notes([*differs, *comparison.notes])])


def _signed(measure: str, number: float) -> str:
    return f"{'-' if number < 0 else '+'}{unit_of(measure)[1](abs(number))}"


def _changes(comparison: Comparison, run: int) -> Iterator[tuple[str, ...]]:
    for row in comparison.changes.filter(pl.col("run") == run).iter_rows(named=True):
        measure, value = row["measure"], unit_of(row["measure"])[1]
        low, high = row["change_low"], row["change_high"]
        ends = NO_VALUE if low is None else f"{_signed(measure, low)} to {_signed(measure, high)}"
        # A change that is not significant may be chance, or the machine's
        is_chance = low is None or low <= 0 <= high
        change = SAME if is_chance else _WITHIN_DRIFT
        if row["distinguishable"]:
            change = _signed(measure, row["change"])
        name = _NAMES.get(measure, printable(measure.removesuffix("_s").replace("/", ": ")))
        yield name, row["kind"], value(row["before"]), value(row["after"]), change, ends


COMPARISON: Final = page.View(
    "a comparison",
    _comparison,
    {"changes": ("a sample's time in each run, and the changes", "results.comparison_figure")},
    {},
    lambda comparison: {
        "answer": compare.sentence(comparison),
        "names": comparison.names,
        "changes": comparison.changes,
        "verdicts": [finding.code for finding in comparison.verdicts],
        "differs": comparison.differs,
    },
)
