"""Columns of tables, each declared once: its type, meaning, head, form and secrecy.

A table's schema and documentation, its view in terminal and notebook, and the parts that `redacted`
removes all come from these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.units import printable, seconds, share, size, times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from polars._typing import PolarsDataType

SENTENCE, NAME, DIGEST = "sentence", "name", "digest"
PATH, CODE_FILE, STACK, CODE = "path", "code file", "stack", "code"
"""Kinds of texts, for `redacted`. Names (of functions, classes, stages) and digests stay; in a
sentence, stallscope's own words stay; the rest is replaced."""

NO_VALUE: Final = "—"
_LONGEST_TEXT: Final = 60
FACTOR: Final = "_factor"
_UNITS: Final[tuple[tuple[str, Callable[[Any], str]], ...]] = (
    ("_bytes_per_s", lambda value: f"{size(value)}/s"),
    ("_per_s", lambda value: f"{value:,.3g}/s"),
    ("_share", share),
    ("_bytes", size),
    ("_ns", lambda value: seconds(value / 1e9)),
    ("_s", seconds),
    ("_count", lambda value: f"{value:,.3g}"),
    (FACTOR, times),
)
"""Suffixes of names and the form of their values; longer suffixes come first."""


def unit_of(name: str) -> tuple[str, Callable[[Any], str]]:
    """Return the unit that a name ends in ("" without one), and the form of its values."""
    for end, form in _UNITS:
        if f"_{name}".endswith(end):
            return end, form
    return "", _plain


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return printable(value, _LONGEST_TEXT)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    """Name that ends in its unit: `_s`, `_ns`, `_bytes`, `_per_s`, `_share` (0 to 1)."""
    kind: PolarsDataType
    doc: str = ""
    """Meaning and population; null means not measured."""
    head: str = ""
    """Heading in a shown table; a column without a heading is hidden."""
    form: Callable[[Any], str] | None = None
    """A value as text; by default the form of the unit."""
    secret: str = ""
    """Kind of a text: `SENTENCE`, `NAME`, `DIGEST`, `PATH`, `CODE_FILE`, `STACK` or `CODE`; by
    default the kind in `_BY_NAME`, else a sentence."""

    def cell(self, row: Mapping[str, Any]) -> str:
        """Return the value in a row as text; for the lower end of an interval, the interval."""
        form = self.form or unit_of(self.name)[1]
        high = self.name.replace("_low", "_high")
        is_interval = high != self.name and high in row
        values = [row[name] for name in ((self.name, high) if is_interval else (self.name,))]
        return NO_VALUE if None in values else " to ".join(map(form, values))


class Schema(dict[str, "PolarsDataType"]):
    """Types of a table's columns by name, for polars; and the declarations behind them."""

    def __init__(self, about: str, *columns: Column) -> None:
        super().__init__((column.name, column.kind) for column in columns)
        self.about = about
        self.columns = columns

    def __repr__(self) -> str:
        lines = (f"{column.name} ({column.kind}): {column.doc}" for column in self.columns)
        return "\n".join([self.about, *lines])

    def shown(self, names: str = "") -> list[Column]:
        """Return the columns with a heading, or the named ones (names between spaces)."""
        if not names:
            return [column for column in self.columns if column.head]
        by_name = {column.name: column for column in self.columns}
        return [by_name[name] for name in names.split()]


_BY_NAME: Final = {
    **dict.fromkeys(("stage", "function", "caller", "name"), NAME),
    "state": DIGEST,
    "stack": STACK,
    "file": CODE_FILE,
    "path": PATH,
    "source": CODE,
}
"""Default secrecy of texts, by name of the column."""


def secrecy(schema: Mapping[str, PolarsDataType]) -> dict[str, str]:
    """Return the kind of text of each text column; by default a sentence."""
    stated = {column.name: column.secret for column in getattr(schema, "columns", ())}
    return {
        name: stated.get(name) or _BY_NAME.get(name, SENTENCE)
        for name, kind in schema.items()
        if kind in (pl.String, pl.Categorical)
    }
