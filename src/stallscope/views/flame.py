"""Flamegraphs in a notebook, in a terminal and as files for others; of one recording, or of two.

A difference has the same picture, viewer and table as a flamegraph, with the changes. The viewer is
a thin skin over `static/viewer.js`, as a widget and as an HTML page that needs no kernel and no
network. The page forbids itself every request, so that what it shows stays on the machine.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.stats import NOT_DISTINGUISHABLE, WILSON, WINDOWS
from stallscope.units import printable, share, worker_name
from stallscope.verbs.flame.classify import (
    CHANGE_COLOURS,
    COLOURS,
    KINDS,
    TABLE,
    StackFunction,
    kind_shares,
    tree,
)
from stallscope.verbs.flame.result import CHANGES, Flame, notes_of, recordings_of, title
from stallscope.views import document as page

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.verbs.flame.result import FlameDifference


MOST_ROWS: Final = 20
SPEEDSCOPE: Final = "https://www.speedscope.app/file-format-schema.json"
"""The name of the format, which its files carry; nothing is fetched from there."""

_NAME_LENGTH: Final = 200
_UNKNOWN: Final = "stage not known"
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
        notes = notes_of(flame)
    table = page.Table.of([NAME, *columns, FILE], rows, bars=bars)
    return page.Document("flames", [page.Heading(title(flame)), table, page.Notes(notes)])


def _change(row: dict[str, Any]) -> str:
    return f"{100 * row['change']:+.1f} points" if row["distinguishable"] else NOT_DISTINGUISHABLE


def _notes(flame: Flame) -> list[str]:
    if flame.samples.is_empty():
        return list(flame.notes)
    rows = flame.table()
    kinds = kind_shares(flame.samples)
    parts = ", ".join(f"{KINDS[name]} {share(part)}" for name, part in kinds.items())
    notes = [f"of all samples: {parts}"]
    if not rows.is_empty():
        notes += [f"{_KEY} · interval: {_INTERVALS[rows['interval'][0]]}"]
    if rows.height > MOST_ROWS:
        notes += [f"not shown: {rows.height - MOST_ROWS} more functions of yours"]
    return [*notes, *notes_of(flame)]


# ---- the viewer ----------------------------------------------------------------------------------


def viewer_script() -> str:
    """Return the viewer with the library that it draws with; it defines `mountFlame`."""
    return f"{page.static('d3-flame-graph.min.js')}\n{page.static('viewer.js')}"


def viewer_data(flame: Flame | FlameDifference) -> dict[str, Any]:
    """Return plain lists for the viewer, which sums the hits that it shows."""
    shown = tree(*(recording.samples for recording in recordings_of(flame)))
    names = [
        (function.function, function.place) if function else ("all", "") for function in shown.names
    ]
    workers = sorted({worker for worker, _ in shown.groups}, key=_none_last)
    stages = sorted({stage for _, stage in shown.groups}, key=_none_last)
    kinds = shown.kinds()
    key = {name: COLOURS[kind] for kind, name in KINDS.items() if kind in kinds[1:]}
    return {
        "title": title(flame),
        "notes": notes_of(flame),
        "key": [*map(list, (key if isinstance(flame, Flame) else CHANGE_COLOURS).items())],
        "workers": [worker_name(worker) for worker in workers],
        "stages": [_UNKNOWN if stage is None else printable(stage) for stage in stages],
        "groups": [[workers.index(worker), stages.index(stage)] for worker, stage in shown.groups],
        "frames": [[printable(part, _NAME_LENGTH) for part in name] for name in names],
        "frame": shown.name.tolist(),
        "parents": shown.parents.tolist(),
        "kind": kinds,
        "kindNames": KINDS,
        "colours": COLOURS,
        "recordings": [
            {
                "places": [place for place, _ in hits],
                "groups": [group for _, group in hits],
                "counts": list(hits.values()),
            }
            for hits in shown.recordings
        ],
    }


def _none_last(value: Any) -> tuple[bool, Any]:
    return value is None, value


def to_json(data: dict[str, Any]) -> str:
    """Return data for an element `script` of a page, which only "</" could end."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def page_script() -> str:
    """Return the viewer for a page: it draws the element `data` into the element `flame`."""
    data = 'JSON.parse(document.getElementById("data").textContent)'
    return f'{viewer_script()}\nmountFlame(document.getElementById("flame"), {data});\n'


# ---- files ---------------------------------------------------------------------------------------


def export(flame: Flame | FlameDifference, path: str | Path) -> Path:
    """Write a flamegraph; see `Flame.export`."""
    makers: dict[str, Callable[[], str]] = {".html": lambda: _html(flame)}
    if isinstance(flame, Flame):
        makers[".json"] = lambda: json.dumps(speedscope(flame), separators=(",", ":"))
    return page.write(Path(path), makers)


def _html(flame: Flame | FlameDifference) -> str:
    """Return the page: the graph, and the table below."""
    data = viewer_data(flame)
    return page.fill(
        "flame.html",
        title=data["title"],
        style=page.static("viewer.css"),
        data=to_json(data),
        script=page_script(),
        below=document(flame).html(),
    )


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
    {"flame": (_SHOWS, "flame.figure")},
    {"flame": (_SHOWS, "panels.flame_panel")},
    page.answered(title, functions="table"),
)
