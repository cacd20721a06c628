"""What was used on the time axis of the loop: a row a resource, bands where the loop stalls.

The first row is the loop's own. A resource that was saturated while the loop stalled has its name
in the stall's colour.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from matplotlib.colors import to_rgb

from stallscope.charts.sheet import (
    FAINT,
    INK,
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


HARDLY_BYTES: Final = 1e5
"""A network that carries fewer bytes a second has no row: it is somebody's notebook."""
HEADROOM: Final = 1.25
LONGEST: Final = 16
"""Characters of a device's name."""
NOT_SAMPLED: Final = "Nothing was sampled: it is not known what was used"
MOST_LABELS: Final = 2
"""Lines of a row that are named; the largest."""
_NAMES: Final = 1.95
"""Width of the rows' names and of their axes, inches."""
BAND: Final = 0.2
"""Opacity of the band behind the rows where the loop stalls all the time."""
_LINE: Final = "#444444"
_THIN: Final = "#9A9A9A"
FAR: Final = 0.5
"""Where less than this share of a limit is used, the axis does not reach up to it."""


@dataclass(frozen=True)
class ResourceLine:
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
class ResourceRow:
    """One small chart."""

    name: str
    lines: tuple[ResourceLine, ...]
    text: Callable[[float], str]
    """A value with its unit."""
    saturated: bool = False
    threshold: float | None = None
    """From here on it counts as saturated, in the unit of the values; None: that is not known."""

    def tick(self, value: float) -> str:
        """A round value, without a decimal that says nothing."""
        return re.sub(r"\.0+(?!\d)", "", self.text(value))

    def label(self, line: ResourceLine) -> str:
        """A line's mean, and how much there is."""
        mean = self.text(line.mean)
        if line.limit and line.limit != 1 and len(self.lines) == 1:
            return f"{mean} of {self.text(line.limit)}"
        return f"{mean} {printable(line.name, LONGEST)}"

    @property
    def top(self) -> float:
        """Upper end of its axis: the limit, unless that is far away."""
        most = max(float(line.values["value"].to_numpy().max()) for line in self.lines)
        limit = max((line.limit or 0.0 for line in self.lines), default=0.0)
        if self.text is share:
            return 1.0
        near = limit if limit and (most >= FAR * limit or limit <= 1) else 0.0
        return max(near, most if near else most * HEADROOM) or 1.0


def rows(found: Usage) -> list[ResourceRow]:
    """Every row that there is something to show in."""
    cores, workers, queued = (_lines(found, name, thin=True) for name in (CORE, WORKER, QUEUED))
    of_cores = "of the core" if len(cores) == 1 else f"of {len(cores)} cores"
    main = _lines(found, LOOP, name="main", dashed=bool(workers))
    # those who make the batches: the workers, or the main process where there are none
    pids = {line.name for line in workers}
    makers = [line for line in queued if line.name in pids] or queued
    disk = [*_sum(found, DISK_READ, "read"), *_sum(found, DISK_WRITE, "written", dashed=True)]
    network = [*_sum(found, RECEIVED, "in"), *_sum(found, SENT, "out", dashed=True)]
    if all(line.mean < HARDLY_BYTES for line in network):
        network = []
    operations = _sum(found, DISK_OPERATIONS, "reads and writes")
    own, mapped = (_lines(found, name, thin=True) for name in (WORKER_MEMORY, WORKER_MAPPED))
    shared = [replace(line, dashed=True) for line in _with_mean(mapped, "with shared")[-1:]]
    of_workers = [*_with_mean(own, "own part"), *shared]
    every = [
        _row(found, "cores", (CORE,), _with_mean(cores, of_cores), share),
        _row(found, "CPU quota", (QUOTA,), _lines(found, QUOTA), _cores_text),
        _row(found, "CPU by process", OWN, [*_with_mean(workers, "a worker"), *main], _cores_text),
        _row(found, NAMES[QUEUED], (), _with_mean(makers, "a worker" if pids else "main"), share),
        _row(found, "memory", (MEMORY,), _lines(found, MEMORY), size),
        _row(found, "workers' memory", (), of_workers, size),
        _row(found, "/dev/shm", (SHM,), _lines(found, SHM, name="there"), size),  # noqa: S108
        _row(found, "disk busy", (DISK_BUSY,), _lines(found, DISK_BUSY), share),
        _row(found, "disk bytes", (), disk, _per_second),
        _row(found, "disk operations", (), operations, lambda value: f"{value:,.0f}/s"),
        _row(found, "network", (RECEIVED, SENT), network, _per_second),
        _row(found, "GPU busy", (GPU,), _lines(found, GPU), share),
        _row(found, "GPU memory", (), _lines(found, GPU_MEMORY), size),
    ]
    return [row for row in every if row.lines]


def _row(
    found: Usage,
    name: str,
    resources: tuple[str, ...],
    lines: list[ResourceLine],
    text: Callable[[float], str],
) -> ResourceRow:
    saturated = any(use["resource"] in resources for use in found.judged.saturated)
    limits = [line.limit or (1.0 if resources == OWN else 0.0) for line in lines]
    limit = max(limits, default=0.0)
    threshold = limit * THRESHOLDS[resources[0]] if resources and limit else None
    return ResourceRow(name, tuple(lines), text, saturated, threshold)


def _lines(found: Usage, resource: str, *, name: str = "", **look: Any) -> list[ResourceLine]:
    """A line for each device; a GPU has nothing but a number."""
    mine = found.values.filter(pl.col("resource") == resource)
    prefix = "GPU " if resource in (GPU, GPU_MEMORY) else ""
    return [
        ResourceLine(name or f"{prefix}{device[0]}", part.sort("at_s"), **look)
        for device, part in mine.group_by("device", maintain_order=True)
    ]


def _sum(found: Usage, resource: str, name: str, **look: Any) -> list[ResourceLine]:
    mine = found.values.filter(pl.col("resource") == resource)
    together = mine.group_by("at_s").agg(pl.col("value", "limit").sum()).sort("at_s")
    values = together.with_columns(limit=pl.when(pl.col("limit") > 0).then("limit"))
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
    """The resources as a picture."""
    found = usage(run)
    if found is None:
        looped = run.steps()["start_ns"].drop_nulls().len()
        return Sheet(NOT_SAMPLED if looped else NO_LOOP, nothing(run))
    shown = rows(found)
    heights = [0.35, *[0.5] * len(shown)]
    growth, calm = named_growth(run), not found.judged.saturated
    title = growth if growth and calm else sentence(found.judged)
    notes = [growth, *_notes(run, found)] if growth and not calm else _notes(run, found)
    made = Sheet(title, notes, heights, aligned=True)
    loop, *axes = made.parts
    for ax in made.parts:
        linear_time(ax, found.end_s, found.begin_s)
        ax.tick_params(axis="x", length=0, labelbottom=False)
        ax.tick_params(axis="y", labelsize=SMALL_SIZE, labelcolor=FAINT)
        ax.spines["bottom"].set_color(RULE)
    made.parts[-1].tick_params(axis="x", length=3, labelbottom=True)
    made.parts[-1].set_xlabel("time since the start of the run")
    _draw_loop(loop, found)
    for ax, row in zip(axes, shown, strict=True):
        _draw_row(ax, row, found)
    return made


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
    if ranks > 1 and found.judged.stood:
        lines.append(f"shown: rank {found.judged.stood.rank} of {ranks}, which stalls most")
    return [*lines, *small_print(run)]


def _draw_loop(ax: Axes, found: Usage) -> None:
    edges = found.begin_s + np.arange(len(found.stalled) + 1) * found.bin_s
    ax.stairs(found.stalled, edges, fill=True, color=STALL_COLOUR, lw=0)
    ax.set_ylim(0, 1.05)
    ax.set_yticks([0, 1], ["0", "100%"])
    stood = found.judged.stood
    _name(ax, "loop stalls", [f"{share(stood.share)} of the time"] if stood else [], loud=True)


def _draw_row(ax: Axes, row: ResourceRow, found: Usage) -> None:
    band = np.zeros((1, len(found.stalled), 4))
    band[..., :3] = to_rgb(STALL_COLOUR)
    band[..., 3] = BAND * found.stalled
    ends = (found.begin_s, found.end_s, 0.0, row.top * 1.05)
    ax.imshow(band, aspect="auto", extent=ends, zorder=0, interpolation="nearest")
    for line in row.lines:
        _draw_line(ax, line)
    if row.threshold is not None and row.threshold <= row.top:
        ax.axhline(row.threshold, color=FAINT, linewidth=0.8, linestyle=":", zorder=1)
    tick = _round_below(row.top)
    ax.set_ylim(0, row.top * 1.05)
    ax.set_yticks([0, tick], ["0", row.tick(tick)])
    _name(ax, row.name, list(_named(row)), loud=row.saturated)


def _name(ax: Axes, name: str, means: list[str], *, loud: bool) -> None:
    look: dict[str, Any] = {"color": STALL_COLOUR, "weight": "bold"} if loud else {"color": INK}
    look |= {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center"}
    ax.annotate(name, (0, 0.5), (-_NAMES * 72, 0), size=TEXT_SIZE, **look)
    ax.text(1.015, 0.5, "\n".join(means), transform=ax.transAxes, va="center")


def _draw_line(ax: Axes, line: ResourceLine) -> None:
    look: dict[str, Any] = {"color": _LINE, "linewidth": 1.4, "zorder": 3}
    if line.thin:
        look = {"color": _THIN, "linewidth": 0.7, "zorder": 2}
    if line.dashed:
        look["linestyle"] = (0, (3, 1.5))
    at_s, values = line.values["at_s"].to_numpy(), line.values["value"].to_numpy()
    look |= {"marker": "o", "markersize": 3.0} if len(at_s) == 1 else {}
    ax.plot(at_s, values, **look)


def _named(row: ResourceRow) -> Iterator[str]:
    lines = sorted((one for one in row.lines if not one.thin), key=lambda one: -one.mean)
    for line in lines[: MOST_LABELS if len(lines) <= MOST_LABELS else MOST_LABELS - 1]:
        dashes = " (dashed)" if line.dashed else ""
        yield f"{row.label(line)}{dashes}"
    if len(lines) > MOST_LABELS:
        yield f"and {len(lines) - MOST_LABELS + 1} more"


def _round_below(top: float) -> float:
    """The largest of 1, 2, 5, 10, 20 and so on that is not above."""
    decade = 10.0 ** np.floor(np.log10(top))
    return float(max(step * decade for step in (1, 2, 5) if step * decade <= top * (1 + 1e-9)))
