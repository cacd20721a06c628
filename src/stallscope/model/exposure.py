"""Accounting of the stalls by stage and group, divided into computing and waiting.

`run.exposed()`, the pictures' numbers and the verdict use this one division.

Waiting for a core is separated from other waiting: a worker's waiting for a core is divided among
its stages by their CPU time. The remaining waiting is storage, a lock or a sleep.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np
import polars as pl

from stallscope.model import attribution
from stallscope.model.attribution import EXPOSED
from stallscope.model.batch_times import Pace, awaited_batches, making, use
from stallscope.model.loop_time import is_own
from stallscope.model.thresholds import AHEAD, KEEPS_UP, LEADS, MOSTLY, SEVERAL, UNEVEN
from stallscope.stages import BATCH, GARBAGE, GETITEM, WORK_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stallscope.model.batch_times import MachineUse, RunTables


WorkGroup = Literal["fetch", "decode", "transform", "getitem", "collate"]
Group = Literal[WorkGroup, "sending", "pin", "main", "start", "unattributed", "waiting for a core"]
"""Group of stages, or of other parts of the stalls."""
WORK: Final[tuple[WorkGroup, ...]] = get_args(WorkGroup)
"""Groups that make a batch."""
READING: Final[tuple[Group, ...]] = ("fetch", "getitem")
"""Groups that hold reading; in `getitem` reading that no hook could name."""
CROWDED: Final = "waiting for a core"
_GROUP_OF_PART: Final[dict[str, Group]] = {
    **dict.fromkeys((attribution.QUEUED, attribution.SEND, attribution.UNPICKLE), "sending"),
    **dict.fromkeys((attribution.MAIN, attribution.MAIN_GARBAGE), "main"),
    attribution.PIN: "pin",
    attribution.START: "start",
    CROWDED: CROWDED,
}
_GROUP_OF_STAGE: Final[dict[str, Group]] = {BATCH.name: "collate", GETITEM.name: "getitem"}
"""Groups of stages of the kind `other`; further stages are user code, as transforms are."""
_WAY: Final = (*WORK, "sending", "pin", "main", "start", "unattributed", CROWDED)
"""Groups in the order of a sample's way to the loop: the order of groups with equal shares."""
_QUICK: Final = 0.1
"""Quantile of the seconds of sending and receiving threads: most had to wait for a core."""
_NOTHING: Final = 1e-6
"""Share of the stalls within the error of clocks."""
DIGITS: Final = 9
"""Significant digits of shares: the last digits depend on the order of sums in threads."""


@dataclass(frozen=True)
class StagePart:
    """Stage as a part of the stalls; without a kind: unattributed time."""

    stage: str
    group: Group
    share: float
    """Share (0 to 1) of the stalls, if each worker had a core for itself."""
    waiting: float
    """Share (0 to 1) of the stage's time spent waiting for anything but a core."""
    kind: str | None = None


@dataclass(frozen=True)
class Exposure:
    """Division of all stalls among stages; the parts add up to 1."""

    parts: tuple[StagePart, ...] = ()
    free: float = 1.0
    """Share (0 to 1) of the stalls that remains without waiting for a core."""

    def of(self, *groups: Group) -> float:
        """Return the share (0 to 1) of the stalls in these groups."""
        return sum(part.share for part in self.parts if part.group in groups)

    def waiting(self, *groups: Group) -> float:
        """Return the share (0 to 1) of the stalls that is waiting in these groups."""
        return sum(part.share * part.waiting for part in self.parts if part.group in groups)

    def computing(self, *groups: Group) -> Exposure:
        """Return the division with all time in these groups (default: all) as computing."""
        parts = (
            replace(part, waiting=0.0) if part.group in groups or not groups else part
            for part in self.parts
        )
        return replace(self, parts=tuple(parts))

    @property
    def own(self) -> tuple[Group, ...]:
        """Transforms, and of the groups that hold reading those that compute for most of it."""
        computing = (group for group in READING if self.waiting(group) < MOSTLY * self.of(group))
        return ("transform", *computing)

    @property
    def leading(self) -> Group | None:
        """The group of work that dominates, or whose longest stage is well ahead; None: none does.

        Shares are of the work alone: what threads waited for cores is the same for all of it. What
        the dataset computes around its transforms counts with them, as it does in their finding.
        """
        parts = [part for part in self.parts if part.group in (*WORK, "sending")]
        whole = sum(part.share for part in parts)
        if not whole:
            return None
        groups = {part.group: self.of(part.group) for part in parts}
        transforms, own = self.of("transform"), self.of("getitem")
        if "getitem" in self.own and transforms > own:
            groups["transform"] += groups.pop("getitem", 0.0)
        most = min(groups, key=lambda group: _first(groups[group], group))
        if groups[most] >= UNEVEN * whole:
            return most
        first, second = (*(part.share for part in parts[:2]), 0.0)[:2]
        is_ahead = first >= LEADS * whole and first >= AHEAD * second
        return parts[0].group if is_ahead else None

    def longest(self, *groups: Group) -> StagePart:
        """Return the longest stage of these groups."""
        return next(part for part in self.parts if part.group in groups)

    def leads(self, group: Group) -> bool:
        """Return whether this group is the largest, except for waiting for a core."""
        return group == next((name for name in self.groups() if name != CROWDED), None)

    def groups(self) -> dict[Group, float]:
        """Return the share of each group, the largest first."""
        shares = {name: self.of(name) for name in dict.fromkeys(part.group for part in self.parts)}
        return {name: shares[name] for name in sorted(shares, key=lambda g: _first(shares[g], g))}


def _first(share: float, group: Group) -> tuple[float, int]:
    return -round(share, DIGITS), _WAY.index(group) if group in _WAY else len(_WAY)


def longest_first(parts: Iterable[StagePart]) -> tuple[StagePart, ...]:
    """Sort parts by length, then by a sample's way and by name."""
    return tuple(sorted(parts, key=lambda part: (*_first(part.share, part.group), part.stage)))


def exposure_of(run: RunTables) -> Exposure:
    """Divide the stalls of a run among stages."""
    workers, cores = run.settings.num_workers, float(run.machine.get("cores") or 1)
    used, times = use(run, workers), making(run, workers)
    load = max(times.load, Pace(times, used, workers, cores).cpu_load) if times else 0.0
    is_behind = workers and load > KEEPS_UP  # the workers, or the cores, are too slow for the step
    return exposure(run, used, times.busy_share if times and is_behind else None)


def exposure(run: RunTables, used: MachineUse, busy_share: float | None = None) -> Exposure:
    """Divide the stalls of a run among stages, by its use of the machine.

    Time of workers on earlier batches, or on batches that were not recorded, is divided among the
    stages in proportion to all their work.

    Args:
        run: tables of the run.
        used: use of the machine by the run.
        busy_share: share (0 to 1) of the workers' time in which they make batches, where workers or
            cores are too slow. The loop then waits for all their work, so this share of the stalls
            is divided among the stages in proportion to all their work.
    """
    stages = _stages(run)
    works = {
        key: row["busy_share"]
        for key, row in stages.items()
        if row["busy_share"]
        and key[1] in WORK_KINDS
        and (key[0] != GARBAGE.name or row["count"] >= SEVERAL)
    }
    exposed_s: dict[tuple[str, str | None], float] = {}
    for row in attribution.table(run.parts()).iter_rows(named=True):
        key = row["part"], row["kind"]
        is_any = is_own(*key) and key[0] in (attribution.EARLIER, attribution.NOT_RECORDED)
        _give(exposed_s, row["exposed_s"], works if is_any and works else {key: 1.0})
    if busy_share is not None and works:
        exposed_s = _of_busy_workers(exposed_s, works, busy_share)
    parts = [_part(key, part_s, stages.get(key), used) for key, part_s in exposed_s.items()]
    parts = list(_uncrowded(run, parts, used))
    whole_s = sum(part.share for part in parts)
    free_s = sum(part.share for part in parts if part.group != CROWDED)
    stalled_s = sum(exposed_s.values())
    if not whole_s:
        return Exposure()
    divided = longest_first(replace(part, share=part.share / whole_s) for part in parts)
    return Exposure(divided, free_s / stalled_s)


def exposed(divided: Exposure, parts: pl.DataFrame) -> pl.DataFrame:
    """Return the accounting as a table, columns of `EXPOSED`: parts add up to all stalls."""
    seen = parts.group_by("part", pl.col("kind").cast(pl.String)).agg(
        stalls=pl.struct("rank", "step").n_unique()
    )
    rows = [(part.stage, part.kind, part.share) for part in divided.parts if part.share > _NOTHING]
    table = pl.DataFrame(rows, ["part", "kind", "share"], orient="row")
    return (
        table.cast({"part": pl.String, "kind": pl.String, "share": pl.Float64})
        .join(seen, on=["part", "kind"], how="left", maintain_order="left", nulls_equal=True)
        .with_columns(
            pl.col("share").round(DIGITS),
            exposed_s=(pl.col("share") * parts["exposed_s"].sum()).round(DIGITS),
            stalls=pl.col("stalls").fill_null(0),
        )
        .select(pl.col(name).cast(kind) for name, kind in EXPOSED.items())
    )


def _give(
    exposed_s: dict[tuple[str, str | None], float],
    added_s: float,
    among: dict[tuple[str, str | None], float],
) -> None:
    whole = sum(among.values())
    for key, weight in among.items():
        exposed_s[key] = exposed_s.get(key, 0.0) + added_s * weight / whole


def _of_busy_workers(
    exposed_s: dict[tuple[str, str | None], float],
    works: dict[tuple[str, str | None], float],
    busy_share: float,
) -> dict[tuple[str, str | None], float]:
    """Divide the busy share of the stalls among the work of workers that are too slow.

    The start of workers keeps its time, as it is no part of the steady state.
    """
    start = attribution.START, attribution.KIND_OF[attribution.START]
    starts = {key: part_s for key, part_s in exposed_s.items() if key == start}
    rest_s = sum(exposed_s.values()) - sum(starts.values())
    beside = {key: s for key, s in exposed_s.items() if key not in works and key != start}
    beside_s = sum(beside.values())
    fraction = min((1 - busy_share) * rest_s / beside_s, 1.0) if beside_s else 0.0
    divided = starts | {key: part_s * fraction for key, part_s in beside.items()}
    _give(divided, rest_s - beside_s * fraction, works)
    return divided


def _stages(run: RunTables) -> dict[tuple[str, str | None], dict[str, Any]]:
    """Return a row for each stage; work in samples and between samples is summed."""
    seen = pl.col("cpu_share").is_not_null()
    busy_s = pl.col("busy_s").filter(seen)
    rows = run.work_stages.group_by("stage", "kind", maintain_order=True)
    summed = rows.agg(
        busy_share=pl.col("busy_share").sum(),
        count=pl.col("count").sum(),
        cpu_share=(pl.col("cpu_share").filter(seen) * busy_s).sum() / busy_s.sum(),
    )
    summed = summed.with_columns(pl.col("cpu_share").fill_nan(None))
    return {(row["stage"], row["kind"]): row for row in summed.iter_rows(named=True)}


def _part(
    key: tuple[str, str | None], part_s: float, row: dict[str, Any] | None, used: MachineUse
) -> StagePart:
    """Return a part without waiting for a core."""
    group = group_of(*key)
    cpu = row["cpu_share"] if row else None
    if not isinstance(cpu, float) or group not in WORK:
        return StagePart(key[0], group, part_s, 0.0, key[1])
    waits = waiting_share(cpu, used, key[0])
    own = min(cpu, 1.0) + waits
    return StagePart(key[0], group, part_s * own, waits / own if own else 0.0, key[1])


def waiting_share(cpu_share: float, used: MachineUse, stage: str = "") -> float:
    """Return the share (0 to 1) of a stage's time spent waiting for anything but a core."""
    if stage == BATCH.name:
        return 0.0  # no user code runs between samples, so all waiting there is for a core
    cpu, queued = used.loop_cpu if used.worker_cpu is None else used.worker_cpu, used.queued_share
    # Computing takes longer than with a core for each worker
    crowding = 1 + queued / min(cpu, 1.0) if cpu and queued is not None else 1.0
    return 1 - min(min(cpu_share, 1.0) * crowding, 1.0)


def work_of_batch(run: RunTables, used: MachineUse) -> tuple[float, float]:
    """Return mean seconds of a worker for each step: of CPU time, and of waiting but for a core."""
    rows = run.work_stages.drop_nulls("cpu_share").filter(pl.col("kind").is_in(WORK_KINDS))
    busy_s, cpu_shares = rows["busy_s"].to_list(), rows["cpu_share"].to_list()
    batches, steps = run.batches.filter("steady").height, run.steps().height
    each = awaited_batches(run).height / steps if steps else 1.0
    computed_s, waited_s = (
        sum(whole_s * part for whole_s, part in zip(busy_s, parts, strict=True))
        for parts in (cpu_shares, [waiting_share(cpu, used) for cpu in cpu_shares])
    )
    return computed_s / max(batches, 1) * each, waited_s / max(batches, 1) * each


def group_of(stage: str, kind: str | None) -> Group:
    """Return the group of a part of a stall."""
    if is_own(stage, kind):
        return _GROUP_OF_PART.get(stage, "unattributed")
    if kind == "other":
        return _GROUP_OF_STAGE.get(stage, "transform")
    if kind in ("send", "pin", "h2d", "step"):
        return "sending" if kind == "send" else "pin" if kind == "pin" else "main"
    return next((group for group in WORK if group == kind), "transform")


def _uncrowded(run: RunTables, parts: list[StagePart], used: MachineUse) -> Iterator[StagePart]:
    """Yield the parts with waiting for a core as a part of its own, for sending and the loop."""
    sends = run.side_spans.filter(pl.col("kind") == "send")
    received = run.parts().filter(pl.col("part") == attribution.UNPICKLE)
    times = (sends["end_ns"] - sends["start_ns"], received["exposed_s"])
    # Most threads that send or receive had to wait for a core: only the quickest had one
    sending, receiving = (
        float(np.quantile(took, _QUICK) / took.mean()) if took.size else 1.0
        for took in (each.to_numpy() for each in times)
    )
    # A batch is queued until the sending thread has a core
    quickness = {
        attribution.SEND: sending,
        attribution.QUEUED: sending,
        attribution.UNPICKLE: receiving,
    }
    crowded_s = 0.0
    cpu, queued = used.loop_cpu or 0.0, used.loop_queued_share or 0.0
    computing = cpu / (cpu + queued) if cpu else 1.0
    for part in parts:
        remaining = 1.0
        if part.group == "sending":
            remaining = min(quickness.get(part.stage, 1.0), 1.0)
        elif part.group == "main":
            remaining = computing
        crowded_s += part.share * (1 - remaining)
        yield replace(part, share=part.share * remaining)
    if crowded_s:
        yield StagePart(CROWDED, CROWDED, crowded_s, 0.0, attribution.KIND_OF[CROWDED])
