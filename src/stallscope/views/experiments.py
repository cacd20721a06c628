"""Experiments in a notebook and a terminal: what each gains, what waits, what copies take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.bench.comparison import OPEN, SAME
from stallscope.experiments.result import AS_IT_IS, findings_of, notes_of, sentence
from stallscope.stats import INTERVAL
from stallscope.units import file_name, seconds, share, size, times
from stallscope.views.document import Document, Heading, Notes, Table, html

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.experiments.result import Experiments


WHOSE: Final = "experiments"
KINDS: Final = {"gains": "how many times as fast the step is with each change (the default)"}
CHARTS: Final = {"gains": ("code_bars", "gains_figure")}
PANELS: Final = {"experiment": "one change, its code and what it does (the default)"}
HEADS: Final = ("experiment", "as it is", "changed", "times as fast", INTERVAL, "loss apart by")
WAITS: Final = ("waits for the device", "where", "calls a step", "a step")
COPIES: Final = ("copy of a batch", "bytes", "there after", "host held", "of a step", "apart by")
KEY: Final = (
    "as it is, changed: the median step · loss apart by: the largest difference of the losses of "
    "the same steps; 'as it is' beside itself"
)


def document(found: Experiments) -> Document:
    """The answer, and three tables; those that are empty are left out."""
    copies = [
        (
            row["way"],
            size(row["bytes"]),
            seconds(row["copy_s"]),
            seconds(row["host_s"]),
            share(row["step_share"]),
            "—" if row["difference"] is None else f"{row['difference']:.2g}",
        )
        for row in found.copies().iter_rows(named=True)
    ]
    blocks = [
        Heading(sentence(found), findings_of(found)),
        Table(HEADS, list(_rows(found)), key=KEY),
        Table(WAITS, list(_waits(found))),
        Table(COPIES, copies),
        Notes([*_not_tried(found), *notes_of(found)]),
    ]
    return Document("experiments", blocks)


def panel(found: Experiments, _kind: str) -> Any:
    """Give a list to choose a change from: its code, and what came of it."""
    from stallscope.charts.code_bars import gains_figure
    from stallscope.views.panels import dropdown, pick

    rows = found.table().to_dicts()[1:]
    picture = gains_figure(found)
    return pick(
        lambda place: (
            picture,
            html("<pre>{}</pre><p>{}</p>", rows[place]["code"], told(rows[place])),
        ),
        dropdown("Change", [(row["experiment"], place) for place, row in enumerate(rows)], 0),
    )


def told(row: dict[str, Any]) -> str:
    """What came of an experiment, in a sentence; a row of `Experiments.table`."""
    if row["factor"] is None:
        return f"{row['experiment']}: not tried ({row['why_not'] or 'no time was left'})"
    ends = _ends(row)
    if row["says"] in (SAME, OPEN):
        return f"{row['experiment']}: {row['says']} ({INTERVAL} {ends})"
    return f"{row['experiment']}: the step is {times(row['factor'])} as fast ({INTERVAL} {ends})"


def _rows(found: Experiments) -> Iterator[tuple[str, ...]]:
    for row in found.table().iter_rows(named=True):
        is_tried = row["factor"] is not None or row["experiment"] == AS_IT_IS
        if is_tried and found.circumstances.step_s is not None:
            before_s = found.circumstances.step_s if row["factor"] is None else row["before_s"]
            apart = row["loss_difference"]
            yield (
                row["experiment"],
                seconds(before_s),
                seconds(row["after_s"]),
                "—" if row["factor"] is None else f"{row['factor']:.2f}",
                _ends(row),
                "—" if apart is None else f"{apart:.2g}",
            )


def _ends(row: dict[str, Any]) -> str:
    if row["factor_low"] is None:
        return "—"
    return f"{row['factor_low']:.2f} to {row['factor_high']:.2f}"


def _waits(found: Experiments) -> Iterator[tuple[str, ...]]:
    behind = found.circumstances.kernels_per_step is not None
    for row in found.waits.iter_rows(named=True):
        where = f"{file_name(row['file'], 40)}:{row['line']} {row['source']}"
        yield (
            row["what"],
            where if row["line"] else row["function"],
            f"{row['calls_per_step']:.3g}",
            seconds(row["wait_s"]) if behind else "—",
        )


def _not_tried(found: Experiments) -> Iterator[str]:
    for row in found.table().iter_rows(named=True):
        if row["why_not"]:
            yield told(row)
