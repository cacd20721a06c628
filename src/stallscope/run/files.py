"""A run as a folder of JSON and Parquet: written, and read back with every value checked.

What is opened may come from anybody: it is only data, and what would break a table or a picture
later is refused here, in one sentence.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.errors import RunFormatError
from stallscope.run.result import DELIVERIES, RESOURCES, STARTUP, STEPS, WAITS, Run, Settings

if TYPE_CHECKING:
    from stallscope.run.result import Schema


SCHEMA_VERSION: Final = 3
_WITHOUT: Final = {2: {"resources"}}
"""Older versions that are read, and the tables that they have not."""

_TABLES: Final = {
    "spans": "all_spans",
    "samples": "all_samples",
    "batches": "batches",
    "steps": "all_steps",
    "waits": "waits",
    "deliveries": "deliveries",
    "side_spans": "side_spans",
    "startup": "startup",
    "resources": "all_resources",
}
_OTHERS: Final = "others"
"""Where the other loaders of the process lie, a folder each."""
_NEVER_NULL: Final = {
    *("rank", "pid", "epoch", "batch", "step", "stage", "kind"),
    *("start_ns", "end_ns", "complete", "steady", "resource"),
}
_MAY_BE_NULL: Final = {"deliveries": {"pid"}}
"""A worker that was not hooked is not known."""
_LONGEST_NS: Final = 1 << 53
"""No time is longer (104 days), so that sums are exact."""

_SETTINGS: Final = {
    "name": (str,),
    "num_workers": (int,),
    "batch_size": (int, NoneType),
    "warmup": (int,),
    "simulated_step_s": (float, NoneType),
}
_PLAIN: Final = {"first_batch_s": (int, float, NoneType), "machine": (dict,), "notes": (list,)}
_MEND: Final = "copy the folder once more, or record again"


def save(run: Run, folder: Path) -> Path:
    """Write a run, see `Run.save`."""
    try:
        _write(run, folder)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RunFormatError(f"the run cannot be written into {folder}: {error}") from error
    return folder


def _write(run: Run, folder: Path) -> None:
    known = {"run.json", _OTHERS, "logs", *(f"{name}.parquet" for name in _TABLES)}
    if folder.is_file():
        raise RunFormatError(f"{folder} is a file; give a new folder for the run")
    if folder.exists() and not {path.name for path in folder.iterdir()} <= known:
        raise RunFormatError(f"{folder} holds other files; give a new folder for the run")
    folder.mkdir(parents=True, exist_ok=True)
    # First gone and last written, so that a folder with a run.json is a whole run.
    (folder / "run.json").unlink(missing_ok=True)
    shutil.rmtree(folder / _OTHERS, ignore_errors=True)
    for name, attribute in _TABLES.items():
        getattr(run, attribute).write_parquet(folder / f"{name}.parquet")
    for number, other in enumerate(run.others, 1):
        _write(other, folder / _OTHERS / str(number))
    plain = {name: getattr(run, name) for name in _PLAIN}
    head = {"schema_version": SCHEMA_VERSION, "settings": vars(run.settings), **plain}
    (folder / "run.json").write_text(json.dumps(head, indent=2), encoding="utf-8")


def read(path: str | Path) -> Run:
    """Read a run that `Run.save` wrote. Runs nothing that the folder says.

    Args:
        path: the run's folder.

    Raises:
        RunFormatError: no run there, a damaged one, or one of another schema version.
    """
    folder = Path(path)
    head = _head(folder)
    absent = _absent(folder, head.get("schema_version"))
    try:
        tables: dict[str, Any] = {
            _TABLES[name]: _table(folder / f"{name}.parquet", schema)
            for name, schema in _schemas().items()
            if name not in absent
        }
        settings = Settings(**_typed(head["settings"], _SETTINGS))
        others = tuple(read(one) for one in _others(folder))
        return Run(**tables, settings=settings, others=others, **_plain(head))
    except KeyError as error:
        raise RunFormatError(f"{folder}/run.json has no {error}: {_MEND}") from error
    except (OSError, TypeError, ValueError, *_POLARS) as error:
        said = str(error).partition("\n")[0]
        raise RunFormatError(f"{folder} is not a whole run ({said}): {_MEND}") from error


def _absent(folder: Path, version: Any) -> set[str]:
    """The tables that a run of this version has not."""
    if version == SCHEMA_VERSION:
        return set()
    if type(version) is int and version in _WITHOUT:
        return _WITHOUT[version]
    raise RunFormatError(
        f"{folder} has schema version {version!r}; this stallscope reads "
        f"versions {min(_WITHOUT)} to {SCHEMA_VERSION}. Open it with the stallscope that wrote it"
    )


def _others(folder: Path) -> list[Path]:
    """The folders of the other loaders, in their order."""
    found = [path for path in (folder / _OTHERS).glob("*") if path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name))


_POLARS: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What polars raises over a damaged file; a panic is no `Exception`."""


def _head(folder: Path) -> dict[str, Any]:
    try:
        head = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFormatError(
            f"{folder} is not a run: it has no run.json. Give a folder that `Run.save` or "
            "`stallscope record --out` wrote"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunFormatError(f"{folder}/run.json cannot be read ({error}): {_MEND}") from error
    if not isinstance(head, dict):
        raise RunFormatError(f"{folder}/run.json is damaged (no JSON object): {_MEND}")
    return head


def _plain(head: dict[str, Any]) -> dict[str, Any]:
    """Everything of the head that is no setting."""
    plain = _typed(head, _PLAIN)
    if isinstance(plain["first_batch_s"], float) and not math.isfinite(plain["first_batch_s"]):
        raise ValueError("first_batch_s in run.json is no number")
    if not all(isinstance(note, str) for note in plain["notes"]):
        raise TypeError("notes in run.json are not all text")
    return {**plain, "notes": tuple(plain["notes"])}


def _typed(part: dict[str, Any], kinds: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    """The named values, each of one of its types; others are left out."""
    if not isinstance(part, dict):
        raise TypeError("settings in run.json are no JSON object")
    for name, allowed in kinds.items():
        if type(part[name]) not in allowed:
            raise TypeError(f"{name} in run.json is a {type(part[name]).__name__}")
    return {name: part[name] for name in kinds}


def _schemas() -> dict[str, Schema]:
    from stallscope.run.decode import BATCHES, SAMPLES, SPANS

    return {
        "spans": SPANS,
        "samples": SAMPLES,
        "batches": {**BATCHES, "steady": pl.Boolean()},
        "steps": STEPS,
        "waits": WAITS,
        "deliveries": DELIVERIES,
        "side_spans": SPANS,
        "startup": STARTUP,
        "resources": RESOURCES,
    }


def _table(path: Path, schema: Schema) -> pl.DataFrame:
    """A table with exactly the columns of its schema, and values that can be worked with."""
    read = pl.read_parquet(path, columns=list(schema), glob=False)
    frame = read.select(pl.col(name).cast(kind) for name, kind in schema.items())
    for name in _NEVER_NULL & set(schema) - _MAY_BE_NULL.get(path.stem, set()):
        if frame[name].null_count():
            raise ValueError(f"{path.name}: {name} has empty places")
    for name, column in zip(schema, frame, strict=True):
        if column.dtype == pl.Float64 and not column.is_finite().all():
            raise ValueError(f"{path.name}: {name} holds what is no number")
        if name.endswith("_ns") and not column.is_between(-_LONGEST_NS, _LONGEST_NS).all():
            raise ValueError(f"{path.name}: {name} holds impossible times")
    if "start_ns" in schema and not (frame["end_ns"] >= frame["start_ns"]).all():
        raise ValueError(f"{path.name}: spans end before they start")
    return frame
