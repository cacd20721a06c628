"""What the stall panel asks a run: one stall after the other, as a picture and as a table.

Plain functions of a run, without widgets, so that the panel is only a skin.
"""

from __future__ import annotations

from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count, seconds, share
from stallscope.views.charts.stall import parts_of, picture, was_recorded
from stallscope.views.loop import title
from stallscope.views.names import file_name, shown, worker_name

if TYPE_CHECKING:
    from stallscope.run import Run
    from stallscope.views.charts.style import Sheet

LONGEST: Final = "the longest first"
IN_TIME: Final = "as they came"
MOST_PARTS: Final = 8
NOT_RECORDED: Final = "this batch was not recorded: its making is divided as that of the others"
_HEADS: Final = ("step", "batch", "worker", "wait", "longest part")
_PART_HEADS: Final = ("part of the wait", "share", "time")
_CELL: Final = "padding:2px 10px;text-align:right;border:none"
_NAME: Final = "padding:2px 10px;text-align:left;border:none"


class Stalls:
    """The stalls of a run, in the order that is asked for.

    Attributes:
        orders: what can be asked for, each a label; the first is the usual one.
        number: how many stalls there are.
    """

    orders = (LONGEST, IN_TIME)

    def __init__(self, run: Run) -> None:
        self.run = run
        self._rows = run.stalls().sort("start_ns", "rank")
        self.number = self._rows.height

    @property
    def none(self) -> str:
        """What to say where there is no stall."""
        return title(self.run)

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """For each order, the stalls by their place in time."""
        longest = self._rows["stall_s"].arg_sort(descending=True).to_list()
        return {LONGEST: longest, IN_TIME: list(range(self.number))}

    def stall(self, order: str, number: int) -> int:
        """Which stall has this number, from 1, in this order: its place in time."""
        return self._places[order][number - 1]

    def number_of(self, order: str, stall: int) -> int:
        """The number, from 1, that a stall has in this order."""
        return self._places[order].index(stall) + 1

    def draw(self, stall: int) -> Sheet:
        """The timeline around a stall, given by its place in time."""
        return picture(self.run, self._rows.row(stall, named=True))

    def table(self, stall: int) -> str:
        """What a stall is and consists of, as HTML whose names are escaped."""
        row = self._rows.row(stall, named=True)
        parts = parts_of(self.run, row)
        hidden = parts.height - MOST_PARTS
        said = [f"and {count(hidden, 'more part')}"] if hidden > 0 else []
        said += [] if was_recorded(self.run, row) else [NOT_RECORDED]
        said += self._slowest(row)
        below = "".join(f"<p>{escape(line)}</p>" for line in said)
        return f"{_facts(row, parts)}{_parts_table(parts)}{below}"

    def _slowest(self, row: dict[str, Any]) -> list[str]:
        """The sample that took longest in the step's batch, where samples were recorded."""
        its = [pl.col(name) == row[name] for name in ("rank", "epoch", "batch")]
        samples = self.run.samples().filter(its).sort("total_s", descending=True)
        if samples.is_empty():
            return []
        first = samples.row(0, named=True)
        what = [f"{seconds(first['total_s'])}, mostly {shown(first['slowest'])}"]
        what += [file_name(first["path"])] if first["path"] else []
        what += [f"index {first['index']}"] if first["index"] is not None else []
        typical = seconds(self.run.samples()["total_s"].median())  # type: ignore[arg-type]
        return [f"slowest sample of the batch: {' · '.join(what)} (the median sample: {typical})"]


def _facts(row: dict[str, Any], parts: pl.DataFrame) -> str:
    longest = shown(parts["part"][0]) if parts.height else seconds(None)
    cells = (
        str(row["step"]),
        str(row["batch"]),
        worker_name(row["worker"]),
        seconds(row["stall_s"]),
        longest,
    )
    body = "".join(f"<td style='{_CELL}'>{escape(cell)}</td>" for cell in cells)
    return _table(_HEADS, f"<tr>{body}</tr>")


def _parts_table(parts: pl.DataFrame) -> str:
    if parts.is_empty():
        return ""
    rows = parts.head(MOST_PARTS).iter_rows(named=True)
    return _table(_PART_HEADS, "".join(_part_row(row) for row in rows))


def _part_row(row: dict[str, Any]) -> str:
    """A row with a bar as long as the part's share."""
    colour = COLOURS[row["kind"]] if row["kind"] else STALL_COLOUR
    bar = (
        "<span style='display:inline-block;height:.7em;margin-right:6px;"
        f"width:{100 * row['share']:.0f}px;background:{colour}'></span>"
    )
    return (
        f"<tr><th scope='row' style='{_NAME};font-weight:normal'>{escape(shown(row['part']))}</th>"
        f"<td style='{_CELL};white-space:nowrap'>{bar}{share(row['share'])}</td>"
        f"<td style='{_CELL}'>{seconds(row['exposed_s'])}</td></tr>"
    )


def _table(heads: tuple[str, ...], body: str) -> str:
    row = "".join(
        f"<th scope='col' style='{_NAME if head == _PART_HEADS[0] else _CELL}'>{head}</th>"
        for head in heads
    )
    look = "border-collapse:collapse;line-height:1.5;margin-bottom:.6em"
    look += ";font-variant-numeric:tabular-nums"
    return f"<table style='{look}'><thead><tr>{row}</tr></thead><tbody>{body}</tbody></table>"
