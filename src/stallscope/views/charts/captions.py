"""The small print of the pictures: how many samples, from where, and what was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallscope.analyze.headline import NOTHING
from stallscope.units import count
from stallscope.views.names import counted

if TYPE_CHECKING:
    from stallscope.analyze.profile import Profile
    from stallscope.run import Run


def population(run: Run, profile: Profile) -> str:
    """One line: the samples, the processes and what is not part of the steady state."""
    return f"{counted(profile.units, profile.unit)} · {workers(profile.workers)} · {left_out(run)}"


def workers(number: int) -> str:
    """So many workers; without any, the main process loads."""
    return count(number, "worker") if number else "loaded in the main process (no workers)"


def left_out(run: Run) -> str:
    """What was recorded and is not shown."""
    steady = int(run.batches["steady"].sum() or 0) if run.batches.height else 0
    hidden = run.batches.height - steady
    if not hidden:
        return "start-up is not kept apart"
    return f"left out: {counted(hidden, 'batch')} (start-up, warm-up, the unfinished end)"


def nothing(run: Run) -> tuple[str, ...]:
    """What to say where there is nothing to draw."""
    said = tuple(note for note in run.notes if note.lower() != NOTHING.lower())
    return (*said, f"recorded: {counted(run.batches.height, 'batch')}")
