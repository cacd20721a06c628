"""`ss.load`: read what was saved, by whatever process and however it ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from stallscope import store
from stallscope.errors import RunFormatError
from stallscope.hooks.loop_log import LogPlace
from stallscope.run.read_logs import collect
from stallscope.run.result import LOGS, Run
from stallscope.units import count, without_controls


def load(path: str | Path) -> Any:
    """Read a result that was saved, a run whose process was killed, or all ranks of a training.

    Runs nothing that the folder says.

    Args:
        path: the folder that `save` wrote, or the one that holds `rank0`, `rank1` and so on.

    Returns:
        A `Run`, `Ladder`, `Flame`, `Orders`, `Lines`, `Experiments` or `Diagnosis`, as it was
        saved. The pipeline itself is not saved with its orders: they can be looked at, not applied.

    Raises:
        RunFormatError: no result there, a damaged one, or one of another schema version.
    """
    folder = Path(path)
    if store.kind_in(folder) is None:
        ranks = sorted(folder.glob("rank*"), key=lambda rank: (len(rank.name), rank.name))
        if ranks:
            return _together([_rank(rank) for rank in ranks])
    return _read(folder)


def is_result(folder: Path) -> bool:
    """Whether `load` would find something there: a result, logs, or the ranks of a training."""
    places = (folder, *folder.glob("rank*"))
    return any(store.kind_in(place) or any((place / LOGS).glob("*.marks")) for place in places)


def _rank(folder: Path) -> Any:
    try:
        store.check_is_folder(folder)
    except (OSError, ValueError) as error:
        raise RunFormatError(f"{error}: give a folder of runs that are there") from error
    return _read(folder)


def _read(folder: Path) -> Any:
    logs = LogPlace(folder / LOGS, 0)
    is_log = not logs.folder.is_symlink() and (logs.marks() or logs.logs())
    if store.kind_in(folder) or not is_log:
        return store.load(folder)
    try:
        run = collect(logs).run
        for table in Run._contents.tables:  # noqa: SLF001 - of a result
            store.checked(getattr(run, table.field), table)
    except (Exception, pl.exceptions.PanicException) as error:  # a killed process leaves anything
        why = without_controls(str(error).partition("\n")[0])
        raise RunFormatError(
            f"the logs in {logs.folder} cannot be read ({why}): copy the folder once more, or "
            "record again"
        ) from error
    note = "the process ended before it could save the run; this was read from its logs"
    return replace(run, notes=(*run.notes, note))


def _together(runs: list[Run]) -> Run:
    """The runs of all ranks as one; each rank's times count from its own start."""
    fields = [table.field for table in runs[0]._contents.tables]  # noqa: SLF001 - of a result
    tables: dict[str, Any] = {
        field: pl.concat([getattr(run, field) for run in runs]) for field in fields
    }
    notes = [note for run in runs for note in run.notes]
    head = f"{count(len(runs), 'rank')}; times of each count from its own start"
    return replace(runs[0], **tables, notes=tuple(dict.fromkeys([head, *notes])), others=())
