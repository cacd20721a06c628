"""Sampled stacks: a stage, and the frames below it, each with a file that tells whose it is.

A recording's processes sample themselves in short windows (`hooks.self_sampler`), so that a run
can name the user's code that no hook can: a `__getitem__`, a collate function, the step itself.

A forked worker's stack begins with everything that its parent was inside of: what is kept begins
at torch's worker loop, at a thread's function, or in the main process at the user's own program.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from stallscope.columns import NAME, STACK, Column, Schema
from stallscope.files import INSTALLED, read_file
from stallscope.hooks.self_sampler import WINDOW
from stallscope.stages import COLLATE, DECODE, GETITEM, PIN, SEND, of_frame
from stallscope.units import json_without_controls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

STACKS: Final = Schema(
    "One row per process, window and stack.",
    Column("rank", pl.Int16),
    Column("pid", pl.Int32),
    Column("worker", pl.Int16, "number of the worker; null: the main process"),
    Column("window_ns", pl.Int64, "start of the window, from the start of the run"),
    Column("stage", pl.String, "stage of the sample or batch; null: unknown", secret=NAME),
    Column("waits", pl.Boolean, "the thread waited"),
    Column(
        "stack",
        pl.String,
        "frames, root first, `;` between them, each `function (file:line)`, without stallscope's",
        secret=STACK,
    ),
    Column("hits", pl.Int64, "samples"),
    nullable="worker stage",
)

WORKER_LOOP: Final = "torch/utils/data/_utils/worker.py"
"""File of torch's worker loop, as `short` returns it."""


def _ours(names: str) -> tuple[str, ...]:
    return tuple(f"stallscope/{name}" for name in names.split())


_OURS: Final = _ours("hooks/ targets/ isolation.py loops/ run/ bench/ verbs/ cli/ __main__.py")
_PIPELINES: Final = _ours("targets/images.py targets/sample.py targets/target.py")
"""Datasets and steps of ours that count as the user's."""
_WATCHING: Final = _ours("hooks/self_sampler.py verbs/flame/pyspy.py pyspy_calls.py run/resource_")
"""Files of threads that measure, and are not part of the measured code."""
_STARTS_THREADS: Final = "threading.py"
_SHELL: Final = "IPython/core/interactiveshell.py"
"""File that runs a notebook's cells, below twenty frames of the kernel."""
_KNOWN: Final = {
    "torch/utils/data/_utils/collate.py": ("", COLLATE),
    "torch/utils/data/_utils/pin_memory.py": ("", PIN),
    "PIL/ImageFile.py": ("", DECODE),
    "torchvision/io/image.py": ("", DECODE),
    "multiprocessing/resource_sharer.py": ("", SEND),  # passes the batch's memory on
    "multiprocessing/queues.py": ("_feed", SEND),
}
"""Stages by the file of a frame, with the end of the function's name; used if the recorder's frames
name no stage."""
_FROM_SOURCE: Final = {"stallscope", "torch", "torchvision"}
"""Libraries that may be run from their sources."""
_UNSAFE: Final = str.maketrans({";": ":"} | dict.fromkeys(map(chr, range(32)), " "))
"""Characters with a meaning in the collapsed form, or of a torn name: py-spy reads the memory of a
process that goes on."""


class StackFrame(NamedTuple):
    """A running function."""

    name: str
    """Name of the function, with its class where Python tells it (3.11)."""
    file: str
    """Full path, or the name of a compiled library."""
    line: int
    """Line; 0: unknown."""

    def __str__(self) -> str:
        """Return the frame as a recording keeps it."""
        file = shown(self.file)
        place = f"{file}:{self.line}" if self.line else file
        return f"{self.name} ({place})".translate(_UNSAFE)


def parts_of(file: str) -> list[str]:
    """Return the folders and the name of a path of any system."""
    return [part for part in re.split(r"[/\\]", file) if part] or [""]


def library_at(parts: list[str]) -> int | None:
    """Return the index of an installed package in a path; None: there is none."""
    path = "/".join(parts)
    ends = [folder.end() for folder in INSTALLED.finditer(path)]
    return path.count("/", 0, ends[-1] + 1) if ends else None


def in_package(file: str) -> list[str]:
    """Return the parts of a library's path from its package on."""
    parts = parts_of(file)
    source = next((at for at, part in enumerate(parts[:-1]) if part in _FROM_SOURCE), 0)
    return parts[library_at(parts) or source :]


@cache
def short(file: str) -> str:
    """Return a path from its outermost package on, as py-spy does: `torch/serialization.py`."""
    parts = parts_of(file)
    begin = library_at(parts)
    if begin is not None:
        return "/".join(parts[begin:])
    folder = os.path.dirname(file)  # noqa: PTH120 - as text: it may be no path at all
    while os.path.exists(f"{folder}/__init__.py") and len(folder) > 1:  # noqa: PTH110
        folder = os.path.dirname(folder)  # noqa: PTH120
    return file[len(folder) :].lstrip("/\\") if folder else file


@cache
def shown(file: str) -> str:
    """Return the path of a library's file from its package on, or the full path of a user's file.

    A user's package may have a library's name (`datasets`): the full path tells them apart. All
    files that are not installed are the user's.
    """
    inside, parts = short(file), parts_of(file)
    if library_at(parts) is not None:
        is_module = "/" not in inside and inside.partition(".")[0] not in sys.stdlib_module_names
        return f"site-packages/{inside}" if is_module else inside
    if inside.partition("/")[0] in _FROM_SOURCE:
        return inside
    if not os.path.isfile(file):  # noqa: PTH113 - a notebook's cell, code made while running
        return file
    return os.path.abspath(file)  # noqa: PTH100 - links stay as the user has them


def collapsed(
    stack: Sequence[StackFrame], *, of_loop: bool = False
) -> tuple[str | None, str] | None:
    """Return a stack's stage and its readable frames, joined by `;`; None: ours alone.

    The outermost frame comes first; `of_loop` begins inside our innermost frame, the loop's.
    """
    files = [short(frame.file) for frame in stack]
    loops = (
        place
        for place, (frame, file) in enumerate(zip(stack, files, strict=True))
        if file == WORKER_LOOP and frame.name == "_worker_loop"
    )
    begin = max(loops, default=-1)
    if begin < 0:  # a thread's own function; in a notebook's main thread, the cell
        begin = max((n + 1 for n, file in enumerate(files[:-1]) if file == _SHELL), default=0)
        while begin < len(files) - 1 and files[begin] == _STARTS_THREADS:
            begin += 1
    if any(file.startswith(_WATCHING) for file in files[begin:]):  # above it is the parent
        return None
    if of_loop:
        begin = max((n + 1 for n, file in enumerate(files) if _is_ours(file)), default=len(files))
    shown = zip(stack[begin:], files[begin:], strict=True)
    visible = [frame for frame, file in shown if not _is_ours(file)]
    stage = _stage(stack) or _known_stage(visible)
    if not visible or (stage is None and _is_ours(files[-1])):  # our own loop, at work
        return None
    return stage, ";".join(str(frame) for frame in visible)


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) and not file.startswith(_PIPELINES)


def _stage(stack: Iterable[StackFrame]) -> str | None:
    """Return the innermost stage, by the recorder's rules."""
    stages = [of_frame(frame.name) for frame in stack if "stallscope" in frame.file]
    name, in_transform, in_sample = None, False, False
    for stage in filter(None, stages):
        is_sample = stage.name == GETITEM.name
        if (stage.gives_way and in_transform) or (in_sample and is_sample):
            continue
        in_sample |= is_sample
        name, in_transform = stage.name, stage.kind == "transform"
    return name


def _known_stage(stack: Sequence[StackFrame]) -> str | None:
    """Return the stage of the innermost frame in a known file, if any."""
    for frame in reversed(stack):
        function, stage = _KNOWN.get(short(frame.file), ("", None))
        if stage is not None and frame.name.endswith(function):
            return stage.name
    return None


def read_stacks(
    folder: Path, workers: Mapping[int, int | None], *, rank: int, origin_ns: int
) -> pl.DataFrame:
    """Return the stacks that the processes of a recording sampled, columns of `STACKS`.

    Of the main process, stacks outside of all stages begin inside the innermost hook, and only the
    main thread has them: what is left is the user's own step. A thread that waits counts in a stage
    alone, and not where it waits for a batch to send. `workers` has the number of each process's
    worker by its id, None for the main process.

    Raises:
        ValueError: a file is damaged, no plain file, or larger than any log.
    """
    hits: Counter[tuple[Any, ...]] = Counter()
    for path in sorted(folder.glob(f"*{WINDOW}")):
        pid = int(path.name.partition("-")[0])
        if pid not in workers:
            continue
        sampled: Any = json_without_controls(json.loads(read_file(path)))
        frames = [StackFrame(*frame) for frame in sampled["frames"]]
        window = rank, pid, workers[pid], int(sampled["began_ns"]) - origin_ns
        for thread, stacks in sampled["threads"].items():
            for numbers, waits in zip(stacks, sampled["waits"][thread], strict=True):
                stack = [frames[number] for number in numbers]
                read = collapsed(stack)
                if read and read[0] is None and workers[pid] is None:
                    is_main = thread == sampled["main"]
                    read = (collapsed(stack, of_loop=True) or read) if is_main else None
                if read and not (waits and read[0] in (None, SEND.name)):
                    hits[(*window, read[0], waits, read[1])] += 1
    return pl.DataFrame([(*key, count) for key, count in hits.items()], STACKS, orient="row")
