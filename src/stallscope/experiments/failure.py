"""When the user's code fails during an experiment: say where, and keep what was measured.

The exception keeps its type and its text. It gets a note, and the recording as its `run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallscope.units import count

if TYPE_CHECKING:
    from stallscope.analyze.interrupted import Interrupted
    from stallscope.experiments.collect import Recording


def explain(error: BaseException, recording: Recording) -> None:
    """Add to an exception where it came from and what was recorded before it.

    Args:
        error: as it came out of the user's loop.
        recording: what the logs hold.
    """
    error.run = recording.run  # type: ignore[attr-defined]
    kept = count(recording.run.all_steps.height, "batch", "es")
    lines = [
        *(f"stallscope: {_where(place)} when the exception left it" for place in recording.raised),
        *(f"stallscope: {_where(place)} when its log ended" for place in recording.inside),
        f"stallscope: what was recorded before ({kept}) is this exception's attribute `run`",
    ]
    if hasattr(error, "add_note"):
        for line in lines:
            error.add_note(line)
    else:  # Python 3.10 has no notes; the attribute is where later versions keep them
        error.__notes__ = [*getattr(error, "__notes__", []), *lines]


def _where(place: Interrupted) -> str:
    process = "the main process" if place.worker is None else f"worker {place.worker}"
    sample = "" if place.sample is None else f", sample {place.sample} of the batch"
    index = "" if place.index is None else f" (index {place.index} of the dataset)"
    return (
        f"{process} (pid {place.pid}) was in '{place.stage}' of batch {place.batch}{sample}{index}"
    )
