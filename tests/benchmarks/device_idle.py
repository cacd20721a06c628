"""Is it known what a device that works behind the host was idle, and is the verdict right?

Planted loops on a simulated device: a host that waits for batches while its device still works, and
a device that waits with it. Half of the loops have a planted cause, and half are healthy; queues
are short or endless, some steps wait for their device. Each is diagnosed once; of the loop that was
recorded for that, the exposed idle time is laid beside what the device itself knows. The target:
within 2% of the truth in all, and the right verdict in 38 of 40.

`--stand-in` shows what is said of a device that is 85% busy while its host stands in
`next(loader)`; `--cost` shows what the device's clock takes of the host in each step (target: 20
us), and how often it waits for the device inside of a window (target: never).

    python tests/benchmarks/device_idle.py
    python tests/benchmarks/device_idle.py --first 20 --loops 10 --file idle.jsonl
"""

from __future__ import annotations

import json
import tempfile
import warnings
from itertools import cycle, islice
from pathlib import Path
from random import Random
from time import thread_time_ns
from typing import Any, NamedTuple

import numpy as np
from benchkit.command import Option, arguments, met, table
from planted import HEALTHY_CODE, plant
from support.device_loops import Naps, WatchedStep, idleness
from torch.utils.data import DataLoader
from tqdm import tqdm

import stallscope as ss
from stallscope.hooks.device_time import DeviceMarks, Edge, SimulatedDevice
from stallscope.hooks.loop_log import MAIN, LogPlace, read_marks

CAUSES = ("storage-latency", "lock", "slow-worker", "storage-bandwidth", "storage-latency")
"""What a loop is planted with, in turn: what waits. What computes starves on a machine that others
use, too, also once its cause is taken away: then it is no healthy loop."""
STRENGTH = (1.8, 2.4)
DEPTHS = (2, 4, 1000)
LOOPS = 40
OTHERWISE_S = 0.0015
"""What a batch takes beside its naps, about."""
WITHIN = 0.02
TARGET_US = 20
RIGHT = 38 / 40
HEAD = ("loop", "device", "waited", "idle", "found", "off by", "truth", "verdict", "right")


class Loop(NamedTuple):
    """One trial."""

    number: int
    code: str
    is_healthy: bool
    """Without any cause: samples only nap."""
    depth: int
    synchronises: bool


def loops() -> list[Loop]:
    """All trials, in an order in which any beginning is a fair sample."""
    draw = Random(17)
    return [
        Loop(number, code, bool(number % 2), draw.choice(DEPTHS), draw.random() < 0.3)
        for number, code in enumerate(islice(cycle(CAUSES), LOOPS))
    ]


def main() -> None:
    """Run what was asked for."""
    given = arguments(
        __doc__,
        loops=Option(LOOPS, 1, "so many"),
        first=Option(0, 0, "from this one on"),
        budget=Option(25.0, 2.0, "of a diagnosis, seconds"),
        file=Option("", "", "keeps a line for each loop; those that it has are not run again"),
        stand_in=Option(False, False, "the issue's stand-in alone"),
        cost=Option(False, False, "the clock's cost alone"),
        steps=Option(2000, 50, "timed for the cost"),
    )
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    if given.cost or given.smoke:
        print(cost(given.steps))
    if given.stand_in:
        print(stand_in(given.budget))
    if not (given.cost or given.stand_in):
        wanted = loops()[given.first : given.first + given.loops]
        print(report([_line(loop, given) for loop in tqdm(wanted, unit="loop", leave=False)]))


def _line(loop: Loop, given: Any) -> dict[str, Any]:
    """What is said of a loop; kept in the file, where there is one."""
    file = Path(given.file) if given.file else None
    kept = file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []
    known = {line["number"]: line for line in map(json.loads, kept)}
    if loop.number not in known:
        line = known[loop.number] = {**loop._asdict(), **trial(loop, given.budget)}
        if file:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line) + "\n")
    return known[loop.number]


def trial(loop: Loop, budget_s: float) -> dict[str, Any]:
    """Diagnose a loop."""
    draw = Random(loop.number)
    loader, step_s, truth = _healthy(draw) if loop.is_healthy else _planted(loop, draw)
    device = SimulatedDevice(depth=loop.depth, drift=draw.uniform(-1e-4, 1e-4))
    step = WatchedStep(step_s, device, synchronises=loop.synchronises)
    found = ss.diagnose(loader, step, budget_s=budget_s)
    idle = idleness(found.run, step)
    return {
        "truth": truth,
        "found": found.verdict.code,
        "title": found.verdict.title,
        "waited": idle.waited_s / idle.loop_s,
        "idle": idle.truth_s / idle.loop_s,
        "told": idle.found_s / idle.loop_s,
        "error": idle.error,
    }


def _planted(loop: Loop, draw: Random) -> tuple[Any, float, str]:
    planted = plant(loop.code, 40_000 + loop.number, draw.uniform(*STRENGTH))
    return planted.loader, planted.recipe.step_s, planted.truth


def _healthy(draw: Random) -> tuple[Any, float, str]:
    """Workers that need 60% to 85% of the time that the device takes."""
    workers, batch, step_s = draw.choice((1, 2)), draw.choice((4, 8)), draw.uniform(0.03, 0.06)
    naps = Naps(draw.uniform(0.6, 0.85) * step_s * workers / batch - OTHERWISE_S / batch)
    return DataLoader(naps, batch, num_workers=workers), step_s, HEALTHY_CODE


def report(lines: list[dict[str, Any]]) -> str:
    """A row a loop, and how many are right."""
    rows = [
        (
            f"{line['number']} {HEALTHY_CODE if line['is_healthy'] else line['code']}",
            f"depth {line['depth']}{', waited for' * line['synchronises']}",
            *(f"{line[name]:.1%}" for name in ("waited", "idle", "told")),
            f"{line['error']:.2%}",
            line["truth"],
            line["found"],
            "yes" if line["truth"] == line["found"] else "NO",
        )
        for line in lines
    ]
    near = sum(line["error"] <= WITHIN for line in lines)
    right = sum(line["truth"] == line["found"] for line in lines)
    missed = [
        f"{line['number']}: {line['title']}" for line in lines if line["truth"] != line["found"]
    ]
    return "\n".join(
        [
            table(HEAD, rows),
            "",
            "waited, idle and found: of the loop's time; idle and found: while it waited",
            f"within {WITHIN:.0%} of the truth: {near} of {len(lines)} {met(near == len(lines))}",
            f"right: {right} of {len(lines)} {met(right >= RIGHT * len(lines))}",
            *missed,
        ]
    )


def stand_in(budget_s: float) -> str:
    """A device that is busy for 85% of the time, and a host that always waits for batches."""
    step_s = 0.05
    device = SimulatedDevice(depth=1000)
    step = WatchedStep(step_s, device)
    loader = DataLoader(Naps(step_s / 0.85 - OTHERWISE_S), 1, num_workers=1)
    found = ss.diagnose(loader, step, budget_s=budget_s)
    idle = idleness(found.run, step)
    truth = f"the device is busy for {1 - idle.truth_s / idle.loop_s:.1%} of the time"
    waits = f"the host waits for {idle.waited_s / idle.loop_s:.1%} of it"
    return f"truth: {truth}, and {waits}\n\n{found}"


def cost(steps: int) -> str:
    """What the clock takes of the host in each step, with a loop's other work in between."""
    device = SimulatedDevice(depth=1000)
    work = np.random.default_rng(0).random(100_000)
    cpu_ns: dict[bool, list[int]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="benchmark-device-") as folder:
        place = LogPlace(Path(folder), 1 << 12)
        writer = place.open_marks(MAIN)
        marks = DeviceMarks(writer, device)
        marks.look()
        before, events = device.synchronisations, device.events
        for number in range(2 * steps):
            work = np.sort(work)[::-1] + 1e-9  # the step's own use of the caches
            timed = bool(number % 2)
            begin_ns = thread_time_ns()
            if timed:
                marks.edge(Edge.STEP)
                marks.edge(Edge.NOTHING)
            cpu_ns[timed].append(thread_time_ns() - begin_ns)
            device.launch(0.0004)
        inside, made = device.synchronisations - before, device.events - events
        marks.end()
        writer.retire()
        rows = read_marks(place.marks()[0]).rows
    took = {timed: (np.mean(ns) / 1e3, np.median(ns) / 1e3) for timed, ns in cpu_ns.items()}
    mean_us, median_us = (a - b for a, b in zip(took[True], took[False], strict=True))
    what = f"two events a step, {steps} steps: CPU {mean_us:.1f} us a step on average"
    waits = f"synchronisations inside of the window: {inside} {met(inside == 0)}"
    return (
        f"{what} {met(mean_us <= TARGET_US)}, median {median_us:.1f} us\n"
        f"{waits}; events made: {made}; read: {len(rows) - 2} of {2 * steps}"
    )


if __name__ == "__main__":
    main()
