"""What was used on the time axis of the loop: a row a resource, bands where the loop stalls.

The first row is the loop's own. A resource that was saturated while the loop stalled has its name
in the stall's colour.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
from matplotlib.colors import to_rgb

from stallscope.charts.sheet import (
    FAINT,
    INK,
    MID,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    Sheet,
    linear_time,
    styled,
)
from stallscope.model.loop_time import NO_LOOP
from stallscope.run.saturation import OWN, THRESHOLDS, sentence, usage
from stallscope.run.stall_text import nothing, small_print
from stallscope.run.worker_memory import named_growth
from stallscope.stages import (
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
    STALL_COLOUR,
    WORKER,
    WORKER_MAPPED,
    WORKER_MEMORY,
)
from stallscope.units import count, printable, seconds, share, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes

    from stallscope.run.result import Run
    from stallscope.run.saturation import Usage


_HARDLY_BYTES: Final = 1e5
"""A network that carries fewer bytes a second has no row: it is somebody's notebook."""
_HEADROOM: Final = 1.25
_FAR: Final = 0.5
"""Where less than this share of a limit is used, the axis does not reach up to it."""
_LONGEST: Final = 16
"""Characters of a device's name."""
NOT_SAMPLED: Final = "Nothing was sampled: it is not known what was used"
_MOST_LABELS: Final = 2
"""Lines of a row that are named; the largest."""
_NAMES: Final = 1.95
"""Width of the rows' names and of their axes, inches."""
_BAND: Final = 0.2
"""Opacity of the band behind the rows where the loop stalls all the time."""


class ResourceLine(NamedTuple):
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
    def limit(self) -> float:
        """The largest; 0 where none is known."""
        return float(self.values["limit"].fill_null(0.0).to_numpy().max())


class ResourceRow(NamedTuple):
    """One small chart."""

    name: str
    lines: list[ResourceLine]
    text: Callable[[float], str]
    """A value with its unit."""
    saturating: tuple[str, ...] = ()
    """Resources that saturate it; the first one's threshold is drawn."""

    def is_saturated(self, found: Usage) -> bool:
        """Return whether one of its resources was saturated while the loop stalled."""
        return any(use["resource"] in self.saturating for use in found.judged.saturated)

    @property
    def threshold(self) -> float | None:
        """From here on it counts as saturated, in the unit of the values; None: not known."""
        limit = max((line.limit for line in self.lines), default=0.0)
        limit = limit or float(self.saturating == OWN)
        return limit * THRESHOLDS[self.saturating[0]] if self.saturating and limit else None

    @property
    def top(self) -> float:
        """Upper end of its axis: the limit, unless that is far away."""
        if self.text is share:
            return 1.0
        most = max(float(line.values["value"].to_numpy().max()) for line in self.lines)
        limit = max(line.limit for line in self.lines)
        is_near = limit and (most >= _FAR * limit or limit <= 1)
        return (max(limit, most) if is_near else most * _HEADROOM) or 1.0

    def labels(self) -> Iterator[str]:
        """Yield the means of its largest lines."""
        lines = sorted((line for line in self.lines if not line.thin), key=lambda line: -line.mean)
        for line in lines[: _MOST_LABELS if len(lines) <= _MOST_LABELS else _MOST_LABELS - 1]:
            mean = self.text(line.mean)
            is_part = line.limit not in (0.0, 1.0) and len(self.lines) == 1
            of = f"of {self.text(line.limit)}" if is_part else printable(line.name, _LONGEST)
            yield f"{mean} {of}{' (dashed)' if line.dashed else ''}"
        if len(lines) > _MOST_LABELS:
            yield f"and {len(lines) - _MOST_LABELS + 1} more"


def rows(found: Usage) -> list[ResourceRow]:
    """Return every row that there is something to show in."""
    lines, total = partial(_lines, found), partial(_sum, found)
    cores, workers, queued = (lines(name, thin=True) for name in (CORE, WORKER, QUEUED))
    of_cores = "of the core" if len(cores) == 1 else f"of {len(cores)} cores"
    main = lines(LOOP, name="main", dashed=bool(workers))
    # those who make the batches: the workers, or the main process where there are none
    pids = {line.name for line in workers}
    makers = [line for line in queued if line.name in pids] or queued
    disk = [*total(DISK_READ, "read"), *total(DISK_WRITE, "written", dashed=True)]
    network = [*total(RECEIVED, "in"), *total(SENT, "out", dashed=True)]
    if all(line.mean < _HARDLY_BYTES for line in network):
        network = []
    own, mapped = (lines(name, thin=True) for name in (WORKER_MEMORY, WORKER_MAPPED))
    memory = _with_mean(own, "own part")
    memory += [mean._replace(dashed=True) for mean in _with_mean(mapped, "with shared")[-1:]]
    waiting = _with_mean(makers, "a worker" if pids else "main")
    by_process = [*_with_mean(workers, "a worker"), *main]
    operations = total(DISK_OPERATIONS, "reads and writes")
    every = [
        ResourceRow("cores", _with_mean(cores, of_cores), share, (CORE,)),
        ResourceRow("CPU quota", lines(QUOTA), _cores_text, (QUOTA,)),
        ResourceRow("CPU by process", by_process, _cores_text, OWN),
        ResourceRow(NAMES[QUEUED], waiting, share),
        ResourceRow("memory", lines(MEMORY), size, (MEMORY,)),
        ResourceRow("workers' memory", memory, size),
        ResourceRow("/dev/shm", lines(SHM, name="there"), size, (SHM,)),  # noqa: S108
        ResourceRow("disk busy", lines(DISK_BUSY), share, (DISK_BUSY,)),
        ResourceRow("disk bytes", disk, _per_second),
        ResourceRow("disk operations", operations, "{:,.0f}/s".format),
        ResourceRow("network", network, _per_second, (RECEIVED, SENT)),
        ResourceRow("GPU busy", lines(GPU), share, (GPU,)),
        ResourceRow("GPU memory", lines(GPU_MEMORY), size),
    ]
    return [row for row in every if row.lines]


def _lines(found: Usage, resource: str, *, name: str = "", **look: Any) -> list[ResourceLine]:
    """Return a line for each device; a GPU has nothing but a number."""
    mine = found.values.filter(pl.col("resource") == resource)
    prefix = "GPU " if resource in (GPU, GPU_MEMORY) else ""
    return [
        ResourceLine(name or f"{prefix}{device[0]}", part.sort("at_s"), **look)
        for device, part in mine.group_by("device", maintain_order=True)
    ]


def _sum(found: Usage, resource: str, name: str, **look: Any) -> list[ResourceLine]:
    mine = found.values.filter(pl.col("resource") == resource)
    values = mine.group_by("at_s").agg(pl.col("value", "limit").sum()).sort("at_s")
    return [ResourceLine(name, values, **look)] if values.height else []


def _with_mean(lines: list[ResourceLine], name: str) -> list[ResourceLine]:
    if not lines:
        return []
    both = pl.concat([line.values for line in lines])
    means = both.group_by("at_s").agg(pl.col("value").mean(), pl.col("limit").max())
    return [*lines, ResourceLine(name, means.sort("at_s"))]


def _cores_text(value: float) -> str:
    return "1 core" if value == 1 else f"{value:.2g} cores"


def _per_second(value: float) -> str:
    return f"{size(value)}/s"


@styled
def figure(run: Run) -> Sheet:
    """Draw the resources."""
    found = usage(run)
    if found is None:
        looped = run.steps()["start_ns"].drop_nulls().len()
        return Sheet(NOT_SAMPLED if looped else NO_LOOP, nothing(run))
    shown = rows(found)
    growth, notes = named_growth(run), _notes(run, found)
    title = sentence(found.judged)
    if growth and found.judged.saturated:
        notes = [growth, *notes]
    elif growth:
        title = growth
    sheet = Sheet(title, notes, [0.35, *[0.5] * len(shown)], aligned=True)
    loop, *axes = sheet.parts
    for ax in sheet.parts:
        linear_time(ax, found.end_s, found.begin_s)
        ax.tick_params(axis="x", length=0, labelbottom=False)
        ax.tick_params(axis="y", labelsize=SMALL_SIZE, labelcolor=FAINT)
        ax.spines["bottom"].set_color(RULE)
    sheet.parts[-1].tick_params(axis="x", length=3, labelbottom=True)
    sheet.parts[-1].set_xlabel("time since the start of the run")
    edges = found.begin_s + np.arange(len(found.stalled) + 1) * found.bin_s
    loop.stairs(found.stalled, edges, fill=True, color=STALL_COLOUR, lw=0)
    loop.set_ylim(0, 1.05)
    loop.set_yticks([0, 1], ["0", "100%"])
    stood = found.judged.loop
    _name(loop, "loop stalls", [f"{share(stood.share)} of the time"] if stood else [], loud=True)
    for ax, row in zip(axes, shown, strict=True):
        _draw_row(ax, row, found)
    return sheet


def _notes(run: Run, found: Usage) -> list[str]:
    length_s = found.end_s - found.begin_s
    rate = found.samples / length_s if length_s else 0.0
    cost = f" · sampling took {found.cost_share:.1%} of one core" if found.cost_share else ""
    sampled = f"{count(found.samples, 'sample')} ({rate:.2g} a second){cost}"
    key = "bands: the loop stalls · dotted: from here on a resource counts as saturated"
    lines = [
        f"{seconds(length_s)} of the steady state, {sampled}",
        f"{key} · numbers at the right: means",
    ]
    if found.missing:
        absent = ", ".join(NAMES.get(name, printable(name)) for name in found.missing)
        lines.append(f"not there, or not read: {absent}")
    if any(use["resource"] == DISK_BUSY for use in found.judged.saturated):
        lines.append("a disk that serves requests side by side (SSD) may do more than when 'busy'")
    ranks = run.all_steps["rank"].n_unique()
    if ranks > 1 and found.judged.loop:
        lines.append(f"shown: rank {found.judged.loop.rank} of {ranks}, which stalls most")
    return [*lines, *small_print(run)]


def _draw_row(ax: Axes, row: ResourceRow, found: Usage) -> None:
    band = np.zeros((1, len(found.stalled), 4))
    band[..., :3] = to_rgb(STALL_COLOUR)
    band[..., 3] = _BAND * found.stalled
    top, threshold = row.top, row.threshold
    ends = (found.begin_s, found.end_s, 0.0, top * 1.05)
    ax.imshow(band, aspect="auto", extent=ends, zorder=0, interpolation="nearest")
    for line in row.lines:
        look: dict[str, Any] = {"color": INK, "linewidth": 1.4, "zorder": 3}
        if line.thin:
            look = {"color": MID, "linewidth": 0.7, "zorder": 2}
        look |= {"linestyle": (0, (3, 1.5))} if line.dashed else {}
        look |= {"marker": "o", "markersize": 3.0} if line.values.height == 1 else {}
        ax.plot(line.values["at_s"].to_numpy(), line.values["value"].to_numpy(), **look)
    if threshold is not None and threshold <= top:
        ax.axhline(threshold, color=FAINT, linewidth=0.8, linestyle=":", zorder=1)
    # the largest of 1, 2, 5, 10, 20 and so on, without a decimal that says nothing
    decade = 10.0 ** np.floor(np.log10(top))
    tick = float(max(step * decade for step in (1, 2, 5) if step * decade <= top * (1 + 1e-9)))
    ax.set_ylim(0, top * 1.05)
    ax.set_yticks([0, tick], ["0", re.sub(r"\.0+(?!\d)", "", row.text(tick))])
    _name(ax, row.name, list(row.labels()), loud=row.is_saturated(found))


def _name(ax: Axes, name: str, means: list[str], *, loud: bool) -> None:
    look: dict[str, Any] = {"color": STALL_COLOUR, "weight": "bold"} if loud else {"color": INK}
    look |= {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center"}
    ax.annotate(name, (0, 0.5), (-_NAMES * 72, 0), size=TEXT_SIZE, **look)
    ax.text(1.015, 0.5, "\n".join(means), transform=ax.transAxes, va="center")
