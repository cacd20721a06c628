"""The stages of a sample's way to the device: their kinds, their order and their colours.

One word and one colour per kind, in code, charts and prose. Every name that is not listed here
(a transform's, a library call's) comes from the user's pipeline.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

KINDS: Final = (
    "fetch",
    "decode",
    "transform",
    "collate",
    "send",
    "pin",
    "h2d",
    "step",
    "other",
)
"""Every kind of stage, in the order in which a sample meets them."""

SAMPLE_KINDS: Final = ("fetch", "decode", "transform", "other")
"""The kinds whose time adds up to one sample's time in a worker."""

COLOURS: Final = {
    "fetch": "#0072B2",
    "decode": "#56B4E9",
    "transform": "#E69F00",
    "collate": "#CC79A7",
    "send": "#999999",
    "pin": "#F0E442",
    "h2d": "#F0E442",
    "step": "#009E73",
    "other": "#BBBBBB",
}
"""A colour per kind, safe for colour-blind readers: those of Okabe and Ito, "Color Universal
Design", and greys. Both copies, to pinned memory and to the device, are one colour."""

STALL_COLOUR: Final = "#D55E00"
"""A stall is the loudest thing on the page."""


class Stage(NamedTuple):
    """A named piece of the way, as the tables show it."""

    name: str
    kind: str
    gives_way: bool = False
    """Inside a transform that has a name, it is part of that transform: a library's call, a helper
    function of the dataset's."""


FETCH: Final = Stage("fetch", "fetch")
"""Reading: opening a file and getting its bytes."""

DECODE: Final = Stage("decode", "decode")
"""Turning compressed bytes into pixels, in whichever transform that happens."""

GETITEM: Final = Stage("getitem", "other")
"""The rest of a dataset's `__getitem__` (or of its iterator's `next`) that no hook can name."""

COLLATE: Final = Stage("collate", "collate")
"""Making one batch out of its samples."""

BATCH: Final = Stage("batch", "other")
"""What a worker does for a batch outside of its samples and of collate: mostly, it frees the
samples' memory."""

SEND: Final = Stage("send", "send")
"""Pickling a batch and writing it into the pipe, in a thread of the worker's."""

PIN: Final = Stage("pin", "pin")
"""Copying a batch into pinned memory."""

H2D: Final = Stage("h2d", "h2d")
"""Copying a batch to the device."""

FORWARD: Final = Stage("forward", "step")
BACKWARD: Final = Stage("backward", "step")
OPTIMIZER: Final = Stage("optimizer", "step")

STEP: Final = Stage("step", "step")
"""The rest of using a batch."""

OTHER: Final = Stage("other", "other")
"""What the loop does between two batches that is no part of a step."""

GARBAGE: Final = Stage("garbage collection", "other")
"""Python collects its oldest objects."""

ANOTHER_LOADER: Final = Stage("another loader", "other")
"""A loop over another loader between two batches of this one: validation, mostly."""

END_OF_EPOCH: Final = Stage("end of epoch", "other")
"""The loop asks for a batch and there is none: workers end, unless they are persistent."""

_FRAME: Final = re.compile(r"stage (\w+)(\??): (.*)", re.DOTALL)


def frame_name(stage: Stage) -> str:
    """What the recorder's own frame around a stage is called, so that sampled stacks show it."""
    return f"stage {stage.kind}{'?' * stage.gives_way}: {stage.name}"


def of_frame(name: str) -> Stage | None:
    """The stage that a frame of the recorder's stands for; None for any other frame."""
    found = _FRAME.fullmatch(name)
    return Stage(found[3], found[1], bool(found[2])) if found else None
