"""A result as a document: a view builds it once, a terminal and a notebook show it.

Texts come from other people's code and disks. A terminal gets printable characters only, and HTML
is put together by `Markup`, which escapes whatever is not HTML already; it is readable on a light
and on a dark ground. Files that others can open are written here as well: whole, or not at all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from textwrap import indent
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jinja2
from markupsafe import Markup

from stallscope.errors import StallscopeError
from stallscope.files import __version__, system_errors_as, whole_file
from stallscope.result import named
from stallscope.units import LONGEST_NOTE, count, json_without_controls, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from stallscope.columns import Column

MOST_ROWS: Final = 20
"""Most rows of a table on a page; `table()` has all."""
_LONGEST_BAR_PX: Final = 100


@cache
def static(name: str) -> str:
    """Read a file of `static/`."""
    return files("stallscope.views").joinpath("static", name).read_text(encoding="utf-8")


def html(template: str, *parts: Any, **named: Any) -> Markup:
    """Fill a template of HTML; every part that is no `Markup` is escaped."""
    return Markup(template).format(*parts, **named)  # noqa: S704 - only constants are templates


def join(parts: Iterable[Any]) -> Markup:
    """Put pieces of HTML together."""
    return Markup().join(parts)


def fill(template: str, **values: Any) -> Markup:
    """Fill one of `templates/`; every value that is no `Markup` is escaped."""
    return Markup(_TEMPLATES.get_template(template).render(values))  # noqa: S704 - escaped


_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("stallscope.views", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,  # a missing name is an error, not an empty text
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Document:
    """Blocks under each other, in a terminal with an empty line between them."""

    name: str
    """Name in the class of its HTML element: `stallscope-<name>`."""
    blocks: Sequence[Any]
    """Parts that have `__str__` for a terminal, left out where it is empty, and `__html__`."""

    def text(self) -> str:
        """Render the document for a terminal."""
        return "\n\n".join(filter(None, map(str, self.blocks)))

    def html(self) -> Markup:
        """Render the document for a notebook."""
        return html("<div class='stallscope-{}'>{}</div>", self.name, join(self.blocks))


@dataclass(frozen=True)
class Heading:
    """The answer in one sentence, and lines that belong to it."""

    title: str
    below: Sequence[str] = ()

    def __str__(self) -> str:
        return "\n".join(printable(line, LONGEST_NOTE) for line in (self.title, *self.below))

    def __html__(self) -> Markup:
        title, *below = str(self).split("\n")
        head = html("<p style='font-weight:bold;margin:.8em 0 .3em'>{}</p>", title)
        return head + join(html("<p style='margin:.3em 0'>{}</p>", line) for line in below)


class CellBar(NamedTuple):
    """A bar before the first number of a row; the longest of a table fills the room."""

    length: float
    colour: str


class RowText(NamedTuple):
    """A column of a table, formatted from whole rows."""

    head: str
    cell: Callable[[Any], str]


@dataclass(frozen=True)
class Table:
    """Names and numbers; nothing at all where it has no rows."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Names first, then numbers."""
    bars: Sequence[CellBar] = ()
    """One for each row, or none."""
    key: str = ""
    """Explanation of the heads."""

    @classmethod
    def of(
        cls,
        columns: Sequence[Column | RowText],
        rows: Sequence[Mapping[str, Any]],
        *,
        bars: Sequence[CellBar] = (),
        key: str = "",
    ) -> Table:
        """Return a table of rows of a result's table, with these columns (see `Schema.shown`)."""
        texts = [[column.cell(row) for column in columns] for row in rows]
        return cls([column.head for column in columns], texts, bars, key)

    def __str__(self) -> str:
        if not self.rows:
            return ""
        table = (self.heads, *self.rows)
        widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
        lines = []
        for name, *cells in table:
            right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *right]).rstrip())
        return "\n".join([*lines, *([self.key] if self.key else [])])

    def __html__(self) -> Markup:
        if not self.rows:
            return Markup()
        longest = max((bar.length for bar in self.bars), default=0.0) or 1.0
        bars = [(f"{_LONGEST_BAR_PX * bar.length / longest:.0f}", bar.colour) for bar in self.bars]
        key = Notes([self.key] if self.key else [])
        return fill("table.html", heads=self.heads, rows=zip_longest(self.rows, bars), key=key)


@dataclass(frozen=True)
class Code:
    """Source to copy, under a line that says what it does; a notebook folds it away."""

    summary: str
    source: str

    def __str__(self) -> str:
        return f"{self.summary}:\n\n{indent(self.source.rstrip(), ' ' * 4)}"

    def __html__(self) -> Markup:
        fold = "<details style='margin:.3em 0'><summary>{}</summary><pre>{}</pre></details>"
        return html(fold, self.summary, self.source.rstrip())


@dataclass(frozen=True)
class Bullets:
    """A list of sentences; with a summary it opens on a click, and a terminal does without it."""

    items: Sequence[str]
    summary: str = ""

    def __str__(self) -> str:
        return "" if self.summary else "\n".join(f"- {item}" for item in self.items)

    def __html__(self) -> Markup:
        items = join(html("<li>{}</li>", item) for item in self.items)
        fold = "<details style='margin:.3em 0'><summary>{1}</summary><ul>{0}</ul></details>"
        form = fold if self.summary else "<ul style='margin:.3em 0'>{}</ul>"
        return html(form, items, self.summary) if items else items


@dataclass(frozen=True)
class Notes:
    """Caveats in small print; a notebook folds most of them."""

    notes: Sequence[str]
    shown: int = 1
    """Number of visible notes; notes on a simulation are always visible."""

    def __str__(self) -> str:
        return "\n".join(printable(note, LONGEST_NOTE) for note in self.notes)

    def __html__(self) -> Markup:
        lines = [printable(note, LONGEST_NOTE) for note in self.notes]
        first, others = lines[: self.shown], lines[self.shown :]
        first += [line for line in others if "simulated" in line]
        folded = [line for line in others if "simulated" not in line]
        if self.shown and len(folded) == 1:  # as long as what would lead to it
            first, folded = first + folded, []
        small = "<p style='font-size:90%;opacity:.75;margin:.3em 0'>{}</p>"
        shown, hidden = (join(html(small, line) for line in part) for part in (first, folded))
        if not folded:
            return shown
        number = count(len(folded), "more sentence" if first else "sentence")
        summary = f"What to know about these numbers: {number}"
        fold = "{}<details style='margin:.2em 0'><summary>{}</summary>{}</details>"
        return html(fold, shown, summary, hidden)


@dataclass(frozen=True)
class View:
    """Display of a kind of result: its document, pictures, panels and JSON."""

    whose: str
    """Name in an error: "a run"."""
    document: Callable[[Any], Document]
    pictures: Mapping[str, tuple[str, str | Callable[[Any], Any]]]
    """Pictures by name, the default first: description, and a function or the name of a function in
    `charts`, such as "results.settings_figure"."""
    panels: Mapping[str, tuple[str, str]]
    """Panels by name, the default first: description and function in `views`; without panels, the
    pictures are offered."""
    values: Callable[[Any], Mapping[str, Any]]
    """Contents of the JSON, beside circumstances and notes."""

    def plot(self, result: Any, kind: str) -> Any:
        """Draw a picture."""
        draw = self.pictures[kind][1]
        return named("charts", draw)(result) if isinstance(draw, str) else draw(result)

    def panel(self, result: Any, kind: str) -> Any:
        """Return the widgets of a panel."""
        if self.panels:
            return named("views", self.panels[kind][1])(result)
        offered = {name: shows for name, (shows, _) in self.pictures.items()}
        return named("views", "panels.pictures")(result, offered, kind)

    def as_json(self, result: Any) -> str:
        """Return the answer and its data, for programs."""
        values = {"stallscope": __version__, **self.values(result)}
        if hasattr(result, "circumstances"):
            values["circumstances"] = vars(result.circumstances)
        values["notes"] = getattr(result, "notes", ())
        # JSON has no infinity and no nan
        plain = json.loads(json.dumps(values, default=_plain), parse_constant=lambda _: None)
        return json.dumps(json_without_controls(plain), indent=2)


def answered(answer: Callable[[Any], str], **attributes: str) -> Callable[[Any], dict[str, Any]]:
    """Return the values of a `View`: the answer of a result, and attributes by the JSON's names."""

    def values(result: Any) -> dict[str, Any]:
        content = {key: getattr(result, name) for key, name in attributes.items()}
        content = {key: value() if callable(value) else value for key, value in content.items()}
        return {"answer": answer(result), **content}

    return values


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a table as its rows, a number of numpy's, settings."""
    for name in ("to_dicts", "item"):
        if hasattr(value, name):
            return getattr(value, name)()
    if is_dataclass(value):
        return vars(value)
    return dict(value) if hasattr(value, "keys") else str(value)


class ExportError(StallscopeError, ValueError):
    """A result cannot be written to a path: unknown suffix, a folder, no permission."""


def write(path: Path, makers: Mapping[str, Callable[[], str]]) -> Path:
    """Write a file and its folder, over an older one; `makers` give the text for each ending.

    Raises:
        ExportError: another ending, or the file cannot be written there.
    """
    make = makers.get(path.suffix.lower())
    if make is None:
        raise ExportError(
            f"{path.name!r} ends in none of {', '.join(makers)}: give a name that does, such as "
            f"{path.with_suffix(next(iter(makers))).name!r}"
        )
    text = make()
    with system_errors_as(ExportError, f"{path} cannot be written", "give another place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(text.encode("utf-8", "replace"))
    return path
