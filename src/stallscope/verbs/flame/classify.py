"""Frames of stacks: the user's or a library's, what they do, and which functions take the time.

A saved stack is text alone, so a recording of another machine reads the same. Stacks merge into one
tree: stacks with the same outer frames share these, and hits add up.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.columns import CODE_FILE, NAME, Column, Schema, interval
from stallscope.run.stacks import in_package, library_at, parts_of
from stallscope.stages import COLOURS as STAGE_COLOURS
from stallscope.stages import STALL_COLOUR
from stallscope.stats import share_intervals
from stallscope.units import share

if TYPE_CHECKING:
    from numpy.typing import NDArray

YOURS: Final = "yours"
KINDS: Final = {
    YOURS: "your code",
    "transform": "transforms",
    "decode": "decode",
    "io": "I/O",
    "collate": "collate and sending",
    "torch": "torch internals",
    "idle": "idle",
    "other": "Python and other libraries",
}
"""Kinds of frames, and their names for a reader."""
STAGE_KINDS: Final = {"decode": "decode", "fetch": "io", "collate": "collate", "send": "collate"}
"""Kind of a library's frame by its stage, where the name does not tell the kind."""

_COMPILED: Final = (".pyx", ".pxd", ".pxi", ".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".rs")
"""Suffixes of sources that Cython and other compilers turned into code."""
_DEMO: Final = (("stallscope", "demo.py"), ("targets", "sample.py"))
"""Files that stand for a user's code: the notebooks and tests look for its slow function."""
FRAME: Final = re.compile(r"(?P<function>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)", re.DOTALL)
"""A frame of a stack, as py-spy writes it in its raw format."""
_BEGINS_WORK: Final = {"_bootstrap_inner", "_worker_loop", "thread_main"}
"""Functions below which a worker's or a thread's own work begins."""
_OWN_LOOP: Final = "stallscope/loops/training_loop.py"
_TELLS_LITTLE: Final = ("torch", "other")
_RULES: Final = (
    ("idle", r"(selectors|queue)\.py", r"select|get|_get"),
    ("idle", r"threading\.py", r"wait|_wait_for_tstate_lock|join|acquire"),
    ("idle", r"multiprocessing/queues\.py", r"get|empty"),
    ("idle", r"multiprocessing/(connection|popen_\w+)\.py", r"_?poll|wait|_?recv\w*"),
    ("collate", r"torch/utils/data/_utils/(collate|pin_memory)\.py", r".*"),
    ("collate", r"(torch/)?multiprocessing/(queues?|reductions?|connection)\.py", r".*"),
    ("collate", r"(pickle|_?compat_pickle|torch/storage)\.py", r".*"),
    ("decode", r"PIL/(\w+ImagePlugin|ImageFile|GifImage\w*)\.py", r".*"),
    ("decode", r"(torchvision/io|av|imageio|tifffile|soundfile|nibabel|torchcodec)/.*", r".*"),
    ("decode", r".*(libjpeg|libturbojpeg|libpng|libwebp|libav\w+|libtiff|nvjpeg).*", r".*"),
    ("io", r"PIL/Image\.py", r"open|preinit|init"),
    ("transform", r"PIL/.*", r".*"),
    ("transform", r"(torchvision|torchaudio|monai|torchio)/transforms/.*", r".*"),
    ("transform", r"(albumentations|albucore|kornia|skimage|cv2|timm/data)/.*", r".*"),
    ("transform", r"(scipy/ndimage|fastai/vision/augment)\b.*", r".*"),
    ("io", r"(fsspec|s3fs|h5py|lmdb|pyarrow|zarr|webdataset|streaming|datasets)/.*", r".*"),
    ("io", r"(tarfile|zipfile|gzip|shutil|socket|ssl|pathlib|posixpath|_pyio|tempfile)\b.*", r".*"),
    ("io", r"(http|urllib|urllib3|requests|botocore|boto3|aiohttp|pathlib)/.*", r".*"),
    ("torch", r"(torch|torchdata)/.*|.*lib(torch|c10|gomp|omp|mkl)\w*.*", r".*"),
)
"""Kind, and the patterns of file (from its package on) and function; the first match counts."""


class StackFunction(NamedTuple):
    """A function, without the line that was running."""

    function: str
    file: str
    """File as recorded: a path, or a name in place of one."""

    @property
    def place(self) -> str:
        """File from its package or last folder on: short, and the same on all machines."""
        return "/".join(
            in_package(self.file)[-3:] if is_library(self) else parts_of(self.file)[-2:]
        )


# ---- frames -----------------------------------------------------------------------------------


@lru_cache(maxsize=100_000)
def frame(text: str) -> StackFunction:
    """Parse a frame of py-spy's raw format, `function (file:line)`, without the line."""
    match = FRAME.fullmatch(text)
    return StackFunction(match["function"], match["file"]) if match else StackFunction(text, "")


@lru_cache(maxsize=100_000)
def frames(stack: str) -> tuple[StackFunction, ...]:
    """Return the frames of a stack from where a worker begins its own work.

    All workers share the frames above; with fork, these are the code that started the workers. Of
    a loop that stallscope runs itself, they are the code that asked for the measurement.
    """
    functions = [frame(text) for text in stack.split(";")]
    files = ("threading.py", "_utils/worker.py", "multiprocessing/process.py")
    begins = [
        place
        for place, function in enumerate(functions[:-1])
        if (function.function in _BEGINS_WORK and function.file.endswith(files))
        or function.file.endswith(_OWN_LOOP)
    ]
    return tuple(functions[begins[-1] + 1 :] if begins else functions)


@lru_cache(maxsize=100_000)
def is_library(function: StackFunction) -> bool:
    """Tell functions of packages, Python's library and compiled code from the user's own."""
    parts = parts_of(function.file)
    if tuple(parts[-2:]) in _DEMO:
        return False
    is_frozen = not function.file or function.file.startswith("<frozen")
    if is_frozen or ".so" in parts[-1] or parts[-1].endswith(_COMPILED):
        return True
    if not parts[-1].endswith(".py"):  # a notebook's cell, or code that was made while running
        return function.file == "<string>"
    if library_at(parts) is not None or ("src", "stallscope") in pairwise(parts):
        return True
    # A recording has the full path of the user's own code, or only a name
    is_absolute = function.file.startswith(("/", "\\")) or function.file[1:2] == ":"
    is_module = parts[0].removesuffix(".py") in sys.stdlib_module_names
    return not is_absolute and (len(parts) > 1 or is_module)


def inside(function: StackFunction) -> str:
    """Return the file of a library's function from its package on; empty for the user's own."""
    return "/".join(in_package(function.file)) if is_library(function) else ""


def package(function: StackFunction) -> str:
    """Return the library of a function; empty for the user's, Python's own and compiled code."""
    top = in_package(function.file)[0].removesuffix(".py") if is_library(function) else ""
    return top if top.isidentifier() and top not in sys.stdlib_module_names else ""


@lru_cache(maxsize=100_000)
def kind(function: StackFunction) -> str:
    """Return one of `KINDS`, by file and function."""
    if not is_library(function):
        return YOURS
    file = "/".join(in_package(function.file))
    for name, files, functions in _RULES:
        if re.fullmatch(files, file) and re.fullmatch(functions, function.function):
            return name
    return "other"


def owner(stack: str) -> StackFunction:
    """Return the frame to which a stack belongs: the innermost with an informative kind.

    The work of torch, numpy and others counts for the user's function or the library's transform
    that calls them. Decoding, reading and sending count for themselves.
    """
    functions = frames(stack)
    informative = (each for each in reversed(functions) if kind(each) not in _TELLS_LITTLE)
    return next(informative, functions[-1])


# ---- shares -----------------------------------------------------------------------------------


TABLE: Final = Schema(
    "One row per function of the user's own: not of a package, Python's library or stallscope.",
    Column("function", pl.String, "name", "your function", secret=NAME),
    Column("file", pl.String, "where it is", "file", secret=CODE_FILE),
    Column("self_share", pl.Float64, "stacks that belong to it, see `owner`", "share", share),
    *interval("self_share_low", "{:.1%}".format),
    Column("total_share", pl.Float64, "stacks with it", "with callees", share),
    *interval("total_share_low"),
    Column("hits", pl.Int64, "stacks with it"),
    Column("samples", pl.Int64, "all stacks"),
    Column("interval", pl.String, '"windows" of stacks were resampled, or "Wilson"', secret=NAME),
)


def table(samples: pl.DataFrame) -> pl.DataFrame:
    """Return the share of each of the user's own functions, columns of `TABLE`, largest first."""
    mine = pl.DataFrame(
        [
            (stack, *function, function == owner(stack))
            for stack in samples["stack"].unique(maintain_order=True)
            for function in dict.fromkeys(frames(stack))
            if kind(function) == YOURS
        ],
        {"stack": pl.String, "function": pl.String, "file": pl.String, "own": pl.Boolean},
        orient="row",
    )
    if mine.is_empty():
        return pl.DataFrame(schema=TABLE)
    windows = samples.group_by("pid", "window", maintain_order=True).agg(pl.col("hits").sum())
    functions = mine.select("function", "file").unique(maintain_order=True)
    hits = (
        samples.join(windows.drop("hits").with_row_index("row"), on=["pid", "window"])
        .join(mine, on="stack")
        .join(functions.with_row_index("column"), on=["function", "file"])
    )
    place = hits["row"].to_numpy(), hits["column"].to_numpy()
    outer = np.zeros((windows.height, functions.height))
    inner = np.zeros_like(outer)
    np.add.at(outer, place, hits["hits"].to_numpy())
    np.add.at(inner, place, (hits["hits"] * hits["own"]).to_numpy())
    counts, processes = windows["hits"].to_numpy().astype(float), windows["pid"].to_list()
    for name, number in (("self_share", inner), ("total_share", outer)):
        low, high, how = share_intervals(number, counts, processes)
        shares = {name: number.sum(axis=0) / counts.sum(), f"{name}_low": low, f"{name}_high": high}
        functions = functions.with_columns(**shares, interval=pl.lit(how))
    return (
        functions.with_columns(hits=outer.sum(axis=0), samples=pl.lit(counts.sum()))
        .select(pl.col(name).cast(dtype) for name, dtype in TABLE.items())
        .sort(["self_share", "total_share", "function"], descending=[True, True, False])
    )


def kind_shares(samples: pl.DataFrame) -> dict[str, float]:
    """Return the share of stacks that belong to each kind of frame, the largest first."""
    hits: Counter[str] = Counter()
    for stack, number in samples.select("stack", "hits").iter_rows():
        hits[kind(owner(stack))] += number
    return {name: number / hits.total() for name, number in hits.most_common()}


# ---- one tree of all stacks ----------------------------------------------------------------------

_SEVERAL: Final = object()

Group = tuple["int | None", "str | None"]
"""A worker (None: the main process) and a stage (None: unknown)."""


@dataclass(frozen=True)
class Tree:
    """The merged stacks of one or more recordings; frame 0 is the root of all stacks.

    Parents come before their children, so that every sum over the tree is one pass from the end.
    """

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
CHANGE_COLOURS: Final = {"grew": STALL_COLOUR, "shrank": STAGE_COLOURS["fetch"], "alike": "#E8E8E8"}
"""Colours in a difference of two recordings."""
