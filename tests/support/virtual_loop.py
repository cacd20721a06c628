"""A loader and its training loop in virtual time: the tables of a run without waiting for one.

It follows torch's own loader: each worker has a queue of tasks, so many are asked for ahead, a
thread of the worker's sends what it has made, and the loop receives only while it waits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from stallscope.run.decode import BATCHES, SAMPLES
from stallscope.run.result import DEVICE, STARTUP, STEPS, Run, Settings
from support.build_run import deliveries_of, kind_of, spans_of, waits_of

Times = Mapping[str, float]
"""Milliseconds of each stage."""


@dataclass(frozen=True)
class Loop:
    """Times of the simulated loop, milliseconds."""

    making: Times | Callable[[int, int], Times]
    """A batch's stages in its worker; by number of the step and of the worker, where they vary."""
    workers: int = 4
    """0: the main process loads."""
    prefetch: int = 2
    batches: int = 48
    """Batches in an epoch."""
    epochs: int = 1
    send: float = 1.0
    unpickle: float = 0.5
    draw: float = 0.0
    """Time of the loop's sampler for the indices of a batch."""
    h2d: float | None = None
    using: Times | Callable[[int], Times] = field(default_factory=lambda: {"forward": 20.0})
    """Uses of a batch in the loop, by name; by number of the step where they vary."""
    restart: float = 30.0
    """Time of `iter(loader)`."""
    warmup: int = 4
    """Steps at the beginning that are not steady."""
    recorded: int = 1
    """Distance of two recorded batches of a worker."""
    rank: int = 0
    notes: tuple[str, ...] = ()


def a_loop(making, **how) -> Run:
    return Simulation(Loop(making, **how)).run()


def together(*runs: Run) -> Run:
    """Several ranks' runs as one."""
    tables = (
        "all_spans",
        "all_samples",
        "batches",
        "all_steps",
        "waits",
        "deliveries",
        "side_spans",
    )
    joined = {name: pl.concat([getattr(run, name) for run in runs]) for name in tables}
    return replace(runs[0], **joined)


def on_device(run: Run, copy_s: float, work_s: float) -> Run:
    """The same loop on a device that works behind it, so long for each batch."""
    rows, free_ns = [], 0
    for begin_ns in run.all_steps["end_ns"]:
        for kind, length_s in (("h2d", copy_s), ("step", work_s)):
            start_ns = max(begin_ns, free_ns)
            free_ns = start_ns + round(length_s * 1e9)
            rows.append((0, "GPU", kind, start_ns, free_ns))
    return replace(run, device_work=pl.DataFrame(rows, DEVICE, orient="row"))


class Simulation:
    """The clock of the loop and those of its workers."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.now = 0.0
        self.free = dict.fromkeys(range(max(loop.workers, 1)), 0.0)
        self.sender_free = dict(self.free)
        self.deliveries: dict[tuple[int, int], dict] = {}
        self.spans: list[dict] = []
        self.side: list[dict] = []
        self.steps: list[dict] = []
        self.batches: list[tuple] = []

    def run(self) -> Run:
        loop = self.loop
        for epoch in range(loop.epochs):
            self._epoch(epoch)
        ordered = [self.deliveries[key] for key in sorted(self.deliveries)]
        keys = {**BATCHES, "steady": pl.Boolean}
        steps = pl.DataFrame(self.steps, STEPS, orient="row")
        return Run(
            all_spans=spans_of(*_in_ns(self.spans)).sort("pid", "start_ns", maintain_order=True),
            all_samples=pl.DataFrame([], SAMPLES),
            batches=pl.DataFrame(self.batches, keys, orient="row"),
            all_steps=steps,
            waits=waits_of(steps),
            deliveries=deliveries_of(*_in_ns(ordered)),
            side_spans=spans_of(*_in_ns(self.side)),
            startup=pl.DataFrame([], STARTUP),
            settings=Settings("test", loop.workers, 4, loop.warmup),
            first_batch_s=self.steps[0]["wait_s"] if self.steps else None,
            notes=loop.notes,
        )

    def _epoch(self, epoch: int) -> None:
        self.begun = self.now
        self.now += self.loop.restart
        self.asked = 0
        self.coming: set[int] = set()
        for _ in range(self.loop.prefetch * self.loop.workers):
            self._ask(epoch)
        for batch in range(self.loop.batches):
            start = self.now
            if self.loop.workers:
                self._receive(epoch, batch)
                self.now += self.loop.draw
                self._ask(epoch)
            else:
                self.now += self.loop.draw
                self._ask(epoch)
                self.now = self.free[0]
            self._use(epoch, batch, start)

    def _ask(self, epoch: int) -> None:
        """The next task: everything about it follows at once."""
        batch, loop = self.asked, self.loop
        if batch == loop.batches:
            return
        self.asked += 1
        lane = batch % max(loop.workers, 1)
        worker = lane if loop.workers else None
        who = {"rank": loop.rank, "pid": 100 + lane if loop.workers else 1, "worker": worker}
        number = epoch * loop.batches + batch
        place = {**who, "epoch": epoch, "batch": batch}
        taken = max(self.now, self.free[lane])
        making = loop.making(number, lane) if callable(loop.making) else loop.making
        finished = taken + sum(making.values())
        if batch // max(loop.workers, 1) % loop.recorded == 0:
            self._record(place, making, taken, number)
        row = {**place, "taken": taken, "made": finished}
        if loop.workers:
            pickle = max(finished, self.sender_free[lane])
            row |= {"asked": self.now, "pickle": pickle, "sent": pickle + loop.send}
            self.sender_free[lane] = row["sent"]
            self.side.append({**place, "stage": "send", "start": pickle, "end": row["sent"]})
        self.free[lane] = finished
        self.deliveries[epoch, batch] = row
        self.coming.add(batch)

    def _record(self, place: dict, making: Times, taken: float, number: int) -> None:
        now = taken
        for stage, ms in making.items():
            sample = None if stage in ("collate", "batch") else 0
            span = {"stage": stage, "sample": sample, "start": now, "end": now + ms}
            self.spans.append(place | span)
            now += ms
        self.batches.append((*place.values(), True, number >= self.loop.warmup))

    def _receive(self, epoch: int, wanted: int) -> None:
        while wanted in self.coming:
            coming = (self.deliveries[epoch, batch] for batch in self.coming)
            first = min(coming, key=lambda row: row["sent"])
            self.now = max(self.now, first["sent"]) + self.loop.unpickle
            first["arrived"] = self.now
            self.coming.remove(first["batch"])

    def _use(self, epoch: int, batch: int, start: float) -> None:
        loop, number = self.loop, len(self.steps)
        end = self.now
        using = loop.using(number) if callable(loop.using) else loop.using
        parts = ({"h2d": loop.h2d} if loop.h2d else {}) | dict(using)
        sums = dict.fromkeys(("h2d", "step", "other"), 0.0)
        place = {"rank": loop.rank, "pid": 1, "worker": None, "epoch": epoch, "batch": batch}
        for stage, ms in parts.items():
            kind = kind_of(stage) if kind_of(stage) in sums else "other"
            sums[kind] += ms
            span = {"stage": stage, "kind": kind, "start": self.now, "end": self.now + ms}
            self.side.append(place | span)
            self.now += ms
        step = {name: place[name] for name in ("rank", "epoch", "batch")} | {
            "step": number,
            "worker": self.deliveries[epoch, batch]["worker"],
            "wait_s": (end - start) / 1e3,
            "h2d_s": sums["h2d"] / 1e3 if loop.h2d else None,
            "step_s": sums["step"] / 1e3,
            "other_s": sums["other"] / 1e3,
            "start_ns": round(start * 1e6),
            "end_ns": round(end * 1e6),
            "restart_s": loop.restart / 1e3 if not batch else None,
            "steady": number >= loop.warmup,
        }
        self.steps.append(dict.fromkeys(STEPS) | step)


def _in_ns(rows: list[dict]) -> list[dict]:
    """Every moment (a float) in nanoseconds, in a column that is named so."""
    return [
        {
            f"{name}_ns" if isinstance(value, float) else name: (
                round(value * 1e6) if isinstance(value, float) else value
            )
            for name, value in row.items()
        }
        for row in rows
    ]
