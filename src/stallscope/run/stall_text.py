"""Words and rows on the stalls of the training loop, shared by picture and table.

Nothing here draws: a run in a terminal loads no matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from stallscope.model.attribution import table
from stallscope.model.loop_time import LoopBreakdown, leading, loop_breakdown
from stallscope.model.loop_time import sentence as loop_sentence
from stallscope.model.thresholds import SMALL
from stallscope.run.summary import NOTHING
from stallscope.units import LONGEST_TITLE, count, printable, seconds, share

if TYPE_CHECKING:
    from stallscope.run.result import Run
    from stallscope.run.summary import Profile


SURE: Final = 0.001
"""Smallest p-value that is written out."""
_NO_WORKERS: Final = "loaded in the main process (no workers)"


class StallRow(NamedTuple):
    """One part of the stalls."""

    name: str
    kind: str | None
    """None if unattributed."""
    exposed_s: float
    """Seconds per step."""
    share: float
    """Share of all stall time."""
    busy: float | None
    """Share of the workers' own time; None for parts outside of the workers."""

    @property
    def cells(self) -> tuple[str, str, str]:
        """Numbers of the row as text: `share`, `exposed_s`, `busy`."""
        return share(self.share), seconds(self.exposed_s), share(self.busy)


def sentence(run: Run) -> str:
    """Return the sentence on the loop's stalls: their share of the time and main cause."""
    time = loop_breakdown(run.steps(), run.stalls())
    return loop_sentence(time, run.exposed(), run.settings.num_workers, printable)


def sentence_of_steps(run: Run, rank: int, steps: pl.DataFrame) -> str:
    """Return the same sentence for consecutive steps of a rank."""
    its = (pl.col("rank") == rank) & pl.col("step").is_in(steps["step"].implode())
    time = loop_breakdown(steps, run.stalls().filter(its))
    exposed = table(run.parts().filter(its))
    text = loop_sentence(time, exposed, run.settings.num_workers, printable)
    first, last = steps["step"][0], steps["step"][-1]
    which = f"Step {first}" if first == last else f"Steps {first} to {last}"
    return f"{which}: {text[0].lower()}{text[1:]}"


def small_print(run: Run) -> list[str]:
    """Return the caveats for a reader of the loop's times."""
    step_s = run.settings.simulated_step_s
    if step_s is None or run.device is not None:  # of a simulated device, a note says more
        return []
    return [f"the step is simulated: a timer of {seconds(step_s)}, and no device"]


def answer(run: Run) -> dict[str, Any] | None:
    """Return the pattern that is the answer, a row of `Run.patterns`; None where `sentence` is.

    If the loop hardly waits, a pattern of its waits is no answer.
    """
    pattern = leading(run.patterns())
    time = loop_breakdown(run.steps(), run.stalls())
    hardly = time is not None and time.hardly_waits
    return None if hardly else pattern


def pattern_or_sentence(run: Run) -> str:
    """Return the sentence of the leading pattern, else `sentence`."""
    pattern = answer(run)
    return pattern_sentence(pattern) if pattern else sentence(run)


def pattern_sentence(pattern: dict[str, Any]) -> str:
    """Return the sentence of a pattern, a row of `Run.patterns`."""
    return printable(pattern["title"], LONGEST_TITLE)


def explained(pattern: dict[str, Any]) -> str:
    """Return the share that a pattern (a row of `Run.patterns`) explains, and its p-value."""
    text = f"{share(pattern['share'])} of all stalled time"
    if pattern["chance"] is None:
        return text
    chance = f"below {SURE}" if pattern["chance"] < SURE else f"{pattern['chance']:.3f}"
    return f"{text} · p-value {chance}"


def rows_of(run: Run, time: LoopBreakdown, most: int) -> list[StallRow]:
    """Return the parts of the stalls, the longest first; none where the loop hardly stalls.

    The last of `most` rows merges the remaining parts.
    """
    if time.stall_share < SMALL:
        return []
    work = run.stages().drop_nulls("busy_share")
    own = work.group_by("stage", "kind").agg(pl.col("busy_share").sum())  # up to two rows each
    busy = {(stage, kind): part for stage, kind, part in own.iter_rows()}
    rows = [
        StallRow(
            printable(part["part"]),
            part["kind"],
            part["exposed_s"] / time.steps,
            part["share"],
            busy.get((part["part"], part["kind"])),
        )
        for part in run.exposed().iter_rows(named=True)
    ]
    large = [row for row in rows[: most - 1] if row.share >= SMALL]
    rest = [row for row in rows if row not in large]
    small = [row for row in rest if row.kind]
    if len(small) <= 1:
        return rows
    together = (sum(row.exposed_s for row in small), sum(row.share for row in small))
    merged = StallRow(f"{len(small)} more", "other", *together, None)
    return [*large, merged, *(row for row in rest if not row.kind)]


def split(time: LoopBreakdown) -> str:
    """Return the breakdown of a step of the loop, in one line."""
    parts = [
        f"{printable(name)} {share(time.share(sum_s))}" for name, _, sum_s in time.pieces(SMALL)
    ]
    return f"{seconds(time.total_s / time.steps)} per step: {' · '.join(parts)}"


def population(run: Run, profile: Profile) -> str:
    """Return the numbers of samples and workers, and the batches outside of the steady state."""
    workers = count(profile.workers, "worker") if profile.workers else _NO_WORKERS
    hidden = run.batches.height - int(run.batches["steady"].sum() or 0)
    left_out = f"left out: {count(hidden, 'batch')} (start-up, warm-up, incomplete end)"
    population = f"{count(profile.units, profile.unit)} · {workers}"
    return f"{population} · {left_out if hidden else 'start-up is included'}"


def nothing(run: Run) -> tuple[str, ...]:
    """Return the reasons why there is nothing to draw."""
    notes = tuple(note for note in run.notes if note.lower() != NOTHING.lower())
    return (*notes, f"recorded: {count(run.batches.height, 'batch')}")
