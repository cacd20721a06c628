"""The face of a flamegraph: its picture, its table, its panel, its files.

`stallscope.flames.Flame` finds this module by its name when it is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope import result
from stallscope.flame.classify import StackFunction, kind_shares
from stallscope.flame.result import sentence
from stallscope.flame.tree import COLOURS, notes_of, of_flame
from stallscope.names import printable
from stallscope.units import share
from stallscope.views.document import CellBar, aligned, html_note, html_table, html_title

if TYPE_CHECKING:
    from pathlib import Path

    from stallscope.charts.sheet import Sheet
    from stallscope.flame.result import Flame


KINDS: Final = {"flame": "the merged stacks of all workers (the default)"}
"""Every picture of a flamegraph, and every panel."""
HEADS: Final = ("your function", "share", "95% interval", "with all it calls", "file")
MOST_ROWS: Final = 20


def plot(flame: Flame, kind: str | None = None) -> Sheet:
    """Draw the picture.

    Args:
        flame: what was sampled.
        kind: one of `KINDS`.

    Raises:
        NoSuchPictureError: there is no such kind.
    """
    result.resolve_kind(kind, KINDS, "a flame")
    from stallscope.charts import flame as chart

    return chart.figure(flame)


def panel(flame: Flame, kind: str | None = None) -> Any:
    """The viewer: zoom, search, details, switches; see `stallscope.views.flamepanel`.

    Raises:
        NoSuchPanelError: there is no such kind.
    """
    result.resolve_panel(kind, KINDS, "a flame")
    from stallscope.views.flame_viewer import FlamePanel

    return FlamePanel(of_flame(flame), plot(flame), html(flame))


def export(flame: Flame, path: str | Path) -> Path:
    """Write a file, see `stallscope.views.flamefiles`."""
    from stallscope.views import flame_files

    return flame_files.export(flame, path)


def text(flame: Flame) -> str:
    """The user's functions as a table for a terminal."""
    rows = _rows(flame)
    table = [*aligned([HEADS, *rows]), ""] if rows else []
    return "\n".join([printable(sentence(flame), 300), "", *table, *_notes(flame)])


def html(flame: Flame) -> str:
    """The user's functions as a table for a notebook; readable on a light and on a dark ground."""
    rows = _rows(flame)
    shares = flame.table()["self_share"].head(MOST_ROWS)
    bars = [CellBar(float(one), COLOURS["yours"]) for one in shares]
    table = html_table(HEADS, rows, bars) if rows else ""
    notes = "".join(html_note(note) for note in _notes(flame))
    title = html_title(printable(sentence(flame), 300))
    return f"<div class='stallscope-flames'>{title}{table}{notes}</div>"


def _rows(flame: Flame) -> list[tuple[str, ...]]:
    return [
        (
            printable(row["function"], 40),
            share(row["self_share"]),
            f"{row['self_share_low']:.1%} to {row['self_share_high']:.1%}",
            share(row["total_share"]),
            printable(StackFunction(row["function"], row["file"]).place, 40),
        )
        for row in flame.table().head(MOST_ROWS).iter_rows(named=True)
    ]


def _notes(flame: Flame) -> list[str]:
    """What the shares are of, how their intervals were made, and what was left out."""
    from stallscope.flame.classify import KINDS as NAMES

    if flame.samples.is_empty():
        return [printable(note, 1000) for note in flame.notes]
    rows = flame.table()
    kinds = kind_shares(flame.samples)
    parts = ", ".join(f"{NAMES[name]} {share(one)}" for name, one in kinds.items())
    told = [f"of all samples: {parts}"]
    if not rows.is_empty():
        how = (
            "windows of consecutive samples were resampled"
            if rows["interval"][0] == "windows"
            else "by Wilson's formula, which takes samples as independent: true ends may be wider"
        )
        key = (
            "share: with what torch, numpy and others compute for it; decode, libraries' "
            "transforms, reading and sending stand apart"
        )
        told += [f"{key} · interval: {how}"]
    if rows.height > MOST_ROWS:
        told += [f"not shown: {rows.height - MOST_ROWS} more functions of yours"]
    return [*told, *notes_of(flame)]
