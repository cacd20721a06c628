"""Columns of tables, each declared once: its type, meaning, head, form, secrecy and valid values.

A table's schema and documentation, its view in terminal and notebook, the parts that `redacted`
removes, and the checks of a saved table all come from these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import polars as pl

from stallscope.stats import INTERVAL
from stallscope.units import CONTROLS, NO_LETTER, printable, seconds, share, size, times

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

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
_LARGEST: Final = 1 << 53
"""Largest count and time in ns of a table (104 days), so that sums are exact."""
_LARGEST_FLOAT: Final = 1e30
"""Largest float, above every measurement; its square is still finite."""
_NEVER_NEGATIVE: Final = ("_share", "bytes", "_s", "seconds", "hits")
"""Suffixes of the names of numbers that are never negative, except `ready_s`: a worker may be ready
before the start of its epoch."""


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
    words: Collection[Any] = ()
    """All valid values, if the views look the values up."""
    is_divisor: bool = False
    """True if its values must be above 0."""
    any_number: bool = False
    """True if every number is valid, also an infinity."""

    def cell(self, row: Mapping[str, Any]) -> str:
        """Return the value in a row as text; for the lower end of an interval, the interval."""
        form = self.form or unit_of(self.name)[1]
        high = self.name.replace("_low", "_high")
        is_interval = high != self.name and high in row
        values = [row[name] for name in ((self.name, high) if is_interval else (self.name,))]
        return NO_VALUE if None in values else " to ".join(map(form, values))


def interval(
    low: str, form: Callable[[Any], str] | None = None, doc: str = "its 95% CI"
) -> tuple[Column, Column]:
    """Return the columns of an interval's ends; `low` names the first. Shown if it has a form."""
    lower = Column(low, pl.Float64, doc, INTERVAL if form else "", form)
    return lower, Column(low.replace("_low", "_high"), pl.Float64)


class Schema(dict[str, "PolarsDataType"]):
    """Types of a table's columns by name, for polars; and the declarations behind them."""

    def __init__(self, about: str, *columns: Column, nullable: str = "") -> None:
        """Declare a table; `nullable` names the columns that may hold null (in a saved table)."""
        super().__init__((column.name, column.kind) for column in columns)
        self.about = about
        self.columns = columns
        self._nullable = nullable.split()

    def __repr__(self) -> str:
        lines = (f"{column.name} ({column.kind}): {column.doc}" for column in self.columns)
        return "\n".join([self.about, *lines])

    def shown(self, names: str = "") -> list[Column]:
        """Return the columns with a heading, or the named ones (names between spaces)."""
        if not names:
            return [column for column in self.columns if column.head]
        by_name = {column.name: column for column in self.columns}
        return [by_name[name] for name in names.split()]

    def texts(self) -> dict[str, str]:
        """Return the kind of text of each text column; by default a sentence."""
        return {
            column.name: column.secret or _BY_NAME.get(column.name, SENTENCE)
            for column in self.columns
            if column.kind in (pl.String, pl.Categorical)
        }

    def read(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return an untrusted table without control characters.

        Raises:
            ValueError: a column is missing, or has another type or an impossible value.
        """
        for name, kind in self.items():
            if frame.schema[name] != kind:
                types = f"{frame.schema[name]}, not {kind}"
                raise ValueError(f"{name} has values of the type {types}")
        texts = pl.col(pl.String, pl.Categorical).cast(pl.String)
        readable = frame.with_columns(texts.str.replace_all(CONTROLS, NO_LETTER))
        return self.checked(readable.select(pl.col(name).cast(self[name]) for name in self))

    def checked(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the table if its values are valid; else raise ValueError."""
        for column in self.columns:
            if why := self._why_not(column, frame[column.name]):
                raise ValueError(f"{column.name} {why}")
        if "start_ns" in self and not (frame["end_ns"] >= frame["start_ns"]).all():
            raise ValueError("spans end before they start")
        return frame

    def _why_not(self, column: Column, series: pl.Series) -> str:
        """Return the fault in the values of a column; empty if they are valid."""
        name, values = column.name, series.drop_nulls()
        if name not in self._nullable and series.null_count():
            return "has null values"
        if column.words:
            unknown = set(values.unique().cast(pl.String)) - {*map(str, column.words)}
            return f"has an unknown word ({printable(min(unknown))})" if unknown else ""
        if series.dtype == pl.Float64 and values.is_nan().any():
            return "has values that are not numbers"
        if series.dtype.is_numeric() and values.len() and not column.any_number:
            ends = cast("float", values.min()), cast("float", values.max())
            largest = _LARGEST_FLOAT if series.dtype == pl.Float64 else _LARGEST
            if not is_possible(name, *ends, largest) or (column.is_divisor and ends[0] <= 0):
                return "has impossible numbers"
        return ""


def is_possible(name: str, least: float, most: float, largest: float = _LARGEST_FLOAT) -> bool:
    """Return whether numbers of that name are possible measurements, by the unit in it."""
    smallest = 0 if name.endswith(_NEVER_NEGATIVE) and name != "ready_s" else -largest
    return smallest <= least and most <= largest


_BY_NAME: Final = {
    **dict.fromkeys(("stage", "function", "caller", "name"), NAME),
    "state": DIGEST,
    "stack": STACK,
    "file": CODE_FILE,
    "path": PATH,
    "source": CODE,
}
"""Default secrecy of texts, by name of the column."""
