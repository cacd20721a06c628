"""The events of the Trace Event Format that a trace of ours consists of, each as a dictionary.

See "Trace Event Format" (Google, 2016), https://bit.ly/trace-event-format. Times are in µs there;
here they are whole nanoseconds, counted from the start of the run.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

Event = dict[str, Any]

LOOP, BATCH, SAMPLE = "loop", "batch", "sample"
"""Categories of what only holds other slices: a step of the loop, a batch, a sample."""
WAIT, STALL = "wait", "stall"
"""Categories of the loop's waits, and of those that matter."""

CHROME_COLOURS: Final = {
    "fetch": "rail_response",
    "decode": "thread_state_runnable",
    "transform": "rail_idle",
    "collate": "thread_state_uninterruptible",
    "send": "generic_work",
    "pin": "startup",
    "h2d": "startup",
    "step": "rail_load",
    "other": "grey",
    WAIT: "thread_state_sleeping",
    STALL: "terrible",
    **dict.fromkeys((LOOP, BATCH, SAMPLE), "grey"),
}
"""For each category, which of chrome://tracing's named colours comes nearest to `stages.COLOURS`;
it refuses a file with any other name. Perfetto colours by name and ignores these."""


class Track(NamedTuple):
    """Where something is drawn."""

    pid: int
    """Number of the process in the trace; no operating system's, those collide between ranks."""
    tid: int
    """Number of the thread in the trace."""


def us(ns: int) -> float:
    """Nanoseconds as the µs of the format.

    Some readers round to whole nanoseconds and others cut, so a quotient that lies a little under
    the nanosecond is moved over it: both get `ns` back, and what is nested stays nested.
    """
    value = ns / 1000
    return value if int(value * 1000) >= ns else math.nextafter(value, math.inf)


def whole(track: Track, name: str, cat: str, ns: tuple[int, int], args: Event) -> Event:
    """A slice ("complete event"), from and to the given moments."""
    return {
        "ph": "X",
        "pid": track.pid,
        "tid": track.tid,
        "name": name,
        "cat": cat,
        "cname": CHROME_COLOURS[cat],
        "ts": us(ns[0]),
        "dur": us(ns[1] - ns[0]),
        "args": args,
    }


def flow(phase: str, track: Track, number: int, ns: int) -> Event:
    """A point of an arrow: its start ("s"), a point between ("t") or its end ("f").

    It belongs to the innermost slice of its track that is there at that moment ("bp").
    """
    event = {"ph": phase, "pid": track.pid, "tid": track.tid, "name": "batch", "cat": "flow"}
    return {**event, "id": number, "ts": us(ns), "bp": "e"}


def counter(pid: int, name: str, ns: int, values: dict[str, float]) -> Event:
    """The values that a counter of a process has from a moment on."""
    return {"ph": "C", "pid": pid, "name": name, "ts": us(ns), "args": values}


def named(what: str, track: Track, value: str | int) -> Event:
    """Metadata: "process_name", "thread_sort_index" and so on."""
    key = "sort_index" if what.endswith("sort_index") else "name"
    return {"ph": "M", "pid": track.pid, "tid": track.tid, "name": what, "args": {key: value}}
