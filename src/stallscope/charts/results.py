"""Pictures of results whose rows are bars, dots or lines: all but those of runs, flames and orders.

The verdict is a bar of the loop's time, with the cost of each finding below. A comparison is two
such bars on the same scale, with the changes below.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from stallscope.bench.comparison import FASTER, OPEN, SAME, SLOWER, blocks_of
from stallscope.charts import sheet
from stallscope.charts.bars import (
    LabelledBar,
    Strip,
    StripPiece,
    bars_figure,
    bars_height,
    draw_bars,
    fit_figure,
)
from stallscope.charts.loop import WAITS, loop_colour, loop_strip
from stallscope.charts.sheet import LINE, MOST_ROWS, ROW, Sheet, styled
from stallscope.model.loop_time import loop_breakdown
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.stats import INTERVAL
from stallscope.units import count, printable, seconds, share, size, times
from stallscope.verbs import compare
from stallscope.verbs.diagnose import text as diagnosis_text
from stallscope.verbs.diagnose.causes import INCONCLUSIVE
from stallscope.verbs.experiments import result as experiments
from stallscope.verbs.ladder import result as ladder_result
from stallscope.verbs.lines import result as lines_result
from stallscope.verbs.storage import layout_result
from stallscope.verbs.storage import result as storage_result
from stallscope.verbs.storage.reads import COLD, SAMPLE, WARM
from stallscope.verbs.tune import result as tune_result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

    from stallscope.verbs.compare import Comparison
    from stallscope.verbs.diagnose.result import Diagnosis
    from stallscope.verbs.experiments.result import Experiments
    from stallscope.verbs.ladder.result import Ladder
    from stallscope.verbs.lines.result import Lines
    from stallscope.verbs.storage.layout_result import Layouts
    from stallscope.verbs.storage.result import Storage
    from stallscope.verbs.tune.result import Tuning

_LONGEST_CODE: Final = 82

# The ladder: between two bars are the removed cost and its speedup; a dot is a block of steps

_RUNG: Final = "#5B666E"
_LONGEST_WORD: Final = len("significant")
"""Letters of the longest word under a bar: lines break between words only."""
_MOST_DOTS: Final = 24
_RUNG_WIDTH: Final = 0.56


@styled
def ladder_figure(ladder: Ladder) -> Sheet:
    """Draw the ladder."""
    table = ladder.table().filter(pl.col("samples_per_s").is_not_null())
    if table.is_empty():
        return Sheet(ladder_result.sentence(ladder), ladder_result.notes_of(ladder))
    rows = table.to_dicts()
    room = max(104 // len(rows), _LONGEST_WORD)
    names = [textwrap.fill(row["rung"], room) for row in rows]
    gains = {row["rung"]: row for row in ladder.gains().to_dicts()}
    removed = [_removed(gains.get(row["rung"]), room) for row in rows]
    top = LINE * (max(name.count("\n") for name in names) + 1) + 0.2
    below = top + LINE * max(len(lines) for lines, _ in removed) + LINE
    page = Sheet(ladder_result.sentence(ladder), _ladder_notes(ladder, table), [3.1 + below])
    (ax,) = page.parts
    highest = max(row["samples_per_s_high"] or row["samples_per_s"] for row in rows)
    ax.set_xlim(-0.5, len(rows) - 0.5)
    ax.set_ylim(0, highest * 1.16)
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter("{x:,.4g}")
    ax.grid(axis="y")
    ax.set_ylabel("samples per second")
    ax.set_xticks(range(len(rows)), names)
    ax.tick_params(axis="x", length=0)
    blocks = blocks_of(ladder.blocks)
    kinds = {rung.name: rung.kind for rung in ladder_result.RUNGS}
    for place, (row, texts) in enumerate(zip(rows, removed, strict=True)):
        dots = [
            block.samples / block.seconds
            for block in blocks
            if ladder_result.RUNGS[block.variant].name == row["rung"]
        ]
        _draw_rung(ax, place, row, dots[-_MOST_DOTS:])
        if row["rung"] in gains:
            colour = COLOURS[kinds[row["rung"]]]
            # From the height of the previous bar to the height of this bar
            before, after = (rows[at]["samples_per_s"] for at in (place - 1, place))
            across = place - _RUNG_WIDTH / 2 - 0.09
            arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", (across, after), (across, before), arrowprops=arrow)
            ax.hlines(before, place - 1 + _RUNG_WIDTH / 2, across, color=colour, lw=0.8, ls=":")
            _write_removed(ax, (place, top), texts, colour)
    return page


def _removed(gain: dict[str, Any] | None, room: int) -> tuple[list[str], str]:
    """Return the lines that name the cost removed by a rung, and its speedup."""
    if gain is None:
        return [], ""
    lines = textwrap.wrap(f"without {gain['removes']}", room)
    if gain["says"] in (SAME, OPEN):
        return [*lines, *textwrap.wrap(gain["says"], room)], ""
    ends = f"[{gain['factor_low']:.2f}, {gain['factor_high']:.2f}]"
    return lines, f"{times(gain['factor'])} {ends}"


def _write_removed(
    ax: Axes, at: tuple[int, float], removed: tuple[list[str], str], colour: str
) -> None:
    """Write below a bar and a rule in the cost's colour, at a distance in inches."""
    (place, down), (lines, factor) = at, removed

    def below(inches: float) -> dict[str, Any]:
        offset = ScaledTranslation(0, -inches, ax.figure.dpi_scale_trans)
        return {"transform": ax.get_xaxis_transform() + offset}

    rule: dict[str, Any] = {"color": colour, "lw": 2.5, "clip_on": False}
    ax.plot([place - 0.3, place + 0.3], [0, 0], **rule, **below(down))
    look: dict[str, Any] = {"ha": "center", "va": "top"}
    ax.text(place, 0, "\n".join(lines), color=sheet.FAINT, **look, **below(down + 0.05))
    end = down + 0.05 + len(lines) * LINE
    ax.text(place, 0, factor, weight="bold", **look, **below(end))


def _ladder_notes(ladder: Ladder, rows: pl.DataFrame) -> list[str]:
    starts, blocks = int(rows["starts"].max() or 0), int(rows["blocks"].sum())  # type: ignore[arg-type]
    counts = f"{count(starts, 'start')} per rung, {count(blocks, 'block')} in all"
    has_device = rows["device_busy_share"].is_not_null().any()
    what = "device busy" if has_device else "the loop in the step"
    percent = "" if rows["step_share"].is_null().all() else f" · %: {what}"
    key = f"dots: single blocks · lines: {INTERVAL}{percent}"
    return [f"bars: samples per second over {counts} · {key}", *ladder_result.notes_of(ladder)]


def _draw_rung(ax: Axes, place: int, row: dict[str, Any], dots: list[float]) -> None:
    rate = row["samples_per_s"]
    colour = COLOURS["step"] if row["rung"] in ladder_result.WHOLE else _RUNG
    ax.bar(place, rate, _RUNG_WIDTH, color=colour)
    ends = (row["samples_per_s_low"], row["samples_per_s_high"])
    sheet.draw_interval(ax, place, rate, ends, cap=6.0, vertical=True)
    step = _RUNG_WIDTH * 0.7 / max(len(dots) - 1, 1)
    across = [place - _RUNG_WIDTH * 0.35 + step * number for number in range(len(dots))]
    ax.plot(across, dots, "o", ms=3, color=sheet.PAPER, mec=sheet.INK, mew=0.6, zorder=4)
    busy = row["device_busy_share"]
    busy = row["step_share"] if busy is None else busy
    label = f"{rate:,.0f}" if busy is None else share(busy)
    height = max(ends[1] or rate, *dots, rate) + ax.get_ylim()[1] * 0.0215
    ax.text(place, height, label, ha="center", va="bottom", weight="bold", size=sheet.TEXT_SIZE + 1)


# Lines of code, and changes of a step

_LEAST_SHARE: Final = 0.005


def lines_figure(lines: Lines) -> Sheet:
    """Draw the hottest lines, each with its own share of a sample's time."""
    title, (population, *others) = lines_result.sentence(lines), lines_result.notes_of(lines)
    rows = lines.table().head(MOST_ROWS).to_dicts()
    if not rows:
        return Sheet(title, [population, *others])
    rows = rows[:1] + [row for row in rows[1:] if (row["own_share"] or 0.0) >= _LEAST_SHARE]
    what = "bars: a line's own time, without the other listed functions that it calls"
    hidden = lines.table().height - len(rows)
    left_out = f" · {count(hidden, 'more line')} took less" if hidden > 0 else ""
    bars = [
        LabelledBar(
            printable(row["function"], 29),
            f"line {row['line']}",
            printable((row["source"] or "no source").strip(), _LONGEST_CODE),
            row["own_share"] or 0.0,
            share(row["own_share"] or 0.0),
            COLOURS.get(row["kind"] or "other", COLOURS["other"]),
        )
        for row in rows
    ]
    notes = [population, f"{what}{left_out}", *others[1:]]
    axis = f"share of a {lines.circumstances.unit}'s time"
    return bars_figure(title, notes, bars, lambda value: f"{100 * value:.3g}%", axis, is_code=True)


def gains_figure(result: Experiments) -> Sheet:
    """Draw the speedup of a step with each change."""
    title = experiments.sentence(result)
    notes = [*experiments.findings_of(result), *experiments.notes_of(result)]
    rows = result.table().filter(pl.col("factor").is_not_null()).to_dicts()
    if not rows:
        return Sheet(title, notes)
    pairs = min(row["pairs"] for row in rows)
    shown = f"bars: speedup of the step, at least {count(pairs, 'pair')} of laps each"
    notes = [f"{shown} · lines: {INTERVAL}", *notes]
    bars = []
    for row in rows:
        colour = COLOURS["step"] if row["factor"] > 1 else STALL_COLOUR
        is_clear = row["says"] in (FASTER, SLOWER)
        bars.append(
            LabelledBar(
                row["experiment"],
                f"{seconds(row['before_s'])} → {seconds(row['after_s'])}",
                printable(row["code"], _LONGEST_CODE),
                row["factor"],
                times(row["factor"]) if is_clear else row["says"],
                colour if is_clear else sheet.PALE,
                (row["factor_low"], row["factor_high"]),
            )
        )
    return bars_figure(title, notes, bars, "{:g}×".format, "speedup", is_code=True, mark=1.0)


# Predicted and measured

_FIT_NOTE: Final = "measured in turn with the current loader · predicted from one recording of it"


def settings_figure(tuning: Tuning) -> Sheet:
    """Draw the predicted and measured speedup of the measured settings, else of all settings."""
    rows = [row for row in tuning.settings().to_dicts() if row["trial"]]
    measured = [row for row in rows if row["gain"] is not None]
    shown = measured or [row for row in rows if row["predicted_gain"] is not None]
    title = tune_result.sentence(tuning)
    if not shown:
        return Sheet(title, [_FIT_NOTE])
    hidden = len(shown) - MOST_ROWS
    note = f"{tune_result.fit(tuning)} · {_FIT_NOTE}" if measured else "nothing was measured"
    note += f" · not shown: {count(hidden, 'more setting')}" if hidden > 0 else ""
    return fit_figure(title, note, [(row["setting"], row) for row in shown[:MOST_ROWS]])


def fixes_figure(diagnosis: Diagnosis) -> Sheet:
    """Draw the predicted speedup of each fix, and the measured speedup if tried."""
    every = diagnosis_text.fix_rows(diagnosis)
    rows = [row for row in every if row["predicted_gain"] or row["gain"]]
    if not rows:
        return Sheet("No fix was predicted or measured", [diagnosis_text.measured(diagnosis)])
    first = max(rows, key=lambda row: row["gain"] or row["predicted_gain"])
    how = "gives" if first["gain"] is not None else "should give"
    factor = first["gain"] or first["predicted_gain"]
    title = f"{printable(first['fix'], 80)} {how} {factor:.2f}× the throughput"
    tried = sum(row["gain"] is not None for row in rows)
    note = f"replayed from the recording · {tried} of {len(rows)} measured (try_fix)"
    names = [row["fix"] if row["measurable"] else f"{row['fix']} (yours)" for row in rows]
    return fit_figure(title, note, list(zip(names, rows, strict=True))[:MOST_ROWS])


# Storage

_STATES: Final = {COLD: COLOURS["fetch"], WARM: COLOURS["transform"]}
_NONE: Final = "nothing was read"


@styled
def samples_figure(storage: Storage) -> Sheet:
    """Draw samples per second by number of readers, and the rate that the step needs."""
    title = storage_result.sentence(storage)
    lines = [(state, storage.of(SAMPLE, state)) for state in (storage.cold, WARM)]
    lines = [(state, rows) for state, rows in lines if rows]
    if not lines:
        return Sheet(title, [_NONE])
    note = f"dots and lines: samples per second, with their {INTERVAL}; both axes logarithmic"
    page = Sheet(title, [note], [2.6 + sheet.AXIS])
    (ax,) = page.parts
    ax.margins(y=0.15)  # room for a text above the last dot
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for state, rows in lines:
        _draw_readers(ax, state, rows)
    wanted = storage.circumstances.wanted_per_s
    if wanted:
        ax.axhline(wanted, color=COLOURS["step"], lw=1.4, ls="--")
        look: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "baseline"}
        sheet.write_beside(ax, f"the step needs {wanted:,.0f}", (0.01, wanted), (0, 3), **look)
    readers = sorted({row["readers"] for _, rows in lines for row in rows})
    ax.set_xticks(readers, list(map(str, readers)))
    ax.minorticks_off()
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    ax.set_xlabel("readers at once")
    ax.set_ylabel("samples per second")
    return page


def _draw_readers(ax: Axes, state: str, rows: list[dict[str, Any]]) -> None:
    readers, rates = ([row[name] for row in rows] for name in ("readers", "requests_per_s"))
    ax.plot(readers, rates, "o-", color=_STATES.get(state, sheet.FAINT), ms=6, lw=1.4)
    for row in rows:
        ends = (row["requests_low_per_s"], row["requests_high_per_s"])
        sheet.draw_interval(ax, row["readers"], row["requests_per_s"], ends, cap=0, vertical=True)
    text = f" {state}: latency {seconds(rows[0]['latency_s'])} with one reader"
    side = "right" if len(rows) > 1 else "left"
    look: dict[str, Any] = {"ha": side, "va": "baseline", "size": sheet.TEXT_SIZE}
    sheet.write_beside(ax, text, (readers[-1], rates[-1]), (0, 8), **look)


def pieces_figure(storage: Storage) -> Sheet:
    """Draw the bytes per second of all other access patterns."""
    title = storage_result.sentence(storage)
    bars = [
        LabelledBar(
            storage_result.describe(row),
            f"{row['state']}, {count(row['readers'], 'reader')}",
            f"{seconds(row['latency_s'])} each",
            row["bytes_per_s"],
            f"{size(row['bytes_per_s'])}/s",
            _STATES.get(row["state"], sheet.FAINT),
        )
        for row in storage.table().to_dicts()
        if row["access"] != SAMPLE
    ]
    note = "bytes per second, by size and order of the requests" if bars else _NONE
    return bars_figure(title, [note], bars, lambda value: f"{size(value)}/s")


def layouts_figure(layouts: Layouts) -> Sheet:
    """Draw the samples per second of each layout."""
    title = layout_result.sentence(layouts)
    bars = [
        LabelledBar(
            layout_result.name_of(row, layouts.circumstances.image_pixels),
            row["state"],
            "" if row["gain"] is None else f"{row['gain']:.2f}× the files",
            row["samples_per_s"],
            f"{row['samples_per_s']:,.0f}/s",
            _STATES.get(row["state"], sheet.FAINT),
            (row["samples_low_per_s"], row["samples_high_per_s"]),
        )
        for row in layouts.table().to_dicts()
        if row["samples_per_s"] is not None
    ]
    note = f"samples per second, with decode and transforms; lines: {INTERVAL}" if bars else _NONE
    return bars_figure(title, [note], bars, "{:,.0f}".format)


# Runs side by side


@styled
def comparison_figure(comparison: Comparison) -> Sheet:
    """Draw the loops of the first and the last run, and the largest changes."""
    loops = (comparison.loops[0], comparison.loops[-1])
    names = (comparison.names[0], comparison.names[-1])
    longest = max(sum(loop.values()) for loop in loops)
    strips = [Strip(_loop_pieces(loop), end=longest) for loop in loops]
    rows = comparison.changes.filter(
        pl.col("run") == pl.col("run").max(),
        ~pl.col("measure").is_in([compare.SPEED, compare.STALLS]),
        pl.col("change_low").is_not_null(),
    )
    changes = rows.sort(pl.col("change").abs(), descending=True).head(MOST_ROWS).to_dicts()
    heights = [strip.height + ROW for strip in strips]
    heights += [ROW * (len(changes) + 1) + sheet.AXIS] * bool(changes)
    differs = [f"differs: {text}" for text in comparison.differs]
    page = Sheet(compare.sentence(comparison), [*differs, *comparison.notes], heights)
    for ax, strip, name in zip(page.parts, strips, names, strict=False):
        strip.fill(ax)
        text = f"{printable(name)}: {seconds(strip.total)} of the loop per sample"
        ax.set_title(text, loc="left", size=sheet.TEXT_SIZE, weight="bold")
    if changes:
        _draw_changes(page.parts[2], changes)
    return page


def _loop_pieces(loop: Mapping[tuple[str, str], float]) -> list[StripPiece]:
    return [
        StripPiece(
            printable(name), part_s, seconds(part_s), loop_colour(name, kind), short=seconds(part_s)
        )
        for (name, kind), part_s in loop.items()
        if part_s > 0
    ]


def _draw_changes(ax: Axes, rows: list[dict[str, Any]]) -> None:
    colours = {**COLOURS, **WAITS, "loop": sheet.FAINT}
    names = [printable(row["measure"].removesuffix("_s"), 40).replace("/", ": ") for row in rows]
    sheet.name_rows(ax, names)
    for at, row in enumerate(rows):
        colour = colours[row["kind"]] if row["distinguishable"] else sheet.RULE
        ax.barh(at, row["change"], height=0.6, color=colour, lw=0)
        sheet.draw_interval(ax, row["change"], at, (row["change_low"], row["change_high"]))
    ends = [row[end] for row in rows for end in ("change_low", "change_high", "change")]
    sheet.value_axis(ax, min(*ends, 0.0) * 1.05, max(*ends, 0.0) * 1.05, _signed)
    ax.axvline(0, color=sheet.FAINT, lw=0.8)
    ax.set_xlabel("change per sample; grey: no significant difference")


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+' if value > 0 else ''}{seconds(abs(value))}"


# Findings


@styled
def findings_figure(diagnosis: Diagnosis) -> Sheet:
    """Draw the loop's time, and below it the cost of each finding."""
    findings = diagnosis_text.all_words(diagnosis)
    run = diagnosis.run
    time = run and loop_breakdown(run.steps(), run.stalls(), run.side_spans)
    strips = [loop_strip(time)] if time else []
    bars = []
    for place, finding in enumerate(findings[:MOST_ROWS]):
        # The verdict's sentence is the title of the picture already
        title = finding.title if place or not finding.because else f"because: {finding.because}"
        text = " · ".join([title] + [diagnosis_text.NOT_TESTED] * (not finding.tested))
        sure, _, _ = finding.sure.partition(";")  # other processes are no part of this picture
        about = (finding.code, f"confidence: {sure}" if sure else "", sheet.fitting(text, 7.0))
        bars.append(LabelledBar(*about, finding.severity, share(finding.severity), finding.colour))
    hidden = len(findings) - MOST_ROWS
    hidden_note = [f"not drawn: {count(hidden, 'more finding')}"] if hidden > 0 else []
    notes = [diagnosis_text.measured(diagnosis), *hidden_note]
    heights = [*(strip.height + 0.2 for strip in strips), bars_height(bars)]
    page = Sheet(diagnosis_text.sentence(diagnosis.verdict.title), notes, heights)
    for strip in strips:
        strip.fill(page.parts[0])
    ax = page.parts[-1]
    draw_bars(ax, bars, share)
    ax.set_xlim(0, 1)
    ax.set_xlabel("share of the loop's time")
    return page


def missing(diagnosis: Diagnosis, part: str) -> Sheet:
    """Return a sheet that says why a picture is missing."""
    why = diagnosis_text.ended(diagnosis)
    notes = [f"the measurement ended: {why}"] if why else []
    names = {"run": "The loop was not recorded", "ladder": "No ladder was measured"}
    title = names.get(part, "No stacks were sampled")
    if diagnosis.verdict.code != INCONCLUSIVE.code:
        title += "; the verdict does not need that"
    return Sheet(title, [*notes, diagnosis_text.measured(diagnosis)])
