"""`ss.load`: read what was saved, by whatever process and however it ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.errors import RunFormatError
from stallscope.hooks.loop_log import LogPlace
from stallscope.run import files
from stallscope.run.read_logs import collect
from stallscope.units import count

if TYPE_CHECKING:
    from stallscope.run.result import Run


LOGS: Final = "logs"
"""Where a process that records into a run's folder writes its logs meanwhile."""
_TABLES: Final = (
    *("all_spans", "all_samples", "batches", "all_steps"),
    *("waits", "deliveries", "side_spans", "startup", "all_resources"),
)


def load(path: str | Path) -> Run:
    """Read a run: one that was saved, one whose process was killed, or all ranks of a training.

    Runs nothing that the folder says.

    Args:
        path: the run's folder, or the one that holds `rank0`, `rank1` and so on.

    Raises:
        RunFormatError: no run there, a damaged one, or one of another schema version.
    """
    folder = Path(path)
    ranks = sorted(folder.glob("rank*"), key=lambda rank: (len(rank.name), rank.name))
    if ranks and not (folder / "run.json").exists():
        return _together([_one(rank) for rank in ranks])
    return _one(folder)


def _one(folder: Path) -> Run:
    logs = LogPlace(folder / LOGS, 0)
    if (folder / "run.json").exists() or not (logs.marks() or logs.logs()):
        return files.read(folder)
    try:
        run = collect(logs).run
    except (ValueError, KeyError, TypeError, IndexError, OSError) as error:
        raise RunFormatError(f"the logs in {logs.folder} cannot be read ({error})") from error
    note = "the process ended before it could save the run; this was read from its logs"
    return replace(run, notes=(*run.notes, note))


def _together(runs: list[Run]) -> Run:
    """The runs of all ranks as one; each rank's times count from its own start."""
    tables: dict[str, Any] = {
        name: pl.concat([getattr(run, name) for run in runs]) for name in _TABLES
    }
    notes = [note for run in runs for note in run.notes]
    said = f"{count(len(runs), 'rank')}; times of each count from its own start"
    first = runs[0]
    return replace(first, **tables, notes=tuple(dict.fromkeys([said, *notes])), others=())
