"""Raw stacks made readable: what is torch's way into a worker and what is ours is left out.

A forked worker's stack begins with everything that its parent was inside of. What remains begins
at the worker's loop, at a thread's function, or in the main process at the user's own program.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from stallscope.stages import COLLATE, DECODE, GETITEM, PIN, SEND, Stage, of_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WORKER_LOOP: Final = "torch/utils/data/_utils/worker.py"
"""The file of torch's worker loop, as `short` has it."""

_OURS: Final = ("stallscope/probe/", "stallscope/experiments/", "stallscope/measure/")
_PIPELINES: Final = tuple(
    f"stallscope/measure/{name}.py" for name in ("folder", "sample", "shards", "simulated")
)
"""Datasets and steps of ours stand for the user's."""
_WATCHING: Final = (
    *("stallscope/probe/standby.py", "stallscope/measure/pyspy.py"),
    "stallscope/measure/spycall.py",
    *("stallscope/measure/sampler.py", "stallscope/measure/resources/"),
)
"""Whoever is inside of these is no part of what is measured."""
_STARTS_THREADS: Final = "threading.py"
_KNOWN: Final = {
    "torch/utils/data/_utils/collate.py": COLLATE,
    "torch/utils/data/_utils/pin_memory.py": PIN,
    "PIL/ImageFile.py": DECODE,
    "torchvision/io/image.py": DECODE,
    "multiprocessing/resource_sharer.py": SEND,  # hands the batch's memory over
}
"""Stages that are told by whose code it is, where no frame of the recorder's says better."""
_FEEDER: Final = ("multiprocessing/queues.py", "_feed")
_LIBRARY: Final = re.compile(
    r".*[/\\](?:(?:site|dist)-packages|lib\d*[/\\]python3[^/\\]*)[/\\](.*)", re.DOTALL
)
_FROM_SOURCE: Final = {"stallscope", "torch", "torchvision"}
"""Libraries that may be run from their sources."""
_UNSAFE: Final = str.maketrans({";": ":", "\n": " ", "\r": " "})
"""What has a meaning in the collapsed form."""


class Frame(NamedTuple):
    """One function that was being run."""

    name: str
    """Of the function, with that of its class where Python has it (3.11)."""
    file: str
    """Full path, or the name of a compiled library."""
    line: int
    """0 where there is none."""

    def __str__(self) -> str:
        file = shown(self.file)
        place = f"{file}:{self.line}" if self.line else file
        return f"{self.name} ({place})".translate(_UNSAFE)


@functools.cache
def short(file: str) -> str:
    """A path from its outermost package on, as py-spy has it: `torch/serialization.py`."""
    inside = _LIBRARY.fullmatch(file)
    if inside:
        return inside[1]
    folder = os.path.dirname(file)  # noqa: PTH120 - as text: it may be no path at all
    while os.path.exists(f"{folder}/__init__.py") and len(folder) > 1:  # noqa: PTH110
        folder = os.path.dirname(folder)  # noqa: PTH120
    return file[len(folder) :].lstrip("/\\") if folder else file


@functools.cache
def shown(file: str) -> str:
    """Library code from its package on; the whole path of anything else.

    A user's package may be called `datasets`, as a library is: its path tells them apart.
    """
    inside = short(file)
    known = _LIBRARY.fullmatch(file) or inside.partition("/")[0] in _FROM_SOURCE
    return inside if known else file


def collapsed(stack: Sequence[Frame]) -> tuple[str | None, str] | None:
    """The stage and the readable frames of a stack, joined by `;`.

    Args:
        stack: the outermost frame first.

    Returns:
        None where nothing of interest is left.
    """
    files = [short(frame.file) for frame in stack]
    if any(file.startswith(_WATCHING) for file in files):
        return None
    begin = max(
        (place for place, file in enumerate(files) if _is_entry(stack[place], file)),
        default=_after_threads(files),
    )
    kept = [
        frame
        for frame, file in zip(stack[begin:], files[begin:], strict=True)
        if not _is_ours(file)
    ]
    stage = _stage(stack) or _known_stage(kept)
    if not kept or (stage is None and _is_ours(files[-1])):  # our own loop, at work
        return None
    return stage, ";".join(map(str, kept))


def _is_entry(frame: Frame, file: str) -> bool:
    return file == WORKER_LOOP and frame.name == "_worker_loop"


def _after_threads(files: list[str]) -> int:
    """Where a thread's own function begins; 0 in the main thread."""
    begin = 0
    while begin < len(files) - 1 and files[begin] == _STARTS_THREADS:
        begin += 1
    return begin


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) and not file.startswith(_PIPELINES)


def _stage(stack: Iterable[Frame]) -> str | None:
    """The innermost stage, as the recorder sees it."""
    stages = [of_frame(frame.name) for frame in stack if "stallscope" in frame.file]
    name, in_transform, in_sample = None, False, False
    for stage in filter(None, stages):
        if (stage.gives_way and in_transform) or (in_sample and _is_sample(stage)):
            continue
        in_sample = in_sample or _is_sample(stage)
        name, in_transform = stage.name, stage.kind == "transform"
    return name


def _is_sample(stage: Stage) -> bool:
    return stage.name == GETITEM.name


def _known_stage(stack: Sequence[Frame]) -> str | None:
    """What is told by well-known code alone; None where nothing is."""
    for frame in reversed(stack):
        file = short(frame.file)
        if file in _KNOWN:
            return _KNOWN[file].name
        if file == _FEEDER[0] and frame.name.endswith(_FEEDER[1]):
            return SEND.name
    return None
