"""A flame as a folder of JSON and Parquet: written, and read back with every value checked.

What is opened may come from anybody: it is only data.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

import polars as pl

from stallscope.errors import RunFormatError
from stallscope.flame.result import SAMPLES, Flame, FlameConditions

SCHEMA_VERSION: Final = 1

_HEAD: Final = "flame.json"
_STACKS: Final = "stacks.parquet"
_NEVER_NULL: Final = ("pid", "window", "stack", "hits")
_MEND: Final = "copy the folder once more, or record again"
_POLARS: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What polars raises over a damaged file; a panic is no `Exception`."""


def save(flame: Flame, folder: str | Path) -> Path:
    """Write a flame, see `Flame.save`."""
    folder = Path(folder)
    try:
        if folder.exists() and not {path.name for path in folder.iterdir()} <= {_HEAD, _STACKS}:
            raise RunFormatError(f"{folder} holds other files; give a new folder for the flame")
        folder.mkdir(parents=True, exist_ok=True)
        # First gone and last written, so that a folder with a head is a whole flame.
        (folder / _HEAD).unlink(missing_ok=True)
        flame.samples.write_parquet(folder / _STACKS)
        head = {"schema_version": SCHEMA_VERSION, "notes": list(flame.notes)}
        head["circumstances"] = asdict(flame.circumstances)
        (folder / _HEAD).write_text(json.dumps(head, indent=2), encoding="utf-8")
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RunFormatError(f"the flame cannot be written into {folder}: {error}") from error
    return folder


def read(folder: str | Path) -> Flame:
    """Read a flame, see `Flame.load`."""
    folder = Path(folder)
    try:
        head = json.loads((folder / _HEAD).read_text(encoding="utf-8"))
        _check_version(folder, head)
        samples = _samples(folder / _STACKS)
        return Flame(samples, _circumstances(head["circumstances"]), _notes(head["notes"]))
    except FileNotFoundError as error:
        raise RunFormatError(
            f"{folder} is not a flame: it lacks {Path(error.filename or _STACKS).name}. Give a "
            "folder that `Flame.save` wrote"
        ) from None
    except KeyError as error:
        raise RunFormatError(f"{folder}/{_HEAD} has no {error}: {_MEND}") from error
    except (OSError, TypeError, ValueError, RecursionError, *_POLARS) as error:
        if isinstance(error, RunFormatError):
            raise
        said = str(error).partition("\n")[0]
        raise RunFormatError(f"{folder} is not a whole flame ({said}): {_MEND}") from error


def _check_version(folder: Path, head: Any) -> None:
    if not isinstance(head, dict):
        raise TypeError(f"{_HEAD} is no JSON object")
    version = head.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RunFormatError(
            f"{folder} has schema version {version!r}; this stallscope reads {SCHEMA_VERSION}. "
            "Open it with the stallscope that wrote it"
        )


def _samples(path: Path) -> pl.DataFrame:
    read = pl.read_parquet(path, columns=list(SAMPLES), glob=False)
    frame = read.select(pl.col(name).cast(kind) for name, kind in SAMPLES.items())
    if any(frame[name].null_count() for name in _NEVER_NULL):
        raise ValueError(f"{path.name} has empty places")
    if not (frame["hits"] > 0).all():
        raise ValueError(f"{path.name} has stacks that were never seen")
    return frame


def _circumstances(given: Any) -> FlameConditions:
    """Each value of the type that its default has."""
    default = FlameConditions()
    values = {}
    for one in fields(FlameConditions):
        kind: Any = type(getattr(default, one.name))
        allowed = (int, float) if kind is float else (kind,)
        if type(given[one.name]) not in allowed:
            raise TypeError(f"{one.name} is a {type(given[one.name]).__name__}")
        values[one.name] = given[one.name]
    return FlameConditions(**values)


def _notes(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(note, str) for note in given):
        raise TypeError("the notes are not all text")
    return tuple(given)
