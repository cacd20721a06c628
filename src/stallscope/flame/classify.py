"""Classify the frames of stacks, the user's or a library's, and find the functions that take time.

A stack that was saved is text alone: a recording of another machine reads the same.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.stats import share_intervals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stallscope.store import Schema


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
"""Every kind of frame, and what it is called."""

STAGE_KINDS: Final = {"decode": "decode", "fetch": "io", "collate": "collate", "send": "collate"}
"""What a library's frame is that occurs in one stage only and does not tell by its name."""


_FROM_SOURCE: Final = {"stallscope", "torch", "torchvision"}
"""Libraries that may be run from their sources."""
_UNSAFE: Final = str.maketrans({";": ":"} | dict.fromkeys(map(chr, range(32)), " "))
"""What has a meaning in the collapsed form, or is part of a torn name: py-spy reads the memory of a
process that goes on."""


class StackFunction(NamedTuple):
    """A function, whichever of its lines was running."""

    function: str
    file: str
    """As it was recorded: a path, or what stands for one."""

    @property
    def place(self) -> str:
        """The file from its package or its last folder on: short, and alike on all machines."""
        return "/".join(_inside(self.file)[-3:] if is_library(self) else _parts(self.file)[-2:])


class StackFrame(NamedTuple):
    """One function that was being run."""

    name: str
    """Of the function, with that of its class where Python has it (3.11)."""
    file: str
    """Full path, or the name of a compiled library."""
    line: int
    """0 where there is none."""

    def __str__(self) -> str:
        return self.text()

    def text(self, own: tuple[str, ...] = ()) -> str:
        """The frame as a recording keeps it; `own` as of `shown`."""
        file = shown(self.file, own)
        place = f"{file}:{self.line}" if self.line else file
        return f"{self.name} ({place})".translate(_UNSAFE)


@cache
def short(file: str) -> str:
    """A path from its outermost package on, as py-spy has it: `torch/serialization.py`."""
    parts = _parts(file)
    begins = _library_at(parts)
    if begins is not None:
        return "/".join(parts[begins:])
    folder = os.path.dirname(file)  # noqa: PTH120 - as text: it may be no path at all
    while os.path.exists(f"{folder}/__init__.py") and len(folder) > 1:  # noqa: PTH110
        folder = os.path.dirname(folder)  # noqa: PTH120
    return file[len(folder) :].lstrip("/\\") if folder else file


@cache
def own_folders(folder: str, script: str = "", code: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Where the user's own code lies: in the project, and in that of the script.

    Args:
        folder: the process's current one.
        script: its path; empty where there is none, as in a notebook.
        code: files of the loader's dataset, ops and collate function. Where none of them lies there
            (a notebook imports them from elsewhere), their folders are the user's, too.
    """
    begins = [Path(folder)]
    if script and _library_at(_parts(script)) is None:  # none that a package brought
        begins.append(Path(folder, script).parent)
    own = tuple(dict.fromkeys(map(_project, begins)))
    others = [file for file in code if _library_at(_parts(file)) is None and not _is_source(file)]
    if not any(_lies_in(own, file) or not Path(file).is_file() for file in others):
        homes = (Path(file.removesuffix(short(file))) for file in others)
        own = tuple(dict.fromkeys([*own, *map(_project, homes)]))
    return own


def _is_source(file: str) -> bool:
    return short(file).partition("/")[0] in _FROM_SOURCE


def _lies_in(folders: Iterable[str], file: str) -> bool:
    real = os.path.realpath(file)
    return any(real.startswith(folder.rstrip("/\\") + os.sep) for folder in folders)


def _project(folder: Path) -> str:
    """The nearest folder around this one that a project begins with; itself where there is none."""
    here = folder.resolve()
    around = (one for one in (here, *here.parents) if any((one / m).exists() for m in _PROJECT))
    return str(next(around, here))


@cache
def shown(file: str, own: tuple[str, ...] = ()) -> str:
    """Library code from its package on; the whole path of the user's own.

    A user's package may be called `datasets`, as a library is: its path tells them apart.

    Args:
        file: as the process has it.
        own: folders as of `own_folders`; what lies elsewhere is a library's, installed or not.
            Without any, what is not installed is the user's.
    """
    inside, parts = short(file), _parts(file)
    if _library_at(parts) is not None:
        is_module = "/" not in inside and inside.partition(".")[0] not in sys.stdlib_module_names
        return f"site-packages/{inside}" if is_module else inside
    if _is_source(file):
        return inside
    if not os.path.isfile(file):  # noqa: PTH113 - a notebook's cell, code made while running
        return file
    if not own or _lies_in(own, file):
        return os.path.abspath(file)  # noqa: PTH100 - links stay as the user has them
    return inside if "/" in inside else f"site-packages/{inside}"


_FRAME: Final = re.compile(r"(?P<function>.*) \((?P<file>.*?)(?::\d+)?\)", re.DOTALL)
_LIBRARIES: Final = ("site-packages", "dist-packages")
_PROJECT: Final = (".git", "pyproject.toml", "setup.py", "setup.cfg")
"""Each of them stands where a project begins."""
_COMPILED: Final = (".pyx", ".pxd", ".pxi", ".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".rs")
"""Ends of the names of what Cython and other compilers made code of."""
_PYTHON: Final = re.compile(r"lib\d*/python3(\.\d+)?t?|\w+/Lib", re.ASCII)
_DEMO: Final = (("stallscope", "demo.py"), ("targets", "sample.py"))
"""Stand for a user's code: the notebooks and tests look for its slow function."""
_FEEDS: Final = {"_bootstrap_inner", "_worker_loop", "thread_main"}
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
"""Kind, and what the file (from its package on) and the function have to be; the first one wins."""


@lru_cache(maxsize=100_000)
def frame(text: str) -> StackFunction:
    """A frame as py-spy's raw format writes it, `function (file:line)`; the line is left out."""
    found = _FRAME.fullmatch(text)
    return StackFunction(found["function"], found["file"]) if found else StackFunction(text, "")


@lru_cache(maxsize=100_000)
def frames(stack: str) -> tuple[StackFunction, ...]:
    """The frames of a stack from where a worker begins its own work.

    What is above is the same for all workers and, with fork, the code that started them.
    """
    found = [frame(text) for text in stack.split(";")]
    begins = [place for place, one in enumerate(found[:-1]) if _starts_work(one)]
    return tuple(found[begins[-1] + 1 :] if begins else found)


def _starts_work(one: StackFunction) -> bool:
    if one.function not in _FEEDS:
        return False
    return one.file.endswith(("threading.py", "_utils/worker.py", "multiprocessing/process.py"))


@lru_cache(maxsize=100_000)
def is_library(one: StackFunction) -> bool:
    """Whether it is in an installed package, in Python's own library, or in no file of Python."""
    parts = _parts(one.file)
    if tuple(parts[-2:]) in _DEMO:
        return False
    if not one.file or one.file.startswith("<frozen") or ".so" in parts[-1]:
        return True
    if parts[-1].endswith(_COMPILED):
        return True
    if not parts[-1].endswith(".py"):  # a notebook's cell, or code that was made while running
        return one.file == "<string>"
    if _library_at(parts) is not None or ("src", "stallscope") in pairwise(parts):
        return True
    # Of the user's own code a recording has the whole path, or no more than a name
    is_absolute = one.file.startswith(("/", "\\")) or one.file[1:2] == ":"
    is_module = parts[0].removesuffix(".py") in sys.stdlib_module_names
    return not is_absolute and (len(parts) > 1 or is_module)


def inside(one: StackFunction) -> str:
    """The file of a library's function from its package on; empty for the user's own."""
    return "/".join(_inside(one.file)) if is_library(one) else ""


def package(one: StackFunction) -> str:
    """The library that a function is of; empty for the user's, Python's own and compiled code."""
    top = _inside(one.file)[0].removesuffix(".py") if is_library(one) else ""
    return top if top.isidentifier() and top not in sys.stdlib_module_names else ""


@lru_cache(maxsize=100_000)
def kind(one: StackFunction) -> str:
    """One of `KINDS`, by file and function."""
    if not is_library(one):
        return YOURS
    inside = "/".join(_inside(one.file))
    for name, file, function in _RULES:
        if re.fullmatch(file, inside) and re.fullmatch(function, one.function):
            return name
    return "other"


_TELLS_LITTLE: Final = ("torch", "other")


def owner(stack: str) -> StackFunction:
    """The frame to which a sample belongs: the innermost that tells what is being done.

    What torch, numpy and others compute for a function of the user's, or for a library's transform,
    is that function's; decoding, reading and sending are their own.
    """
    found = frames(stack)
    tells = (one for one in reversed(found) if kind(one) not in _TELLS_LITTLE)
    return next(tells, found[-1])


def _parts(file: str) -> list[str]:
    return [part for part in re.split(r"[/\\]", file) if part] or [""]


def _library_at(parts: list[str]) -> int | None:
    """Where a library's package begins in a path; None in a path of no library."""
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] in _LIBRARIES or _PYTHON.fullmatch("/".join(parts[place - 1 : place + 1])):
            return place + 1
    return None


def _inside(file: str) -> list[str]:
    """The parts of a library's path from its package on."""
    parts = _parts(file)
    begins = _library_at(parts)
    if begins is not None:
        return parts[begins:]
    known = [place for place, part in enumerate(parts[:-1]) if part in _FROM_SOURCE]
    return parts[known[0] :] if known else parts


TABLE: Schema = {
    "function": pl.String,
    "file": pl.String,
    "self_share": pl.Float64,
    "self_share_low": pl.Float64,
    "self_share_high": pl.Float64,
    "total_share": pl.Float64,
    "total_share_low": pl.Float64,
    "total_share_high": pl.Float64,
    "hits": pl.Int64,
    "samples": pl.Int64,
    "interval": pl.String,
}
"""One row a function of the user's own: none of an installed package, of Python's library or of
stallscope. `self_share`: the sample belongs to it, with what torch, numpy and others compute for
it, but not with what is a kind of its own (decode, a library's transform, reading, sending), see
`owner`; `total_share`: it was anywhere on the
stack; `hits`: samples with it on the stack, `samples`: all of them. The ends are those of
intervals, `interval` says how they were made: by resampling "windows" of consecutive samples, or
"Wilson", which takes samples as independent."""


def table(samples: pl.DataFrame) -> pl.DataFrame:
    """The share of each of the user's own functions, columns of `TABLE`, the largest first."""
    mine = pl.DataFrame(
        [
            (stack, *one, one == owner(stack))
            for stack in samples["stack"].unique(maintain_order=True)
            for one in dict.fromkeys(frames(stack))
            if kind(one) == YOURS
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
    self_low, self_high, how = share_intervals(inner, counts, processes)
    total_low, total_high, _ = share_intervals(outer, counts, processes)
    return (
        functions.with_columns(
            self_share=inner.sum(axis=0) / counts.sum(),
            self_share_low=self_low,
            self_share_high=self_high,
            total_share=outer.sum(axis=0) / counts.sum(),
            total_share_low=total_low,
            total_share_high=total_high,
            hits=outer.sum(axis=0),
            samples=pl.lit(counts.sum()),
            interval=pl.lit(how),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in TABLE.items())
        .sort(["self_share", "total_share", "function"], descending=[True, True, False])
    )


def kind_shares(samples: pl.DataFrame) -> dict[str, float]:
    """The share of samples that belong to each kind of frame, the largest first."""
    hits: dict[str, int] = {}
    for stack, many in (
        samples.group_by("stack", maintain_order=True).agg(pl.col("hits").sum()).iter_rows()
    ):
        name = kind(owner(stack))
        hits[name] = hits.get(name, 0) + many
    count = sum(hits.values())
    return {name: hits[name] / count for name in sorted(hits, key=lambda name: -hits[name])}
