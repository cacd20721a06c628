"""Code in a notebook, in a terminal and as files: flamegraphs, and listings of timed lines.

A difference has the same picture, viewer and table as a flamegraph, with the changes. The viewer is
a thin skin over `static/viewer.js`, as a widget and as an HTML page that needs no kernel and no
network. The page forbids itself every request, so that what it shows stays on the machine.

Listings have heat. A long function is shown as its hot lines and the lines around them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from stallscope.bench.comparison import SAME
from stallscope.model.thresholds import SMALL
from stallscope.stages import COLOURS as STAGE_COLOURS
from stallscope.stats import WILSON, WINDOWS
from stallscope.units import (
    LONGEST_NOTE,
    LONGEST_TITLE,
    count,
    file_name,
    printable,
    share,
    worker_name,
)
from stallscope.verbs.flame.classify import (
    CHANGE_COLOURS,
    COLOURS,
    FRAME,
    KINDS,
    TABLE,
    StackFunction,
    kind_shares,
    tree,
)
from stallscope.verbs.flame.result import CHANGES, Flame, notes_of, recordings_of, sentence
from stallscope.verbs.lines import result as lines_result
from stallscope.views import document as page
from stallscope.views.document import MOST_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from markupsafe import Markup

    from stallscope.verbs.flame.result import FlameDifference
    from stallscope.verbs.lines.result import Lines


SPEEDSCOPE: Final = "https://www.speedscope.app/file-format-schema.json"
"""The name of the format, which its files carry; nothing is fetched from there."""

_NAME_LENGTH: Final = 200
_UNKNOWN: Final = "unknown stage"
_KEY: Final = (
    "share: including torch, numpy and other libraries; decode, libraries' transforms, reading "
    "and sending are separate"
)
_INTERVALS: Final = {
    WINDOWS: "windows of consecutive stacks were resampled",
    WILSON: "by Wilson's formula for independent stacks: true intervals may be wider",
}


NAME: Final = page.RowText("your function", lambda row: printable(row["function"], 40))
FILE: Final = page.RowText(
    "file", lambda row: printable(StackFunction(row["function"], row["file"]).place, 40)
)


def _flame(flame: Flame | FlameDifference) -> page.Document:
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
    return page.Document("flames", [page.Heading(sentence(flame)), table, page.Notes(notes)])


def _change(row: dict[str, Any]) -> str:
    return f"{100 * row['change']:+.1f} points" if row["distinguishable"] else SAME


def _notes(flame: Flame) -> list[str]:
    if flame.samples.is_empty():
        return list(flame.notes)
    rows = flame.table()
    kinds = kind_shares(flame.samples)
    parts = ", ".join(f"{KINDS[name]} {share(part)}" for name, part in kinds.items())
    notes = [f"of all stacks: {parts}"]
    if not rows.is_empty():
        notes += [f"{_KEY} · interval: {_INTERVALS[rows['interval'][0]]}"]
    if rows.height > MOST_ROWS:
        notes += [f"not shown: {count(rows.height - MOST_ROWS, 'more function')} of yours"]
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
        "title": printable(sentence(flame), LONGEST_TITLE),
        "notes": [printable(note, LONGEST_NOTE) for note in notes_of(flame)],
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
    data = viewer_data(flame)
    return page.fill(
        "flame.html",
        title=data["title"],
        style=page.static("viewer.css"),
        data=to_json(data),
        script=page_script(),
        below=_flame(flame).html(),
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
    match = FRAME.fullmatch(text)
    if match is None:
        return {"name": text}
    line = {"line": int(match["line"])} if match["line"] else {}
    return {"name": match["function"], "file": match["file"], **line}


_SHOWS: Final = "the merged stacks of all workers"
FLAME: Final = page.View(
    "a flamegraph",
    _flame,
    {"flame": (_SHOWS, "flame.figure")},
    {"flame": (_SHOWS, "panels.flame_panel")},
    page.answered(sentence, functions="table"),
)


# ---- timed lines ---------------------------------------------------------------------------------

_COLUMNS: Final = lines_result.TABLE.shown("hits time_s share own_share")
LINE_HEADS: Final = ("line", *(column.head for column in _COLUMNS), "source")
MOST_FUNCTIONS: Final = 6
"""Listings in a terminal; a notebook has all, and opens the first."""

LONG: Final = 30
"""Lines up to which a function is shown in full."""
AROUND: Final = 2
SHORTEST_GAP: Final = 3
TAB: Final = 4

_HEAT: Final = "80"
"""Half transparent, so that a light and a dark ground both leave the text readable."""


def _lines(lines: Lines) -> page.Document:
    blocks = [
        page.Heading(lines_result.sentence(lines)),
        Listings(lines, lines_result.in_order(lines)),
        page.Notes(lines_result.notes_of(lines)),
    ]
    return page.Document("lines", blocks)


class Shown(NamedTuple):
    """A line of a listing."""

    line: int
    source: str
    """Without the indentation that all lines share; empty where there is no source."""
    own_share: float = 0.0
    cells: tuple[str, ...] = ("",) * 4
    """Hits, time, share and own share; empty for a line that never ran (a comment, another
    branch)."""


def listing(lines: Lines, function: dict[str, Any]) -> list[Shown | str]:
    """Return the lines of a function (a row of `in_order`); a sentence where some are left out."""
    all_lines = _all(lines, function["function"])
    wanted = set(range(len(all_lines)))
    if len(all_lines) > LONG:  # the first lines, the hot ones, and those around
        hottest = max(range(len(all_lines)), key=lambda place: all_lines[place].own_share)
        hot = [place for place, line in enumerate(all_lines) if line.own_share >= SMALL]
        wanted = {near for at in (0, hottest, *hot) for near in range(at - AROUND, at + AROUND + 1)}
    shown: list[Shown | str] = []
    for is_shown, places in groupby(range(len(all_lines)), wanted.__contains__):
        part = [all_lines[place] for place in places]
        few = len(part) < SHORTEST_GAP  # leaving them out would save nothing
        shown += part if is_shown or few else [f"… {count(len(part), 'line')} not shown"]
    return shown


def _all(lines: Lines, name: str) -> list[Shown]:
    ran = {
        row["line"]: (row["own_share"] or 0.0, tuple(column.cell(row) for column in _COLUMNS))
        for row in lines.table().filter(pl.col("function") == name).iter_rows(named=True)
    }
    sources = lines.sources.filter(pl.col("function") == name)
    texts = {line: text.expandtabs(TAB) for _, line, text in sources.iter_rows()}
    texts = dict(zip(texts, dedent("\n".join(texts.values())).split("\n"), strict=False))
    return [Shown(at, texts.get(at, ""), *ran.get(at, ())) for at in sorted({*texts, *ran})]


@dataclass(frozen=True)
class Listings:
    """Functions, each of which opens and closes in a notebook; the first is open."""

    lines: Lines
    functions: Sequence[dict[str, Any]]
    """Rows of `lines.result.in_order`."""

    def __str__(self) -> str:
        form = "{:>6} {:>9} {:>9} {:>6} {:>6}   {}"
        blocks = []
        for function in self.functions[:MOST_FUNCTIONS]:
            rows = [self._head(function), form.format(*LINE_HEADS)]
            for line in listing(self.lines, function):
                if isinstance(line, str):
                    rows.append(f"{'':>40}   {line}")
                else:
                    cells = (line.line, *line.cells, printable(line.source, 100))
                    rows.append(form.format(*cells).rstrip())
            blocks.append("\n".join(rows))
        if hidden := self.functions[MOST_FUNCTIONS:]:
            names = ", ".join(printable(row["function"], 60) for row in hidden)
            blocks.append(f"not shown: {count(len(hidden), 'more function')} ({names})")
        return "\n\n".join(blocks)

    def __html__(self) -> Markup:
        listings = []
        for function in self.functions:
            rows = [
                line if isinstance(line, str) else line._replace(source=printable(line.source, 200))
                for line in listing(self.lines, function)
            ]
            hottest = max((row.own_share for row in rows if isinstance(row, Shown)), default=0.0)
            colour = STAGE_COLOURS.get(function["kind"] or "other", STAGE_COLOURS["other"]) + _HEAT
            listings.append((self._head(function), colour, hottest, rows))
        return page.fill("lines.html", heads=LINE_HEADS, listings=listings)

    def _head(self, function: dict[str, Any]) -> str:
        unit = self.lines.circumstances.unit
        own = f"{share(function['own_share'] or 0.0)} of a {unit}'s time is its own"
        parts = [f"{function['function']}: {own}"]
        if function["stage"] and function["stage"] != function["function"]:
            parts.append(f"stage {function['stage']}")
        parts.append(f"{file_name(function['file'], 60)}:{function['line']}")
        if function["why_not"]:
            parts.append(f"its source is not shown: {function['why_not']}")
        return printable(" · ".join(parts), 300)


LINES: Final = page.View(
    "lines",
    _lines,
    {"lines": ("the lines with most time of their own", "results.lines_figure")},
    {"listing": ("one function with the heat of its lines", "panels.lines_panel")},
    lambda lines: {
        "answer": lines_result.sentence(lines),
        "functions": lines_result.in_order(lines),
        "lines": lines.table().to_dicts(),
    },
)
