"""Stacks merged into one tree: stacks with the same outer frames share these, and hits add up.

Parents come before their children, so that every sum over the tree is one pass from the end. Hits
belong to the last frame of a stack, by worker and stage. The viewer (`static/viewer.js`) gets plain
lists and sums the hits that it shows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stallscope.stages import COLOURS as STAGE_COLOURS
from stallscope.stages import STALL_COLOUR
from stallscope.units import count, printable, worker_name
from stallscope.verbs.flame.classify import KINDS, STAGE_KINDS, frames, kind
from stallscope.verbs.flame.result import difference_sentence, sentence

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from stallscope.verbs.flame.classify import StackFunction
    from stallscope.verbs.flame.result import Flame, FlameDifference

_SEVERAL: Final = object()

Group = tuple["int | None", "str | None"]
"""A worker (None: the main process) and a stage (None: unknown)."""


@dataclass(frozen=True)
class Tree:
    """The merged stacks of one or more recordings; frame 0 is the root of all stacks."""

    names: tuple[StackFunction | None, ...]
    """The distinct functions; the first is None, the root's."""
    name: NDArray[np.int64]
    """Index of each frame's function in `names`."""
    parents: NDArray[np.int64]
    """Parent of each frame, with a smaller number than its own; the root's is -1."""
    groups: tuple[Group, ...]
    recordings: tuple[Counter[tuple[int, int]], ...]
    """Hits of each recording by the last frame of a stack and the index of its group."""

    @property
    def depth(self) -> NDArray[np.int64]:
        """Number of frames above each frame."""
        depth = [0]
        for parent in self.parents[1:].tolist():
            depth.append(depth[parent] + 1)
        return np.array(depth)

    def totals(self) -> list[NDArray[np.int64]]:
        """Return the hits of each frame and all frames below it, for each recording."""
        totals = [np.zeros(len(self.name), np.int64) for _ in self.recordings]
        for hits, total in zip(self.recordings, totals, strict=True):
            for (place, _), number in hits.items():
                total[place] += number
            for place in range(len(total) - 1, 0, -1):
                total[self.parents[place]] += total[place]
        return totals

    def kinds(self) -> list[str]:
        """Return the kind of each frame; a frame of kind "other" takes that of its only stage."""
        stages: list[Any] = [None] * len(self.name)

        def add(place: int, stage: Any) -> None:
            stages[place] = stage if stages[place] in (None, stage) else _SEVERAL

        for place, group in (key for hits in self.recordings for key in hits):
            add(place, self.groups[group][1] or _SEVERAL)
        parents = self.parents.tolist()
        for place in range(len(stages) - 1, 0, -1):
            add(parents[place], stages[place])
        by_name = [kind(name) if name else "other" for name in self.names]
        kinds = [by_name[name] for name in self.name.tolist()]
        return [
            STAGE_KINDS.get(stage, "other") if name == "other" else name
            for name, stage in zip(kinds, stages, strict=True)
        ]


def tree(*recordings: pl.DataFrame) -> Tree:
    """Merge stacks of recordings, each with the columns `worker, stage, stack, hits`."""
    names: dict[StackFunction | None, int] = {None: 0}
    groups: dict[Group, int] = {}
    places = {(-1, 0): 0}  # of a frame, by its parent and name
    merged = []
    for samples in recordings:
        hits: Counter[tuple[int, int]] = Counter()
        for worker, stage, stack, number in samples["worker", "stage", "stack", "hits"].iter_rows():
            place = 0
            for function in frames(stack):
                name = names.setdefault(function, len(names))
                place = places.setdefault((place, name), len(places))
            hits[place, groups.setdefault((worker, stage), len(groups))] += number
        merged.append(hits)
    parents, name_of = np.array(list(places)).T
    return Tree(tuple(names), name_of, parents, tuple(groups), tuple(merged))


COLOURS: Final = {
    "yours": "#332288",
    "transform": STAGE_COLOURS["transform"],
    "decode": STAGE_COLOURS["decode"],
    "io": STAGE_COLOURS["fetch"],
    "collate": STAGE_COLOURS["collate"],
    "torch": "#B9AFA0",
    "idle": "#F2F2F2",
    "other": "#D6D6D6",
}
"""Colour of each kind of frame: the stage's colour if it is a stage. The indigo of the user's code
is Paul Tol's ("Colour schemes", 2021), darker than all others."""

NAME_LENGTH: Final = 200
_UNKNOWN: Final = "stage not known"


def of_flame(flame: Flame) -> dict[str, Any]:
    """Return the viewer's data of a flamegraph."""
    data = _data(tree(flame.samples))
    seen = set(data["kind"][1:])
    return {
        "title": printable(sentence(flame), 300),
        "notes": notes_of(flame),
        "key": [[name, COLOURS[kind]] for kind, name in KINDS.items() if kind in seen],
        **data,
    }


def of_difference(difference: FlameDifference) -> dict[str, Any]:
    """Return the viewer's data of two recordings as one graph."""
    data = _data(tree(difference.after.samples, difference.before.samples))
    return {
        "title": printable(difference_sentence(difference), 300),
        "notes": difference_notes(difference),
        "key": [["grew", STALL_COLOUR], ["shrank", STAGE_COLOURS["fetch"]], ["alike", "#E8E8E8"]],
        **data,
    }


def notes_of(flame: Flame) -> list[str]:
    """Return the conditions of a recording and the caveats."""
    conditions, hits = flame.circumstances, int(flame.samples["hits"].sum())
    idle = "waiting included" if conditions.idle else "waiting left out"
    head = (
        f"width: share of {count(hits, 'sample')} of "
        f"{count(flame.samples['pid'].n_unique(), 'process')} in {conditions.seconds:.3g} s, "
        f"{conditions.rate_hz:.3g} per second by {conditions.how}; {idle}"
        f"{', native frames included' if conditions.native else ''}"
    )
    return [head, *(printable(note, 1000) for note in flame.notes)]


def difference_notes(difference: FlameDifference) -> list[str]:
    """Return the basis of a comparison and the caveats."""
    counts = [
        int(recording.samples["hits"].sum()) for recording in (difference.before, difference.after)
    ]
    head = (
        f"width: mean of the shares before ({count(counts[0], 'sample')}) and after "
        f"({count(counts[1], 'sample')}); functions are matched by name and file"
    )
    notes = dict.fromkeys([*difference.before.notes, *difference.after.notes])
    return [head, *(printable(note, 1000) for note in notes)]


def _none_last(value: Any) -> tuple[bool, Any]:
    return value is None, value


def _data(shown: Tree) -> dict[str, Any]:
    names = [
        (function.function, function.place) if function else ("all", "") for function in shown.names
    ]
    workers = sorted({worker for worker, _ in shown.groups}, key=_none_last)
    stages = sorted({stage for _, stage in shown.groups}, key=_none_last)
    return {
        "workers": [worker_name(worker) for worker in workers],
        "stages": [_UNKNOWN if stage is None else printable(stage) for stage in stages],
        "groups": [[workers.index(worker), stages.index(stage)] for worker, stage in shown.groups],
        "frames": [[printable(part, NAME_LENGTH) for part in name] for name in names],
        "frame": shown.name.tolist(),
        "parents": shown.parents.tolist(),
        "kind": shown.kinds(),
        "kindNames": KINDS,
        "colours": COLOURS,
        "recordings": [
            {
                "places": [place for place, _ in hits],
                "groups": [group for _, group in hits],
                "counts": list(hits.values()),
            }
            for hits in shown.recordings
        ],
    }
