"""Rules of the Trace Event Format, and our own rules beyond it."""

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise

from stallscope.views.trace import about, events

KEYS = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    **{key: {"name", "cat", "id", "pid", "tid", "ts", "bp"} for key in "stf"},
    "C": {"name", "pid", "ts", "args"},
    "M": {"name", "pid", "tid", "args"},
}
"""Required keys of each kind of event."""
METADATA = ("process_name", "process_sort_index", "thread_name", "thread_sort_index")


def trace_of(run):
    """The trace of a run, as its file would be read."""
    trace = {"traceEvents": list(events(run)), "otherData": about(run)}
    return json.loads(json.dumps(trace, allow_nan=False))


def read(path):
    """A trace from its file; JSON as the standard has it, without NaN."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text, parse_constant=lambda name: 1 / 0)


def ns(us):
    """The whole nanoseconds of the µs in a file, as a reader has them that cuts."""
    return int(us * 1000)


def slices(trace, *cats):
    return [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X" and (not cats or event["cat"] in cats)
    ]


def faults(trace):
    """Return the faults of a trace, a sentence each."""
    lacking = [*_lacking(trace)]
    if lacking:
        return lacking
    return [*_unnested(trace), *_unpaired(trace), *_unbound(trace), *_unnamed(trace)]


def _lacking(trace):
    for event in trace["traceEvents"]:
        phase = event.get("ph")
        if phase not in KEYS:
            yield f"{phase!r} is no kind of event"
        elif missing := KEYS[phase] - set(event):
            yield f"{phase} {event.get('name')!r} lacks {sorted(missing)}"
        elif not all(isinstance(event.get(key, 0), int) for key in ("pid", "tid", "id")):
            yield f"{phase} {event['name']!r} has a number that is none"
        elif not all(isinstance(event.get(key, 0), (int, float)) for key in ("ts", "dur")):
            yield f"{phase} {event['name']!r} has a time that is none"
        elif event.get("dur", 0) < 0:
            yield f"{event['name']!r} ends before it starts"
        elif phase == "M" and event["name"] not in METADATA:
            yield f"{event['name']!r} is no metadata"


def _tracks(trace):
    """The slices of each track as a reader has them: by time, then in the order of the file."""
    tracks = defaultdict(list)
    for event in slices(trace):
        start = ns(event["ts"])
        tracks[event["pid"], event["tid"]].append((start, start + ns(event["dur"]), event["name"]))
    for track in tracks.values():
        track.sort(key=lambda point: point[0])
    return tracks


def _unnested(trace):
    for track in _tracks(trace).values():
        around = []
        for start, end, name in track:
            while around and around[-1][0] <= start:
                around.pop()
            if around and end > around[-1][0]:
                yield f"{name!r} at {start} ends outside of {around[-1][1]!r}"
            else:
                around.append((end, name))


def _flows(trace):
    flows = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] in "stf":
            flows[event["id"]].append((ns(event["ts"]), "stf".index(event["ph"]), event))
    return flows


def _unpaired(trace):
    for number, points in _flows(trace).items():
        ends = Counter(phase for _, phase, _ in points)
        if (ends[0], ends[2]) != (1, 1):
            yield f"flow {number} has {ends[0]} starts and {ends[2]} ends"
        elif any(a[0] > b[0] for a, b in pairwise(sorted(points, key=lambda point: point[1]))):
            yield f"flow {number} goes back in time"


def _unbound(trace):
    """Each point of a flow needs a slice around it, or a reader draws no arrow."""
    spans = defaultdict(set)
    for track, inside in _tracks(trace).items():
        for start, end, _ in inside:
            spans[track].add((start, max(end, start + 1)))
    for number, points in _flows(trace).items():
        for at, _, event in points:
            track = spans[event["pid"], event["tid"]]
            if not any(start <= at < end for start, end in track):
                yield f"flow {number} has no slice at {at}"


def _unnamed(trace):
    named = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            place = event["pid"] if event["name"].startswith("process") else _track(event)
            named[event["name"], place].append(event["args"])
    for (what, place), values in named.items():
        if len(values) > 1:
            yield f"{what} of {place} is said twice"
    for event in trace["traceEvents"]:
        if event["ph"] != "M":
            wanted = [(what, event["pid"]) for what in METADATA[:2]]
            wanted += [(what, _track(event)) for what in METADATA[2:] if "tid" in event]
            yield from {f"{place} has no {what}" for what, place in wanted} - {
                f"{place} has no {what}" for what, place in named
            }


def _track(event):
    return event["pid"], event["tid"]
