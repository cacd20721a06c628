"""The rows of the picture of the resources: what each shows, and on which scale."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.analyze.saturation import OWN, THRESHOLDS
from stallscope.resources import (
    CORE,
    DISK_BUSY,
    DISK_OPERATIONS,
    DISK_READ,
    DISK_WRITE,
    GPU,
    GPU_MEMORY,
    LOOP,
    MEMORY,
    NAMES,
    QUEUED,
    QUOTA,
    RECEIVED,
    SENT,
    SHM,
    WORKER,
)
from stallscope.units import share, size
from stallscope.views.names import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.analyze.usage import Usage

HARDLY_BYTES: Final = 1e5
"""A network that carries fewer bytes a second has no row: it is somebody's notebook."""
HEADROOM: Final = 1.25
LONGEST: Final = 16
"""Characters of a device's name."""
FAR: Final = 0.5
"""Where less than this share of a limit is used, the axis does not reach up to it."""


@dataclass(frozen=True)
class Line:
    """One line of a row."""

    name: str
    values: pl.DataFrame
    """`at_s, value, limit`."""
    thin: bool = False
    """One of many, behind the others."""
    dashed: bool = False

    @property
    def mean(self) -> float:
        """Over the whole time."""
        return float(self.values["value"].to_numpy().mean())

    @property
    def limit(self) -> float | None:
        """The largest; None where none is known."""
        known = self.values["limit"].drop_nulls().to_numpy()
        return float(known.max()) if known.size else None


@dataclass(frozen=True)
class Row:
    """One small chart."""

    name: str
    lines: tuple[Line, ...]
    told: Callable[[float], str]
    """A value with its unit."""
    used_up: bool = False
    threshold: float | None = None
    """From here on it counts as used up, in the unit of the values; None: that is not known."""

    def tick(self, value: float) -> str:
        """A round value, without a decimal that says nothing."""
        return re.sub(r"\.0+(?!\d)", "", self.told(value))

    def label(self, line: Line) -> str:
        """A line's mean, and how much there is."""
        mean = self.told(line.mean)
        if line.limit and line.limit != 1 and len(self.lines) == 1:
            return f"{mean} of {self.told(line.limit)}"
        return f"{mean} {shown(line.name, LONGEST)}"

    @property
    def top(self) -> float:
        """Upper end of its axis: the limit, unless that is far away."""
        most = max(float(line.values["value"].to_numpy().max()) for line in self.lines)
        limit = max((line.limit or 0.0 for line in self.lines), default=0.0)
        if self.told is share:
            return 1.0
        near = limit if limit and (most >= FAR * limit or limit <= 1) else 0.0
        return max(near, most if near else most * HEADROOM) or 1.0


def rows(found: Usage) -> list[Row]:
    """Every row that there is something to show in."""
    makers = (
        _cores,
        _quota,
        _processes,
        _queued,
        _memory,
        _shm,
        _disk_busy,
        _disk_bytes,
        _operations,
    )
    made = [make(found) for make in (*makers, _network, _gpu, _gpu_memory)]
    return [row for row in made if row and row.lines]


def _cores(found: Usage) -> Row:
    each = _lines(found, CORE, thin=True)
    if not each:
        return Row("cores", (), share)
    together = _mean(each)
    name = "of the core" if len(each) == 1 else f"of {len(each)} cores"
    return _row(found, "cores", (CORE,), [*each, Line(name, together)], share)


def _quota(found: Usage) -> Row:
    return _row(found, "CPU quota", (QUOTA,), _lines(found, QUOTA), _cores_told)


def _processes(found: Usage) -> Row:
    workers = _lines(found, WORKER, thin=True)
    lines = [*workers]
    if workers:
        lines.append(Line("a worker", _mean(workers)))
    main = _lines(found, LOOP, name="main", dashed=bool(workers))
    return _row(found, "CPU of processes", OWN, [*lines, *main], _cores_told)


def _queued(found: Usage) -> Row:
    """Of those who make the batches: the workers, or the main process where there are none."""
    each = _lines(found, QUEUED, thin=True)
    pids = {line.name for line in _lines(found, WORKER)}
    makers = [line for line in each if line.name in pids] or each
    name = "a worker" if pids else "main"
    lines = [*makers, Line(name, _mean(makers))] if makers else []
    return _row(found, NAMES[QUEUED], (), lines, share)


def _memory(found: Usage) -> Row:
    return _row(found, "memory", (MEMORY,), _lines(found, MEMORY), size)


def _shm(found: Usage) -> Row:
    return _row(found, "/dev/shm", (SHM,), _lines(found, SHM, name="there"), size)  # noqa: S108


def _disk_busy(found: Usage) -> Row:
    return _row(found, "disk busy", (DISK_BUSY,), _lines(found, DISK_BUSY), share)


def _disk_bytes(found: Usage) -> Row:
    lines = [
        *_sum(found, DISK_READ, "read"),
        *_sum(found, DISK_WRITE, "written", dashed=True),
    ]
    return _row(found, "disk bytes", (), lines, _per_second)


def _operations(found: Usage) -> Row:
    lines = _sum(found, DISK_OPERATIONS, "reads and writes")
    return _row(found, "disk operations", (), lines, _operations_told)


def _network(found: Usage) -> Row | None:
    lines = [*_sum(found, RECEIVED, "in"), *_sum(found, SENT, "out", dashed=True)]
    if all(line.mean < HARDLY_BYTES for line in lines):
        return None
    return _row(found, "network", (RECEIVED, SENT), lines, _per_second)


def _gpu(found: Usage) -> Row:
    return _row(found, "GPU busy", (GPU,), _lines(found, GPU), share)


def _gpu_memory(found: Usage) -> Row:
    return _row(found, "GPU memory", (), _lines(found, GPU_MEMORY), size)


def _row(
    found: Usage,
    name: str,
    resources: tuple[str, ...],
    lines: list[Line],
    told: Callable[[float], str],
) -> Row:
    used_up = any(use["resource"] in resources for use in found.judged.used_up)
    limits = [line.limit or (1.0 if resources == OWN else 0.0) for line in lines]
    limit = max(limits, default=0.0)
    threshold = limit * THRESHOLDS[resources[0]] if resources and limit else None
    return Row(name, tuple(lines), told, used_up, threshold)


def _lines(found: Usage, resource: str, *, name: str = "", **look: Any) -> list[Line]:
    """A line for each device."""
    mine = found.values.filter(pl.col("resource") == resource)
    return [
        Line(name or _device(resource, str(device[0])), part.sort("at_s"), **look)
        for device, part in mine.group_by("device", maintain_order=True)
    ]


def _device(resource: str, name: str) -> str:
    """A GPU has nothing but a number."""
    return f"GPU {name}" if resource in (GPU, GPU_MEMORY) else name


def _sum(found: Usage, resource: str, name: str, **look: Any) -> list[Line]:
    """All devices together."""
    mine = found.values.filter(pl.col("resource") == resource)
    together = mine.group_by("at_s").agg(pl.col("value", "limit").sum()).sort("at_s")
    values = together.with_columns(limit=pl.when(pl.col("limit") > 0).then("limit"))
    return [Line(name, values, **look)] if values.height else []


def _mean(lines: list[Line]) -> pl.DataFrame:
    both = pl.concat([line.values for line in lines])
    means = both.group_by("at_s").agg(pl.col("value").mean(), pl.col("limit").max())
    return means.sort("at_s")


def _cores_told(value: float) -> str:
    return "1 core" if value == 1 else f"{value:.2f} cores"


def _operations_told(value: float) -> str:
    return f"{value:,.0f}/s"


def _per_second(value: float) -> str:
    return f"{size(value)}/s"
