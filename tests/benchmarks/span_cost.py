"""What one span costs in a hot loop, in ns: where nothing else pushes it out of the caches.

Each way of recording runs in a loop of its own: the loops take turns in a random order, and each
turn gives one number per way. A "record" is the two words of a span as the recorder writes them,
enter and exit, with their clock reads. A "hooked op" is a call of an object whose class the
recorder has hooked, minus the bare call: the wrapper, the check of the thread and the
`finally` included. With a second instance of the class the stage is looked up.
In a pipeline a span costs more, because the ops in between use the caches: see `overhead.py`.
"""

from __future__ import annotations

import gc
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from benchkit.command import Option, arguments, met, table
from benchkit.pairing import Estimate, centre, in_turns
from torch.profiler import record_function

from stallscope.hooks.hot_path import Recorder
from stallscope.hooks.ops import Ops
from stallscope.hooks.patches import Patches
from stallscope.hooks.stage_log import LogWriter
from stallscope.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    Loop = Callable[[int], int]

TARGETS_NS = {"record alone": 150, "hooked op": 400}
CAPACITY = 1 << 20
EMPTY, BARE = "empty loop", "bare call"


class Op:
    """A transform that does nothing."""

    def __call__(self, x: Any) -> Any:
        return x


def main() -> None:
    """Measure, and print the table."""
    given = arguments(
        __doc__,
        turns=Option(200, 3, "turns of each loop"),
        length=Option(2000, 200, "spans in a turn"),
    )
    with tempfile.TemporaryDirectory(prefix="benchmark-spans-") as folder:
        loops = _loops(Path(folder, "spans.events"))
        print(_report(_measure(loops, given.turns, given.length)))


def _loops(path: Path) -> dict[str, Loop]:
    """Every way of recording a span: a loop of so many, which returns ns."""
    log = LogWriter(path, worker=-1, born_ns=perf_counter_ns(), capacity=CAPACITY)
    recorder = Recorder(log)
    recorder.enter_batch(0)  # hooks record while a batch is at work
    return {
        EMPTY: _empty,
        "clock pair": _clock_pair,
        "record alone": _record(recorder),
        BARE: _calls(Op()),
        "hooked op": _calls(_hooked(recorder, count=1)),
        "hooked op, two instances": _calls(_hooked(recorder, count=2)),
        "record_function": _labels,
    }


def _hooked(recorder: Recorder, count: int) -> Any:
    """The last of so many objects of a class of their own, hooked as the probe hooks a list."""
    cls = type("Hooked", (Op,), {"__call__": Op.__call__})
    ops = [cls() for _ in range(count)]
    hooks = Ops(recorder, Patches())
    for op in ops:
        hooks._hook_op(op, Stage("Hooked", "transform"))
    return ops[-1]


def _empty(length: int) -> int:
    began = perf_counter_ns()
    for _ in range(length):
        pass
    return perf_counter_ns() - began


def _clock_pair(length: int) -> int:
    now = perf_counter_ns
    began = perf_counter_ns()
    for _ in range(length):
        now()
        now()
    return perf_counter_ns() - began


def _record(recorder: Recorder) -> Loop:
    def loop(length: int) -> int:
        words, place, now = recorder.log.words, recorder.log.place, perf_counter_ns
        key = recorder.key(Stage("alone", "transform"))
        began = perf_counter_ns()
        for _ in range(length):
            words[place()] = now() + key
            words[place()] = now()
        return perf_counter_ns() - began

    return loop


def _calls(op: Callable[[Any], Any]) -> Loop:
    def loop(length: int) -> int:
        began = perf_counter_ns()
        for _ in range(length):
            op(None)
        return perf_counter_ns() - began

    return loop


def _labels(length: int) -> int:
    began = perf_counter_ns()
    for _ in range(length):
        with record_function("op"):
            pass
    return perf_counter_ns() - began


def _measure(loops: dict[str, Loop], turns: int, length: int) -> dict[str, np.ndarray]:
    """Each loop's ns a round, one number a turn."""
    gc.collect()
    gc.disable()
    taken = in_turns({name: partial(_turn, loop, length) for name, loop in loops.items()}, turns)
    gc.enable()
    return {name: np.array(values) for name, values in taken.items()}


def _turn(loop: Loop, length: int) -> float:
    """The loop's ns a round, warmed up."""
    loop(length // 10)
    return loop(length) / length


def _report(turns: dict[str, np.ndarray]) -> str:
    """Each way minus what its loop costs without recording, turn by turn."""
    rows = []
    for name, values in turns.items():
        base = None if name in (EMPTY, BARE) else BARE if name.startswith("hooked") else EMPTY
        estimate = centre(values if base is None else values - turns[base])
        rows.append(
            (
                name,
                base or "",
                f"{estimate.centre:,.0f}",
                estimate.interval(",.0f"),
                _target(name, estimate),
            )
        )
    head = ("one round", "minus", "ns", "95% interval", "target, ns")
    return table(head, rows)


def _target(name: str, estimate: Estimate) -> str:
    target = next((ns for start, ns in TARGETS_NS.items() if name.startswith(start)), None)
    if target is None:
        return ""
    return f"{target} {met(estimate.high <= target)}"


if __name__ == "__main__":
    main()
