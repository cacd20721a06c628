"""Pictures of what storage gives: samples a second by the number of readers, and pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.charts.bars import LabelledBar, bars_height, draw_bars
from stallscope.charts.sheet import AXIS, FAINT, INK, TEXT_SIZE, Sheet, styled
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.storage.layout_result import name_of
from stallscope.storage.layout_result import sentence as layouts_sentence
from stallscope.storage.reads import COLD, SAMPLE, WARM
from stallscope.storage.result import describe, sentence
from stallscope.units import count, printable, seconds, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.storage.layout_result import Layouts
    from stallscope.storage.result import Storage


_COLOURS: Final = {COLD: COLOURS["fetch"], WARM: COLOURS["transform"]}
_NONE: Final = "nothing was read"


@styled
def samples_figure(storage: Storage) -> Sheet:
    """Draw how many samples a second so many readers get, beside what the step asks for."""
    title = printable(sentence(storage), 400)
    lines = [(state, storage.of(SAMPLE, state)) for state in (storage.cold, WARM)]
    lines = [(state, rows) for state, rows in lines if rows]
    if not lines:
        return Sheet(title, [_NONE])
    note = f"dots and lines: samples a second, with their {INTERVAL}; both axes logarithmic"
    made = Sheet(title, [note], [2.6 + AXIS])
    (ax,) = made.parts
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for state, rows in lines:
        _draw(ax, state, rows)
    wanted = storage.circumstances.wanted_per_s
    if wanted:
        ax.axhline(wanted, color=COLOURS["step"], lw=1.4, ls="--")
        look: dict[str, Any] = {"textcoords": "offset points", "xytext": (0, 3), "ha": "left"}
        told = f"the step needs {wanted:,.0f}"
        ax.annotate(told, (0.01, wanted), xycoords=("axes fraction", "data"), **look)
    readers = sorted({row["readers"] for _, rows in lines for row in rows})
    ax.set_xticks(readers, [str(many) for many in readers])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    ax.set_xlabel("readers at once")
    ax.set_ylabel("samples a second")
    return made


def _draw(ax: Axes, state: str, rows: list[dict[str, Any]]) -> None:
    colour = _COLOURS.get(state, FAINT)
    many = [row["readers"] for row in rows]
    ax.plot(many, [row["requests_per_s"] for row in rows], "o-", color=colour, ms=6, lw=1.4)
    for row in rows:
        ends = row["requests_low_per_s"], row["requests_high_per_s"]
        if None not in ends:
            ax.plot([row["readers"]] * 2, ends, color=INK, lw=0.9)
    last = rows[-1]
    told = f" {state}: latency {seconds(rows[0]['latency_s'])} with one reader"
    side = "right" if len(rows) > 1 else "left"
    look: dict[str, Any] = {"textcoords": "offset points", "xytext": (0, -14), "ha": side}
    ax.annotate(told, (last["readers"], last["requests_per_s"]), size=TEXT_SIZE, **look)


@styled
def pieces_figure(storage: Storage) -> Sheet:
    """Draw the bytes a second of every other way of reading."""
    title = printable(sentence(storage), 400)
    rows = [row for row in storage.table().to_dicts() if row["access"] != SAMPLE]
    if not rows:
        return Sheet(title, [_NONE])
    bars = [
        LabelledBar(
            describe(row),
            f"{row['state']}, {count(row['readers'], 'reader')}",
            f"{seconds(row['latency_s'])} each",
            row["bytes_per_s"],
            f"{size(row['bytes_per_s'])}/s",
            _COLOURS.get(row["state"], FAINT),
        )
        for row in rows
    ]
    made = Sheet(title, ["bytes a second, by size and order of the requests"], [bars_height(bars)])
    draw_bars(made.parts[0], bars, lambda value: f"{size(value)}/s")
    return made


@styled
def layouts_figure(layouts: Layouts) -> Sheet:
    """Draw the samples a second of each layout."""
    title = printable(layouts_sentence(layouts), 400)
    rows = [row for row in layouts.table().to_dicts() if row["samples_per_s"] is not None]
    if not rows:
        return Sheet(title, [_NONE])
    bars = [
        LabelledBar(
            name_of(row, layouts.circumstances.image_pixels),
            f"{row['order']}, {row['state']}",
            "" if row["gain"] is None else f"{row['gain']:.2f}× the files",
            row["samples_per_s"],
            f"{row['samples_per_s']:,.0f}/s",
            _COLOURS.get(row["state"], FAINT),
            (row["samples_low_per_s"], row["samples_high_per_s"]),
        )
        for row in rows
    ]
    note = f"samples a second, with decode and transforms; lines: {INTERVAL}"
    made = Sheet(title, [note], [bars_height(bars)])
    draw_bars(made.parts[0], bars, lambda value: f"{value:,.0f}")
    return made
