"""When the user's code fails during an experiment: say where, and keep what was measured.

The exception keeps its type and its text. It gets a note, and the recording as its `run`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from stallscope.run.read_logs import collect
from stallscope.units import count

if TYPE_CHECKING:
    from stallscope.hooks.loop_log import LogPlace
    from stallscope.run.decode import Interrupted
    from stallscope.run.read_logs import Recording
    from stallscope.run.recording_info import RecordingInfo


def salvaged(
    error: BaseException, place: LogPlace, about: RecordingInfo | None = None
) -> Recording | None:
    """What was recorded before an exception, which is not to be lost for one of ours.

    Args:
        error: gets a note where nothing can be read.
        place: where the logs are.
        about: what the run is to say of itself, see `collect`.
    """
    try:
        return collect(place, about)
    except Exception as failed:  # noqa: BLE001 - a killed process may have left anything
        note(error, [f"stallscope: what was recorded before cannot be read ({failed!r})"])
        return None


def is_of_workers(error: BaseException) -> bool:
    """Whether torch says that a worker has died; it may say so anywhere in the user's code."""
    return type(error) is RuntimeError and str(error).startswith("DataLoader worker")


def explain(error: BaseException, recording: Recording) -> None:
    """Add to an exception where it came from and what was recorded before it.

    Args:
        error: as it came out of the user's loop.
        recording: what the logs hold.
    """
    vars(error)["run"] = recording.run  # past any __setattr__, such as a frozen dataclass's
    kept = count(recording.run.all_steps.height, "batch", "es")
    lines = [
        *(f"stallscope: {_where(place)} when the exception left it" for place in recording.raised),
        *(f"stallscope: {_where(place)} when its log ended" for place in recording.inside),
        f"stallscope: what was recorded before ({kept}) is this exception's attribute `run`",
    ]
    note(error, lines)


def note(error: BaseException, lines: list[str]) -> None:
    """Add notes, where Python keeps them from 3.11 on; an exception may refuse them."""
    with suppress(Exception):
        vars(error)["__notes__"] = [*getattr(error, "__notes__", []), *lines]


def _where(place: Interrupted) -> str:
    process = "the main process" if place.worker is None else f"worker {place.worker}"
    sample = "" if place.sample is None else f", sample {place.sample} of the batch"
    index = "" if place.index is None else f" (index {place.index} of the dataset)"
    return (
        f"{process} (pid {place.pid}) was in '{place.stage}' of batch {place.batch}{sample}{index}"
    )
