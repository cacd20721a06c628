"""A run in a notebook and a terminal: its pictures by name, its tables, its panels.

What the loop waits for comes first, then what the workers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.model.loop_time import loop_breakdown
from stallscope.run import stall_data
from stallscope.run.resources import find_saturated, named_growth
from stallscope.run.resources import sentence as saturation_sentence
from stallscope.run.summary import remarks, stage_name
from stallscope.run.summary import sentence as work_sentence
from stallscope.stages import COLOURS, STALL_COLOUR, WORK_KINDS
from stallscope.units import MOST_NAMED, count, plural, seconds, share
from stallscope.views import document as page
from stallscope.views.document import MOST_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.run.result import Run
    from stallscope.run.summary import Profile


MOST_PARTS: Final = 6
HEADS: Final = ("stage", "share", "mean", "p50", "p95", "waiting")
PART_HEADS: Final = ("stalled by", "share", "per step", "busy")
PART_KEY: Final = (
    "share: of all time in stalls · busy: the stage's share of the time in which batches are made"
)
_WORK_NAMES: Final = {"transform": "transforms", "other": "your own code"}
"""Names of kinds of a worker's stages in a sentence; the rest have their own."""


def document(run: Run) -> page.Document:
    """Return what the loop waits for and what the workers do; without a step the workers first."""
    profile = run.profile
    loop, work = list(_loop(run)), list(_work(profile))
    first = [*loop, *work] if run.steps()["step_s"].sum() else [*work, *loop]
    return page.Document("run", [*first, page.Notes(_notes(run, profile))])


def _loop(run: Run) -> Iterator[Any]:
    """Yield what stalls the loop; nothing where no waits were recorded."""
    time = loop_breakdown(run.steps(), run.stalls(), run.side_spans)
    if time is None:
        return
    saturation = find_saturated(run)
    saturated = (
        [saturation_sentence(saturation)] if saturation.matters and saturation.saturated else []
    )
    yield page.Heading(stall_data.sentence(run), [stall_data.split(time), *saturated])
    rows = stall_data.rows_of(run, time, MOST_PARTS)
    bars = [_bar(row.share, row.kind) for row in rows]
    yield page.Table(PART_HEADS, [(row.name, *row.cells) for row in rows], bars, PART_KEY)
    yield page.Bullets(_patterns(run))


def _patterns(run: Run) -> list[str]:
    patterns = run.patterns()
    sentences = [
        f"{stall_data.pattern_sentence(pattern)} · {stall_data.explained(pattern)}"
        for pattern in patterns.head(MOST_NAMED).iter_rows(named=True)
    ]
    hidden = patterns.height - len(sentences)
    return [*sentences, f"and {count(hidden, 'more pattern')}"] if hidden > 0 else sentences


def _work(profile: Profile) -> Iterator[Any]:
    stages = profile.stages[:MOST_ROWS]
    rows = []
    for stage in stages:
        of = "" if stage.per == profile.unit else f" a {stage.per}"
        quantiles = (f"{seconds(stage.quantile_s(part))}{of}" for part in (0.5, 0.95))
        mean, waiting = seconds(stage.mean_s), share(stage.waiting_share)
        name = stage_name(stage, profile.unit, 40)
        rows.append((name, share(stage.share), mean, *quantiles, waiting))
    yield page.Heading(work_sentence(profile), [_sum(profile)] if profile.stages else [])
    yield page.Table(HEADS, rows, [_bar(stage.share, stage.kind) for stage in stages])


def _sum(profile: Profile) -> str:
    """Return a sample's mean time in one sentence: reading against the rest, kind by kind."""
    parts = []
    for kind in WORK_KINDS:
        part_s = sum(stage.mean_s for stage in profile.stages if stage.kind == kind)
        parts += [f"{_WORK_NAMES.get(kind, kind)} {seconds(part_s)}"] if part_s else []
    return f"A {profile.unit} takes {seconds(profile.mean_s)}: {', '.join(parts)}"


def _bar(length: float, kind: str | None) -> page.CellBar:
    return page.CellBar(length, COLOURS.get(kind or "", STALL_COLOUR))


def _notes(run: Run, profile: Profile) -> list[str]:
    if not profile.stages:
        return list(stall_data.nothing(run))
    notes = [stall_data.population(run, profile)]
    hidden = profile.stages[MOST_ROWS:]
    if hidden:
        taken = share(sum(stage.share for stage in hidden))
        notes.append(f"not shown: {count(len(hidden), 'more stage')}, together {taken}")
    notes.append(
        f"share and mean: per {profile.unit}, over all {profile.unit}{plural(profile.unit)}, "
        "including collate · p50 and p95: where the stage occurred · waiting: not on a CPU"
    )
    of_loop = (note for note in stall_data.small_print(run) if note not in run.notes)
    growth = named_growth(run)
    grows = [growth] if growth else []
    return [*notes, *remarks(profile), *grows, *run.notes, *of_loop]


VIEW: Final = page.View(
    "a run",
    document,
    {
        "stages": ("where a sample's time goes, and its spread", "stages.figure"),
        "sample": ("one sample as a bar of stages", "stages.sample_figure"),
        "naive": ("what a stopwatch around transforms would say", "stages.stopwatch_figure"),
        "exposed": ("what stalls the training loop", "loop.exposed_figure"),
        "timeline": ("workers and loop over a few seconds", "timeline.figure"),
        "resources": ("what was saturated while the loop stalled", "resources.figure"),
        "waits": ("every step's wait, and the patterns in them", "loop.waits_figure"),
        "slowest": ("the slowest samples, and what made them slow", "stages.slowest_figure"),
    },
    {
        "stalls": ("the stalls one by one, the longest first", "panels.stall_panel"),
        "timeline": ("workers and loop from any step on", "panels.timeline_panel"),
        "live": ("a training that still runs", "panels.live_panel"),
    },
    page.answered(
        stall_data.sentence,
        **{name: name for name in ("stages", "exposed", "patterns", "settings", "machine")},
    ),
)
