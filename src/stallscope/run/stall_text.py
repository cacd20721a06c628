"""What stalls the training loop, in words and rows: the picture and the table tell the same.

Nothing here draws: a run in a terminal loads no matplotlib.

The small print of the pictures: how many samples, from where, and what was left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.model.attribution import table
from stallscope.model.loop_time import NOTHING, LoopBreakdown, leading, loop_breakdown, sentence
from stallscope.run.summary import NOTHING as SUMMARY_NOTHING
from stallscope.units import count, printable, seconds, share

if TYPE_CHECKING:
    from stallscope.run.result import Run
    from stallscope.run.summary import Profile


LONGEST_TITLE: Final = 300
"""Characters of a pattern's sentence: it holds names of files and of the user's parts."""
SMALL: Final = 0.01
"""Parts with a smaller share of the stalls are put together; what is unattributed never is."""
SURE: Final = 0.001
"""A smaller p-value is not written out."""


@dataclass(frozen=True)
class StallRow:
    """One part of the stalls."""

    name: str
    kind: str | None
    """None where it is unattributed."""
    exposed_s: float
    """A step."""
    share: float
    """Of all time in stalls."""
    busy: float | None
    """Share of the workers' own time; None where it is nothing that workers do."""

    @property
    def cells(self) -> tuple[str, str, str]:
        """Its numbers as text: `share`, `exposed_s`, `busy`."""
        return share(self.share), seconds(self.exposed_s), share(self.busy)


def title(run: Run) -> str:
    """Say how much of its time the loop stalls, and what that mostly is."""
    time = loop_breakdown(run.steps(), run.stalls())
    return sentence(time, run.exposed(), run.settings.num_workers, printable)


def title_of_steps(run: Run, rank: int, steps: pl.DataFrame) -> str:
    """Say the same of some steps of a rank, that follow each other."""
    its = (pl.col("rank") == rank) & pl.col("step").is_in(steps["step"].implode())
    time = loop_breakdown(steps, run.stalls().filter(its))
    exposed = table(run.parts().filter(its))
    said = sentence(time, exposed, run.settings.num_workers, printable)
    first, last = steps["step"][0], steps["step"][-1]
    which = f"Step {first}" if first == last else f"Steps {first} to {last}"
    return f"{which}: {said[0].lower()}{said[1:]}"


def small_print(run: Run) -> list[str]:
    """Return what a reader of the loop's times has to know."""
    step_s = run.settings.simulated_step_s
    if step_s is None or run.device is not None:  # of a simulated device, a note says more
        return []
    return [f"the step is simulated: a timer of {seconds(step_s)}, and no device"]


def answer(run: Run) -> dict[str, Any] | None:
    """Return the pattern that is the answer, a row of `Run.patterns`; None where `title` is.

    Why the loop waits is no answer where it hardly does; why a step is long can still be one.
    """
    pattern = leading(run.patterns())
    time = loop_breakdown(run.steps(), run.stalls())
    hardly = time is not None and time.hardly_waits
    return None if pattern and pattern["side"] == "wait" and hardly else pattern


def pattern_or_title(run: Run) -> str:
    """Return the sentence of the pattern that explains most; else `title`."""
    pattern = answer(run)
    return pattern_title(pattern) if pattern else title(run)


def pattern_title(pattern: dict[str, Any]) -> str:
    """Return the sentence of a pattern, a row of `Run.patterns`."""
    return printable(pattern["title"], LONGEST_TITLE)


def explained(pattern: dict[str, Any]) -> str:
    """Say how much a pattern explains, and how sure that is; a row of `Run.patterns`."""
    told = f"{share(pattern['share'])} of all time in stalls and long steps"
    if pattern["chance"] is None:
        return told
    chance = f"below {SURE}" if pattern["chance"] < SURE else f"{pattern['chance']:.3f}"
    return f"{told} · p-value {chance}"


def rows_of(run: Run, time: LoopBreakdown, most: int) -> list[StallRow]:
    """Return the parts of the stalls, the longest first; none where the loop hardly stalls.

    Args:
        run: what was measured.
        time: what its loop's time consists of.
        most: rows at most; the last one holds what has no row of its own.
    """
    if time.stall_share < NOTHING:
        return []
    work = run.stages().drop_nulls("busy_share")
    own = work.group_by("stage", "kind").agg(pl.col("busy_share").sum())  # two rows there are one
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
    large = [row.share >= SMALL and place < most - 1 for place, row in enumerate(rows)]
    told = [row for row, enough in zip(rows, large, strict=True) if enough]
    rest = [row for row, enough in zip(rows, large, strict=True) if not enough]
    small, unknown = ([row for row in rest if bool(row.kind) is known] for known in (True, False))
    if len(small) <= 1:
        return rows
    together = (sum(row.exposed_s for row in small), sum(row.share for row in small))
    return [*told, StallRow(f"{len(small)} more", "other", *together, None), *unknown]


def split(time: LoopBreakdown) -> str:
    """Say what a step of the loop consists of, in one line."""
    parts = [
        f"{printable(name)} {share(time.share(sum_s))}" for name, _, sum_s in time.pieces(NOTHING)
    ]
    return f"{seconds(time.total_s / time.steps)} per step: {' · '.join(parts)}"


def population(run: Run, profile: Profile) -> str:
    """Name the samples, the processes, and what is not part of the steady state."""
    return f"{count(profile.units, profile.unit)} · {workers(profile.workers)} · {left_out(run)}"


def workers(number: int) -> str:
    """Name so many workers; without any, the main process loads."""
    return count(number, "worker") if number else "loaded in the main process (no workers)"


def left_out(run: Run) -> str:
    """Say what was recorded and is not shown."""
    steady = int(run.batches["steady"].sum() or 0) if run.batches.height else 0
    hidden = run.batches.height - steady
    if not hidden:
        return "start-up is included"
    return f"left out: {count(hidden, 'batch')} (start-up, warm-up, incomplete end)"


def nothing(run: Run) -> tuple[str, ...]:
    """Say why there is nothing to draw."""
    said = tuple(note for note in run.notes if note.lower() != SUMMARY_NOTHING.lower())
    return (*said, f"recorded: {count(run.batches.height, 'batch')}")
