"""Reader of event logs (`event_log.py`), also of running or killed processes."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stallscope.errors import RunFormatError
from stallscope.files import read_file
from stallscope.hooks.event_log import HEADER_WORDS, MAGIC, Header, names_of
from stallscope.stages import Stage
from stallscope.units import json_without_controls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class ProcessNames:
    """Names and notes that a process wrote beside its logs."""

    stages: dict[int, Stage] = field(default_factory=dict)
    loaders: dict[int, dict[str, Any]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    """Fields of `event_log.RecordingInfo`."""
    notes: list[str] = field(default_factory=list)
    """Sentences on gaps in the recording."""
    devices: list[str | None] = field(default_factory=list)
    """Names of asynchronous devices; a None at the end: there were more, unwatched devices."""
    errors: dict[int, str] = field(default_factory=dict)
    """Type of the first exception that left each stage, by the stage's code."""
    every: list[int] = field(default_factory=list)
    """One batch in this many was recorded."""


@dataclass(frozen=True, kw_only=True)
class LogPages:
    """Content of one file of a thread's log."""

    pid: int
    worker: int
    born_ns: int
    words: np.ndarray
    """int64, in the order of time, none of them 0."""
    started_ns: int = 0
    """Enter, begin and end words count from here: the start of the process's recording."""
    thread: int = 0
    turn: int = 0
    is_full: bool = False
    """True if later words are missing."""
    other_threads: int = 0
    """Unrecorded calls of hooked functions in other threads."""
    paths: list[Any] = field(default_factory=list)
    """Paths of the user's files, by number from 1; a value of another type is a damaged line."""
    names: ProcessNames = field(default_factory=ProcessNames)


def read_log(path: Path, names_read: dict[str, ProcessNames] | None = None) -> LogPages:
    """Read one file of a log, also while a process writes it.

    `names_read` is a cache of processes' names, by their file.

    Raises:
        RunFormatError: the file is not an event log, or one of another version.
    """
    data = read_file(path)
    raw = np.frombuffer(data, np.int64, len(data) // 8)
    if raw.size <= HEADER_WORDS or raw[Header.MAGIC] != MAGIC:
        raise RunFormatError(f"{path} is not an event log of this version of stallscope")
    head, words = raw[:HEADER_WORDS].tolist(), raw[HEADER_WORDS + 1 :]
    name = names_of(head[Header.PID], head[Header.WORKER], head[Header.STARTED_NS])
    names = (names_read or {}).get(name) or _read_names(path.with_name(name))
    if names_read is not None:
        names_read[name] = names
    return LogPages(
        pid=head[Header.PID],
        worker=head[Header.WORKER],
        born_ns=head[Header.BORN_NS],
        words=words[words != 0],
        started_ns=head[Header.STARTED_NS],
        thread=head[Header.THREAD],
        turn=head[Header.TURN],
        is_full=bool(raw[HEADER_WORDS]),
        other_threads=head[Header.OTHER_THREADS],
        paths=list(_json_lines(path.with_suffix(".paths"))),
        names=names,
    )


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete JSON objects of a file, if there is one; a `ValueError` for no log."""
    for entry in _json_lines(path):
        if isinstance(entry, dict):
            yield entry


def _json_lines(path: Path) -> Iterator[Any]:
    if not path.exists():
        return
    for line in read_file(path).decode("utf-8", "replace").splitlines():
        entry = None
        with contextlib.suppress(ValueError, RecursionError):  # a killed process leaves half a line
            entry = json_without_controls(json.loads(line))
        yield entry


def _read_names(path: Path) -> ProcessNames:
    names = ProcessNames()
    for entry in read_lines(path):
        match entry:
            case {"code": code, "stage": stage}:
                with contextlib.suppress(TypeError):
                    names.stages[code] = Stage(*stage)
            case {"raised": str(kind), "code": int(code)}:
                names.errors[code] = kind
            case {"loader": int(number)}:
                names.loaders[number] = entry
            case {"about": dict(about)}:
                names.about.update(about)
            case {"note": str(note)}:
                names.notes.append(note)
            case {"device": str() | None as device}:
                names.devices.append(device)
            case {"every": int(every)}:
                names.every.append(every)
    return names
