"""Flamegraphs in a notebook, in a terminal and as files for others; of one recording, or of two.

A difference has the same picture, viewer and table as a flamegraph, with the changes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.stats import NOT_DISTINGUISHABLE, WILSON, WINDOWS
from stallscope.units import printable, share
from stallscope.verbs.flame.classify import KINDS as SAMPLE_KINDS
from stallscope.verbs.flame.classify import TABLE, StackFunction, kind_shares
from stallscope.verbs.flame.result import CHANGES, Flame, difference_sentence, sentence
from stallscope.verbs.flame.tree import COLOURS, difference_notes, notes_of, of_difference, of_flame
from stallscope.views import document as page

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.charts.sheet import Sheet
    from stallscope.verbs.flame.result import FlameDifference


MOST_ROWS: Final = 20
LONGEST_TITLE: Final = 300
SPEEDSCOPE: Final = "https://www.speedscope.app/file-format-schema.json"
"""The name of the format, which its files carry; nothing is fetched from there."""


_KEY: Final = (
    "share: with what torch, numpy and others compute for it; decode, libraries' transforms, "
    "reading and sending stand apart"
)
_INTERVALS: Final = {
    WINDOWS: "windows of consecutive samples were resampled",
    WILSON: "by Wilson's formula, which takes samples as independent: true ends may be wider",
}


NAME: Final = page.RowText("your function", lambda row: printable(row["function"], 40))
FILE: Final = page.RowText(
    "file", lambda row: printable(StackFunction(row["function"], row["file"]).place, 40)
)


def plot(flame: Flame | FlameDifference) -> Sheet:
    """Draw the picture; in a difference, what grew is orange and what shrank is blue."""
    from stallscope.charts import flame as chart

    return chart.figure(flame) if isinstance(flame, Flame) else chart.difference_figure(flame)


def panel(flame: Flame | FlameDifference) -> Any:
    """Return the viewer: zoom, search, details, switches; see `views.flame_viewer`."""
    from stallscope.views.flame_viewer import FlameViewer
    from stallscope.views.panels import Panel

    viewer = Panel([FlameViewer(data=_tree(flame))])
    viewer.still = plot(flame)
    return viewer


def _tree(flame: Flame | FlameDifference) -> dict[str, Any]:
    return of_flame(flame) if isinstance(flame, Flame) else of_difference(flame)


def document(flame: Flame | FlameDifference) -> page.Document:
    """Return the user's functions as a table."""
    rows = flame.table().head(MOST_ROWS).to_dicts()
    if isinstance(flame, Flame):
        bars = [page.CellBar(row["self_share"], COLOURS["yours"]) for row in rows]
        columns: list[Any] = TABLE.shown("self_share self_share_low total_share")
        notes = _notes(flame)
    else:
        shares, interval = CHANGES.shown("before_share after_share"), CHANGES.shown("change_low")
        bars, columns = [], [*shares, page.RowText("change", _change), *interval]
        notes = difference_notes(flame)
    table = page.Table.of([NAME, *columns, FILE], rows, bars=bars)
    return page.Document("flames", [page.Heading(_title(flame)), table, page.Notes(notes)])


def _change(row: dict[str, Any]) -> str:
    return f"{100 * row['change']:+.1f} points" if row["distinguishable"] else NOT_DISTINGUISHABLE


def _title(flame: Flame | FlameDifference) -> str:
    text = sentence(flame) if isinstance(flame, Flame) else difference_sentence(flame)
    return printable(text, LONGEST_TITLE)


def _notes(flame: Flame) -> list[str]:
    if flame.samples.is_empty():
        return list(flame.notes)
    rows = flame.table()
    kinds = kind_shares(flame.samples)
    parts = ", ".join(f"{SAMPLE_KINDS[name]} {share(part)}" for name, part in kinds.items())
    notes = [f"of all samples: {parts}"]
    if not rows.is_empty():
        notes += [f"{_KEY} · interval: {_INTERVALS[rows['interval'][0]]}"]
    if rows.height > MOST_ROWS:
        notes += [f"not shown: {rows.height - MOST_ROWS} more functions of yours"]
    return [*notes, *notes_of(flame)]


def export(flame: Flame | FlameDifference, path: str | Path) -> Path:
    """Write a flamegraph; see `Flame.export`."""
    from stallscope.views import flame_viewer

    makers: dict[str, Callable[[], str]] = {
        ".html": lambda: flame_viewer.page(_tree(flame), document(flame).html())
    }
    if isinstance(flame, Flame):
        makers[".json"] = lambda: json.dumps(speedscope(flame), separators=(",", ":"))
    return page.write(Path(path), makers)


def speedscope(flame: Flame) -> dict[str, Any]:
    """Return the recording of all workers together in speedscope's format.

    (https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources)
    """
    stacks = flame.stacks().group_by("stack", maintain_order=True).agg(pl.col("hits").sum())
    places: dict[str, int] = {}
    samples = [
        [places.setdefault(text, len(places)) for text in stack.split(";")]
        for stack in stacks["stack"]
    ]
    weights = stacks["hits"].to_list()
    profile = {
        "type": "sampled",
        "name": flame.circumstances.name or "workers",
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
    return {
        "$schema": SPEEDSCOPE,
        "shared": {"frames": [_speedscope_frame(text) for text in places]},
        "profiles": [profile],
        "exporter": "stallscope",
    }


def _speedscope_frame(text: str) -> dict[str, Any]:
    match = re.fullmatch(r"(?P<name>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)", text, re.DOTALL)
    if match is None:
        return {"name": text}
    line = {"line": int(match["line"])} if match["line"] else {}
    return {"name": match["name"], "file": match["file"], **line}


_SHOWS: Final = "the merged stacks of all workers"
VIEW: Final = page.View(
    "a flamegraph",
    document,
    {"flame": (_SHOWS, plot)},
    {"flame": (_SHOWS, "flame.panel")},
    page.answered(_title, functions="table"),
)
