"""Use of each resource over the loop's time, one row per resource; bands mark the stalls.

The first row is the loop itself. A resource that was saturated during stalls has its name in the
stall's colour.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
from matplotlib.colors import to_rgb

from stallscope import stages
from stallscope.charts import sheet
from stallscope.charts.sheet import Sheet, styled
from stallscope.model.attribution import covered_s
from stallscope.model.loop_time import NO_LOOP
from stallscope.run.resources import (
    OWN,
    THRESHOLDS,
    core_seconds,
    find_saturated,
    named_growth,
    sentence,
)
from stallscope.run.stall_data import nothing, small_print
from stallscope.units import count, printable, seconds, share, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes

    from stallscope.run.resources import Saturation
    from stallscope.run.result import Run


_HARDLY_BYTES: Final = 1e5
"""Bytes per second below which the network has no row: they come from the notebook itself."""
_HEADROOM: Final = 1.25
_FAR: Final = 0.5
"""Used share of a limit below which the axis ends before the limit."""
_LONGEST: Final = 16
"""Most characters of a device's name."""
NOT_SAMPLED: Final = "Resources were not sampled, so their use is unknown"
_MOST_LABELS: Final = 2
"""Named lines of a row, the largest first."""
_NAMES: Final = 1.95
"""Width of the rows' names and of their axes, inches."""
_BAND: Final = 0.2
"""Opacity of the band behind the rows at 100% stall."""


MOST_BINS: Final = 300
"""Bins that a notebook's width can show."""
SHORTEST_S: Final = 0.2
"""Shortest bin: below, CPU time that is counted in steps of 10 ms is mostly rounding."""


class Usage(NamedTuple):
    """Resources of one rank, in bins of equal length."""

    values: pl.DataFrame
    """`resource, device, at_s, value, limit`: the mean of a bin, and its middle in seconds from
    the start of the run."""
    stalled: np.ndarray
    """Share (0 to 1) of each bin in which the loop stalled."""
    begin_s: float
    """Begin of the first bin, seconds from the start of the run."""
    bin_s: float
    """Length of a bin, seconds."""
    samples: int
    """Number of samples."""
    cost_share: float | None
    """Overhead of sampling, as a share of one core."""
    missing: tuple[str, ...]
    """Resources that do not exist, or were not read."""
    judged: Saturation
    """Saturated resources."""

    @property
    def end_s(self) -> float:
        """End of the last bin, seconds from the start of the run."""
        return self.begin_s + self.bin_s * len(self.stalled)


def usage(run: Run) -> Usage | None:
    """Return the usage in the steady state of a run; None without samples or without a loop."""
    stalls, judged = run.stalls(), find_saturated(run)
    if judged.rank is None:
        return None
    is_shown = pl.col("rank") == judged.rank
    names = pl.col("resource", "device").cast(pl.String)
    every = run.resources().filter(is_shown).with_columns(names)
    samples = every.drop_nulls("value")
    if samples.is_empty():
        return None
    begin_ns, end_ns = samples.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    shortest_ns = max((end_ns - begin_ns) / MOST_BINS, SHORTEST_S * 1e9)
    edges_ns = np.linspace(begin_ns, end_ns, max(int((end_ns - begin_ns) / shortest_ns), 1) + 1)
    length_ns = float(edges_ns[1] - edges_ns[0])
    stalled_s = covered_s(stalls.filter(is_shown), edges_ns[:-1], edges_ns[1:])
    place = ((pl.col("end_ns") - begin_ns) / length_ns).floor().clip(0, len(edges_ns) - 2)
    at_s = (begin_ns + (place + 0.5) * length_ns) / 1e9
    binned = samples.group_by("resource", "device", at_s=at_s).agg(
        pl.col("value").mean(), pl.col("limit").max()
    )
    cost = samples.filter(resource=stages.SAMPLER)
    whole_s = core_seconds(cost.with_columns(value=1.0))
    return Usage(
        values=binned.sort("resource", "device", "at_s"),
        stalled=np.clip(stalled_s * 1e9 / length_ns, 0.0, 1.0),
        begin_s=begin_ns / 1e9,
        bin_s=length_ns / 1e9,
        samples=cost.height,
        cost_share=core_seconds(cost) / whole_s if whole_s else None,
        missing=tuple(every.filter(pl.col("value").is_null())["resource"].unique().sort()),
        judged=judged,
    )


class ResourceLine(NamedTuple):
    """A line of a row."""

    name: str
    values: pl.DataFrame
    """`at_s, value, limit`."""
    thin: bool = False
    """True for each of many lines, drawn behind the others."""
    dashed: bool = False

    @property
    def mean(self) -> float:
        """Mean over the whole time."""
        return float(self.values["value"].to_numpy().mean())

    @property
    def limit(self) -> float:
        """Largest limit; 0 if unknown."""
        return float(self.values["limit"].fill_null(0.0).to_numpy().max())


class ResourceRow(NamedTuple):
    """A small chart."""

    name: str
    lines: list[ResourceLine]
    text: Callable[[float], str]
    """Formats a value with its unit."""
    saturating: tuple[str, ...] = ()
    """Resources that saturate the row; the threshold of the first is drawn."""

    @property
    def threshold(self) -> float | None:
        """Value from which the row counts as saturated; None: unknown."""
        limit = max((line.limit for line in self.lines), default=0.0)
        limit = limit or float(self.saturating == OWN)
        return limit * THRESHOLDS[self.saturating[0]] if self.saturating and limit else None

    @property
    def top(self) -> float:
        """Upper end of its axis: the limit, unless the limit is far away."""
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


def rows(resources: Usage) -> list[ResourceRow]:
    """Return every row with values."""
    lines, total = partial(_lines, resources), partial(_sum, resources)
    cores, workers, queued = (
        lines(name, thin=True) for name in (stages.CORE, stages.WORKER, stages.QUEUED)
    )
    of_cores = "of the core" if len(cores) == 1 else f"of {len(cores)} cores"
    main = lines(stages.LOOP, name="main", dashed=bool(workers))
    # the workers make the batches, or the main process if there are no workers
    pids = {line.name for line in workers}
    makers = [line for line in queued if line.name in pids] or queued
    disk = [*total(stages.DISK_READ, "read"), *total(stages.DISK_WRITE, "written", dashed=True)]
    network = [*total(stages.RECEIVED, "in"), *total(stages.SENT, "out", dashed=True)]
    if all(line.mean < _HARDLY_BYTES for line in network):
        network = []
    own, mapped = (lines(name, thin=True) for name in (stages.WORKER_MEMORY, stages.WORKER_MAPPED))
    memory = _with_mean(own, "own part")
    memory += [mean._replace(dashed=True) for mean in _with_mean(mapped, "with shared")[-1:]]
    waiting = _with_mean(makers, "a worker" if pids else "main")
    by_process = [*_with_mean(workers, "a worker"), *main]
    operations = total(stages.DISK_OPERATIONS, "reads and writes")
    every = [
        ResourceRow("cores", _with_mean(cores, of_cores), share, (stages.CORE,)),
        ResourceRow("CPU quota", lines(stages.QUOTA), _cores_text, (stages.QUOTA,)),
        ResourceRow("CPU by process", by_process, _cores_text, OWN),
        ResourceRow(stages.NAMES[stages.QUEUED], waiting, share),
        ResourceRow("memory", lines(stages.MEMORY), size, (stages.MEMORY,)),
        ResourceRow("workers' memory", memory, size),
        ResourceRow("/dev/shm", lines(stages.SHM, name="there"), size, (stages.SHM,)),  # noqa: S108
        ResourceRow("disk busy", lines(stages.DISK_BUSY), share, (stages.DISK_BUSY,)),
        ResourceRow("disk bytes", disk, _per_second),
        ResourceRow("disk operations", operations, "{:,.0f}/s".format),
        ResourceRow("network", network, _per_second, (stages.RECEIVED, stages.SENT)),
        ResourceRow("GPU busy", lines(stages.GPU), share, (stages.GPU,)),
        ResourceRow("GPU memory", lines(stages.GPU_MEMORY), size),
    ]
    return [row for row in every if row.lines]


def _lines(resources: Usage, resource: str, *, name: str = "", **look: Any) -> list[ResourceLine]:
    """Return a line for each device; a GPU is named by its number."""
    mine = resources.values.filter(pl.col("resource") == resource)
    prefix = "GPU " if resource in (stages.GPU, stages.GPU_MEMORY) else ""
    return [
        ResourceLine(name or f"{prefix}{device[0]}", part.sort("at_s"), **look)
        for device, part in mine.group_by("device", maintain_order=True)
    ]


def _sum(resources: Usage, resource: str, name: str, **look: Any) -> list[ResourceLine]:
    mine = resources.values.filter(pl.col("resource") == resource)
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
    resources = usage(run)
    if resources is None:
        looped = run.steps()["start_ns"].drop_nulls().len()
        return Sheet(NOT_SAMPLED if looped else NO_LOOP, nothing(run))
    shown = rows(resources)
    growth, notes = named_growth(run), _notes(run, resources)
    title = sentence(resources.judged)
    if growth and resources.judged.saturated:
        notes = [growth, *notes]
    elif growth:
        title = growth
    page = Sheet(title, notes, [0.5 * (len(shown) + 1) + sheet.AXIS])
    (ax,) = page.parts
    sheet.linear_time(ax, resources.end_s, resources.begin_s)
    ax.set_ylim(len(shown) + 1, 0)  # rows
    ax.set_xlabel("time since the start of the run")
    ax.tick_params(axis="y", labelsize=sheet.SMALL_SIZE, labelcolor=sheet.FAINT)
    edges = resources.begin_s + np.arange(len(resources.stalled) + 1) * resources.bin_s
    heights, bottom = _height(0, resources.stalled), _height(0, 0.0)
    ax.stairs(heights, edges, baseline=bottom, fill=True, color=stages.STALL_COLOUR, lw=0)
    band = np.zeros((1, len(resources.stalled), 4))
    band[..., :3] = to_rgb(stages.STALL_COLOUR)
    band[..., 3] = _BAND * resources.stalled
    ends = (resources.begin_s, resources.end_s, len(shown) + 1, 1)
    ax.imshow(band, aspect="auto", extent=ends, zorder=0, interpolation="nearest")
    stalling = f"{share(resources.judged.stall_share)} of the time"
    _name(ax, 0, "loop stalls", [stalling], loud=True)
    ticks = {_height(0, 1.0): "100%"}
    for place, row in enumerate(shown, 1):
        ticks |= _draw_row(ax, place, row)
        loud = any(use["resource"] in row.saturating for use in resources.judged.saturated)
        _name(ax, place, row.name, list(row.labels()), loud=loud)
    sheet.name_heights(ax, ticks)
    return page


def _height(place: int, part: Any) -> Any:
    """Return where a part (0 to 1) of a row's axis lies in the picture."""
    return place + 0.95 - 0.8 * part


def _notes(run: Run, resources: Usage) -> list[str]:
    length_s = resources.end_s - resources.begin_s
    rate = resources.samples / length_s if length_s else 0.0
    sampled = f"{count(resources.samples, 'reading')} ({rate:.2g} per second)"
    if resources.cost_share:
        sampled += f" · the readings took {resources.cost_share:.1%} of one core"
    key = "bands: the loop stalls · dotted: threshold of saturation · numbers at the right: means"
    lines = [f"{seconds(length_s)} of the steady state, {sampled}", key]
    if resources.missing:
        absent = ", ".join(stages.NAMES.get(name, printable(name)) for name in resources.missing)
        lines.append(f"missing, or not read: {absent}")
    if any(use["resource"] == stages.DISK_BUSY for use in resources.judged.saturated):
        lines.append(
            "a disk that serves requests in parallel (SSD) may have capacity left at 100% busy"
        )
    ranks = run.all_steps["rank"].n_unique()
    if ranks > 1:
        lines.append(f"shown: rank {resources.judged.rank} of {ranks}, which stalls most")
    return [*lines, *small_print(run)]


def _draw_row(ax: Axes, place: int, row: ResourceRow) -> dict[float, str]:
    """Draw the lines of a row; return the place and the label of a round value."""
    top, threshold = row.top, row.threshold
    ax.axhline(_height(place, 0.0), color=sheet.MID, linewidth=0.8, zorder=1)
    for line in row.lines:
        look: dict[str, Any] = {"color": sheet.INK, "linewidth": 1.4, "zorder": 3}
        if line.thin:
            look = {"color": sheet.MID, "linewidth": 0.7, "zorder": 2}
        look |= {"linestyle": (0, (3, 1.5))} if line.dashed else {}
        look |= {"marker": "o", "markersize": 3.0} if line.values.height == 1 else {}
        heights = _height(place, line.values["value"].to_numpy() / top)
        ax.plot(line.values["at_s"].to_numpy(), heights, **look)
    if threshold is not None and threshold <= top:
        height = _height(place, threshold / top)
        ax.axhline(height, color=sheet.FAINT, linewidth=0.8, linestyle=":", zorder=1)
    # the largest of 1, 2, 5, 10, 20 and so on, without a trailing zero decimal
    decade = 10.0 ** np.floor(np.log10(top))
    tick = float(max(step * decade for step in (1, 2, 5) if step * decade <= top * (1 + 1e-9)))
    return {_height(place, tick / top): re.sub(r"\.0+(?!\d)", "", row.text(tick))}


def _name(ax: Axes, place: int, name: str, means: list[str], *, loud: bool) -> None:
    look: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "size": sheet.TEXT_SIZE}
    look |= {"color": stages.STALL_COLOUR, "weight": "bold"} if loud else {}
    sheet.write_beside(ax, name, (0, place + 0.55), (-_NAMES * 72, 0), **look)
    transform = ax.get_yaxis_transform()
    ax.text(1.015, place + 0.55, "\n".join(means), transform=transform, va="center")
