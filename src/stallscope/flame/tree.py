"""Stacks merged into one tree: equal beginnings become one frame, and its hits add up.

The tree is arrays, parents before their children and the frames of one depth beside each other, so
that every sum over it is one pass per depth. Hits stand where a stack ends, apart for each worker
and stage: the viewer (`static/viewer.js`), which gets plain lists, sums those that it shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stallscope.flame.classify import KINDS, STAGE_KINDS, frames, kind
from stallscope.flame.result import PY_SPY, difference_sentence, sentence
from stallscope.stages import COLOURS as STAGE_COLOURS
from stallscope.stages import STALL_COLOUR
from stallscope.units import count, printable, worker_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl
    from numpy.typing import NDArray

    from stallscope.flame.classify import StackFunction
    from stallscope.flame.result import Flame, FlameDifference


if TYPE_CHECKING:
    Ints = NDArray[np.int64]

MOST_FRAMES: Final = 20_000
"""Of a tree that is looked at: narrower ones would be far below a pixel."""

Group = tuple[int | None, str | None]
"""A worker (None: the main process) and a stage (None: not known)."""


@dataclass(frozen=True)
class StackHits:
    """Where the stacks of one recording end: three columns."""

    places: Ints
    """Frames of the tree."""
    groups: Ints
    """Places in `Tree.groups`."""
    counts: Ints


@dataclass(frozen=True)
class Tree:
    """The merged stacks of one or more recordings; frame 0 is the root, over all stacks."""

    names: tuple[StackFunction | None, ...]
    """The distinct functions; the first is None, the root's."""
    name: Ints
    """Of each frame, its place in `names`."""
    parents: Ints
    """Of each frame, always a smaller number than its own; the root's is -1."""
    depth: Ints
    groups: tuple[Group, ...]
    recordings: tuple[StackHits, ...]
    left_out: int = 0
    """Frames that were too narrow to be kept; their hits are their parents'."""

    def totals(self) -> list[Ints]:
        """For each recording, the hits of each frame with those of all below it."""
        return [self._upwards(hits) for hits in self.recordings]

    def _upwards(self, hits: StackHits) -> Ints:
        found = np.bincount(hits.places, hits.counts, len(self.name)).astype(np.int64)
        for level in self._levels():
            np.add.at(found, self.parents[level], found[level])
        return found

    def _levels(self) -> Iterator[slice]:
        """The frames of each depth, the deepest first, without the root."""
        begins = np.searchsorted(self.depth, np.arange(1, self.depth[-1] + 2))
        for begin, end in zip(begins[-2::-1], begins[:0:-1], strict=True):
            yield slice(int(begin), int(end))

    def kinds(self) -> list[str]:
        """Of each frame; a library's that tells nothing has the kind of its one stage."""
        stages = list(dict.fromkeys(stage for _, stage in self.groups))
        of_group = np.array([stages.index(stage) for _, stage in self.groups], dtype=np.int64)
        low, high = (np.full(len(self.name), end) for end in (len(stages), -1))
        for hits in self.recordings:
            np.minimum.at(low, hits.places, of_group[hits.groups])
            np.maximum.at(high, hits.places, of_group[hits.groups])
        for level in self._levels():
            np.minimum.at(low, self.parents[level], low[level])
            np.maximum.at(high, self.parents[level], high[level])
        by_name = [kind(one) if one else "other" for one in self.names]
        by_stage = [STAGE_KINDS.get(stage or "", "other") for stage in stages]
        return [
            by_stage[least] if by_name[name] == "other" and least == most else by_name[name]
            for name, least, most in zip(self.name, low, high, strict=True)
        ]


def tree(*recordings: pl.DataFrame) -> Tree:
    """Merge stacks; the time grows with the number of their frames.

    Args:
        recordings: of each the columns `worker, stage, stack, hits`.
    """
    summed = [
        one.group_by("worker", "stage", "stack", maintain_order=True).agg(hits="hits")
        for one in recordings
    ]
    rows = [row for one in summed for row in one.iter_rows()]
    names: dict[StackFunction | None, int] = {None: 0}
    stacks = [[names.setdefault(one, len(names)) for one in frames(row[2])] for row in rows]
    parents, name, depth, ends = _merged(stacks, len(names))
    groups: dict[Group, int] = {}
    group = [groups.setdefault((row[0], row[1]), len(groups)) for row in rows]
    counts = [sum(row[3]) for row in rows]
    cuts = np.cumsum([one.height for one in summed])[:-1]
    columns = (np.split(np.array(one, dtype=np.int64), cuts) for one in (ends, group, counts))
    hits = tuple(StackHits(*one) for one in zip(*columns, strict=True))
    return Tree(tuple(names), name, parents, depth, tuple(groups), hits)


def _merged(stacks: list[list[int]], names: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Depth by depth: stacks that are in the same frame, and go on to the same function, stay so.

    Returns:
        Of each frame its parent, name and depth; of each stack the frame in which it ends.
    """
    lengths = np.array([len(one) for one in stacks], dtype=np.int64)
    padded = np.zeros((len(stacks), int(lengths.max(initial=0))), dtype=np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = [one for row in stacks for one in row]
    at = np.zeros(len(stacks), dtype=np.int64)
    parents, found, depths, made = [np.array([-1])], [np.array([0])], [np.array([0])], 1
    for level in range(padded.shape[1]):
        going = np.flatnonzero(lengths > level)
        pairs = at[going] * names + padded[going, level]
        new, first, which = np.unique(pairs, return_index=True, return_inverse=True)
        order = np.argsort(first)  # as they came: what was seen first stands at the left
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        parents.append(new[order] // names)
        found.append(new[order] % names)
        depths.append(np.full(len(new), level + 1))
        at[going] = made + rank[which]
        made += len(new)
    return np.concatenate(parents), np.concatenate(found), np.concatenate(depths), at


def pruned(whole: Tree, most: int = MOST_FRAMES) -> Tree:
    """The widest frames of a tree, at most so many."""
    if len(whole.name) <= most:
        return whole
    # A parent is never narrower than its child and comes before it, so it is kept as well.
    kept = np.sort(np.argsort(-sum(whole.totals()), kind="stable")[:most])
    moved = np.full(len(whole.name), -1)
    moved[kept] = np.arange(most)
    for level in list(whole._levels())[::-1]:  # noqa: SLF001 - from the root on
        here = moved[level]
        moved[level] = np.where(here < 0, moved[whole.parents[level]], here)
    parents = whole.parents[kept]
    return replace(
        whole,
        name=whole.name[kept],
        parents=np.where(parents < 0, -1, moved[parents]),
        depth=whole.depth[kept],
        recordings=tuple(_moved(hits, moved, len(whole.groups)) for hits in whole.recordings),
        left_out=len(whole.name) - most,
    )


def _moved(hits: StackHits, moved: Ints, groups: int) -> StackHits:
    """The same hits in what is left of the tree, each frame and group once."""
    new, which = np.unique(moved[hits.places] * groups + hits.groups, return_inverse=True)
    counts = np.bincount(which, hits.counts).astype(np.int64)
    return StackHits(new // groups, new % groups, counts)


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
"""A colour per kind of frame: the stages' own where there is one. The user's code has none among
the stages; its indigo is Paul Tol's ("Colour schemes", 2021), darker than all of the others."""

NAME_LENGTH: Final = 200
_UNKNOWN: Final = "stage not known"


def of_flame(flame: Flame) -> dict[str, Any]:
    """The data of a flamegraph."""
    data = _data(pruned(tree(flame.samples)))
    seen = set(data["kind"][1:])
    return {
        "title": printable(sentence(flame), 300),
        "notes": [*notes_of(flame), *data.pop("left_out")],
        "key": [[told, COLOURS[kind]] for kind, told in KINDS.items() if kind in seen],
        **data,
    }


def of_difference(found: FlameDifference) -> dict[str, Any]:
    """The data of two recordings in one graph."""
    data = _data(pruned(tree(found.after.samples, found.before.samples)))
    return {
        "title": printable(difference_sentence(found), 300),
        "notes": [*difference_notes(found), *data.pop("left_out")],
        "key": [["grew", STALL_COLOUR], ["shrank", STAGE_COLOURS["fetch"]], ["alike", "#E8E8E8"]],
        **data,
    }


def notes_of(flame: Flame) -> list[str]:
    """What was sampled and how, and what a reader has to know."""
    told = flame.circumstances
    many, hits = flame.samples["pid"].n_unique(), int(flame.samples["hits"].sum())
    who = "py-spy" if told.how == PY_SPY else told.how
    where = count(many, "process")
    idle = "waiting included" if told.idle else "waiting left out"
    native = ", native frames included" if told.native else ""
    head = (
        f"width: share of {count(hits, 'sample')} of {where} in {told.seconds:.3g} s, "
        f"{told.rate_hz:.3g} a second by {who}; {idle}{native}"
    )
    return [head, *(printable(note, 1000) for note in flame.notes)]


def difference_notes(found: FlameDifference) -> list[str]:
    """What is compared, and what a reader has to know."""
    counts = [int(one.samples["hits"].sum()) for one in (found.before, found.after)]
    head = (
        f"width: mean of the shares before ({count(counts[0], 'sample')}) and after "
        f"({count(counts[1], 'sample')}); functions are matched by name and file"
    )
    notes = dict.fromkeys([*found.before.notes, *found.after.notes])
    return [head, *(printable(note, 1000) for note in notes)]


def _data(kept: Tree) -> dict[str, Any]:
    names = [(one.function, one.place) if one else ("all", "") for one in kept.names]
    cut = f"the {count(kept.left_out, 'narrowest frame')}"
    workers = sorted({one for one, _ in kept.groups}, key=lambda one: (one is None, one))
    stages = sorted({one for _, one in kept.groups}, key=lambda one: (one is None, one))
    return {
        "workers": [worker_name(one) for one in workers],
        "stages": [_UNKNOWN if one is None else printable(one) for one in stages],
        "groups": [[workers.index(worker), stages.index(stage)] for worker, stage in kept.groups],
        "frames": [[printable(part, NAME_LENGTH) for part in name] for name in names],
        "frame": kept.name.tolist(),
        "parents": kept.parents.tolist(),
        "kind": kept.kinds(),
        "kindNames": KINDS,
        "colours": COLOURS,
        "recordings": [
            {
                "places": hits.places.tolist(),
                "groups": hits.groups.tolist(),
                "counts": hits.counts.tolist(),
            }
            for hits in kept.recordings
        ],
        "left_out": [f"not drawn: {cut}, counted in those above"] if kept.left_out else [],
    }
