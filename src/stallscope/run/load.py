"""`ss.load`: read a saved result, or the logs of a process that was killed or still runs."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import psutil

from stallscope import store
from stallscope.errors import RunFormatError, TargetError
from stallscope.files import copy_objects, is_address, listing, names_at, workspace
from stallscope.hooks.event_log import MAIN
from stallscope.hooks.recording_folder import LogPlace
from stallscope.run.read_logs import collect
from stallscope.run.result import LOGS, Run
from stallscope.units import count, printable, without_controls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_RANKS: Final = 16
"""Ranks that are held in memory at once."""
_HEADS: Final = tuple(f"{kind}.json" for kind in store.KINDS)
_RANK: Final = re.compile(r"rank\d+")
_EVERY_S: Final = 2.0
_TIMES: Final = 5.0
"""Pause before the next load, in units of the last load's time."""
_FIRST_S: Final = 60.0
"""Time for a script until it imports torch."""


def load(path: str | Path) -> Any:
    """Read a saved result, a run whose process was killed, or all ranks of a training.

    Runs no code from the folder.

    Args:
        path: the folder that `save` wrote, or the parent of `rank0`, `rank1` and so on. It may be
            an address that fsspec can read (`s3://bucket/runs/train`), which is copied into a
            temporary folder.

    Returns:
        The saved `Run`, `Diagnosis` or other result. Orders are saved without the pipeline itself:
        they can be shown, not applied.

    Raises:
        RunFormatError: no result, a damaged result, another schema version, or a server error.
    """
    if is_address(str(path)):
        with workspace() as folder:
            try:
                _copy(str(path), folder)
                return _load(folder)
            except RunFormatError as error:  # the user does not know the copy
                raise RunFormatError(str(error).replace(str(folder), str(path))) from error
    result = _load(Path(path))
    if isinstance(result, Run):
        vars(result)["_folder"] = Path(path)
    return result


def _load(folder: Path) -> Any:
    ranks = _ranks_in(folder) if store.kind_in(folder) is None else []
    return _all_ranks(ranks) if ranks else _read(folder)


def _ranks_in(folder: Path) -> list[Path]:
    """Return the folders of ranks, `rank0` first, without similar names."""
    ranks = [path for path in folder.glob("rank*") if _RANK.fullmatch(path.name)]
    return sorted(ranks, key=lambda rank: (len(rank.name), rank.name))


def _copy(address: str, folder: Path) -> None:
    try:
        root, paths = listing(address)
        names = {path: PurePosixPath(path.removeprefix(root).lstrip("/")) for path in paths}
        inside = {path: its for path, its in names.items() if its.parts and ".." not in its.parts}
        if not _hold_result(its.parts[0] for its in inside.values()):
            raise RunFormatError(
                f"{printable(address)} is not a saved result: it has no {', '.join(_HEADS)}"
            )
        copy_objects(address, {path: folder / its for path, its in inside.items()})
    except TargetError as error:
        raise RunFormatError(str(error)) from error


def follow(path: str | Path) -> Iterator[Any]:
    """Yield a run again and again while a process records it, and a last time after the end.

    Raises:
        RunFormatError: as for `load`, after the end of the recording.
    """
    if is_address(str(path)):
        yield load(path)  # a copy does not change
        return
    folder, until_s = Path(path), time.monotonic() + _FIRST_S
    while True:
        begun_s = time.monotonic()
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
        is_new = names <= {LOGS} and not is_result(folder)
        goes_on = is_going_on(folder) or (is_new and begun_s < until_s)
        try:
            yield load(folder)
        except RunFormatError:
            if not goes_on:
                raise
        if not goes_on:
            return
        # A load keeps a core busy
        time.sleep(max(_EVERY_S, _TIMES * (time.monotonic() - begun_s)))


def is_going_on(folder: Path) -> bool:
    """Return whether a process of this machine still records into a folder or a rank's folder."""
    places = (folder, *_ranks_in(folder))
    return any(store.kind_in(place) is None and _has_writer(place / LOGS) for place in places)


def _has_writer(logs: Path) -> bool:
    """Return whether the writer of the logs lives; a later process may have its id."""
    for path in logs.glob(f"*-{MAIN}-*.events"):
        with suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int(path.name.partition("-")[0]))
            is_its = process.create_time() <= path.stat().st_mtime + 1
            if is_its and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def is_result(path: str | Path) -> bool:
    """Return whether `load` can read the path: a result, logs, or the ranks of a training."""
    if is_address(str(path)):
        return _hold_result(names_at(str(path)))
    folder = Path(path)
    places = (folder, *_ranks_in(folder))
    return any(store.kind_in(place) or any((place / LOGS).glob("*.events")) for place in places)


def _hold_result(names: Iterable[str]) -> bool:
    return any(name in (*_HEADS, LOGS) or _RANK.fullmatch(name) for name in names)


def _all_ranks(folders: list[Path]) -> Run:
    """Return the ranks of a training as one run; of many ranks, evenly chosen ones."""
    chosen = folders[:: -(-len(folders) // _MOST_RANKS)]
    try:
        for folder in chosen:
            store.check_is_folder(folder)
    except (OSError, ValueError) as error:
        raise RunFormatError(f"{error}: give a folder of existing runs") from error
    runs: list[Run] = [_read(folder) for folder in chosen]
    tables: dict[str, Any] = {
        field: pl.concat([getattr(run, field) for run in runs])
        for field in store.contents_of(Run).tables
    }
    notes = [f"{count(len(runs), 'rank')}; times of each count from its own start"]
    if len(chosen) < len(folders):
        notes.insert(0, f"{len(folders):,} ranks, of which these are read:")
    notes += [note for run in runs for note in run.notes]
    return replace(runs[0], **tables, notes=tuple(dict.fromkeys(notes)), others=())


def _read(folder: Path) -> Any:
    logs = LogPlace(folder / LOGS, 0)
    is_log = not logs.folder.is_symlink() and logs.logs()
    if store.kind_in(folder) or not is_log:
        return store.load(folder)
    try:
        run = collect(logs).run
        for field, table in store.contents_of(Run).tables.items():
            table.schema.checked(getattr(run, field))
    except (Exception, pl.exceptions.PanicException) as error:  # a killed process leaves anything
        why = without_controls(str(error).partition("\n")[0])
        raise RunFormatError(
            f"the logs in {logs.folder} cannot be read ({why}): copy the folder once more, or "
            "record again"
        ) from error
    note = "the process ended before it could save the run; this was read from its logs"
    if _has_writer(logs.folder):
        note = "the process still runs: this is what it has recorded so far"
    return replace(run, notes=(*run.notes, note))
