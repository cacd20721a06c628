"""What the viewer in `static/viewer.js` is given: the merged stacks as plain lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.analyze.stacks.answer import difference_sentence, sentence
from stallscope.analyze.stacks.frames import KINDS
from stallscope.analyze.stacks.tree import pruned, tree
from stallscope.flames import PY_SPY
from stallscope.stages import COLOURS as STAGE_COLOURS
from stallscope.stages import STALL_COLOUR
from stallscope.units import count
from stallscope.views.names import shown, worker_name

if TYPE_CHECKING:
    from stallscope.analyze.stacks.difference import Difference
    from stallscope.analyze.stacks.frames import Frame
    from stallscope.analyze.stacks.tree import Tree
    from stallscope.flames import Flame

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
        "title": shown(sentence(flame), 300),
        "notes": [*notes_of(flame), *data.pop("left_out")],
        "key": [[told, COLOURS[kind]] for kind, told in KINDS.items() if kind in seen],
        **data,
    }


def of_difference(found: Difference) -> dict[str, Any]:
    """The data of two recordings in one graph."""
    data = _data(pruned(tree(found.after.samples, found.before.samples)))
    return {
        "title": shown(difference_sentence(found), 300),
        "notes": [*difference_notes(found), *data.pop("left_out")],
        "key": [["grew", STALL_COLOUR], ["shrank", STAGE_COLOURS["fetch"]], ["alike", "#E8E8E8"]],
        **data,
    }


def notes_of(flame: Flame) -> list[str]:
    """What was sampled and how, and what a reader has to know."""
    told = flame.circumstances
    many, hits = flame.samples["pid"].n_unique(), int(flame.samples["hits"].sum())
    who = "py-spy" if told.how == PY_SPY else told.how
    where = count(many, "process", "es")
    idle = "waiting included" if told.idle else "waiting left out"
    native = ", native frames included" if told.native else ""
    head = (
        f"width: share of {count(hits, 'sample')} of {where} in {told.seconds:.3g} s, "
        f"{told.rate_hz:.3g} a second by {who}; {idle}{native}"
    )
    return [head, *(shown(note, 1000) for note in flame.notes)]


def difference_notes(found: Difference) -> list[str]:
    """What is compared, and what a reader has to know."""
    counts = [int(one.samples["hits"].sum()) for one in (found.before, found.after)]
    head = (
        f"width: mean of the shares before ({count(counts[0], 'sample')}) and after "
        f"({count(counts[1], 'sample')}); functions are matched by name and file"
    )
    notes = dict.fromkeys([*found.before.notes, *found.after.notes])
    return [head, *(shown(note, 1000) for note in notes)]


def _left_out(kept: Tree) -> list[str]:
    if not kept.left_out:
        return []
    return [f"not drawn: the {count(kept.left_out, 'narrowest frame')}, counted in those above"]


def _data(kept: Tree) -> dict[str, Any]:
    workers = sorted({one for one, _ in kept.groups}, key=lambda one: (one is None, one))
    stages = sorted({one for _, one in kept.groups}, key=lambda one: (one is None, one))
    return {
        "workers": [worker_name(one) for one in workers],
        "stages": [_UNKNOWN if one is None else shown(one) for one in stages],
        "groups": [[workers.index(worker), stages.index(stage)] for worker, stage in kept.groups],
        "frames": [_named(one) for one in kept.names],
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
        "left_out": _left_out(kept),
    }


def _named(one: Frame | None) -> list[str]:
    """A function and its file."""
    if one is None:
        return ["all", ""]
    return [shown(one.function, NAME_LENGTH), shown(one.place, NAME_LENGTH)]
