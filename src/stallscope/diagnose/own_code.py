"""The user's own code in sampled stacks: which function, which of its lines, and doing what.

Most datasets are written by hand, and no hook can name what their `__getitem__` does. Stacks of the
workers can: the deepest function of the user's that holds most of a stage's samples is the place to
look at. What it calls tells what would help, by the library that was at work below it or by the
text of the line.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from stallscope.flame.classify import YOURS, StackFunction, frame, frames, kind
from stallscope.stages import FETCH, SEND

if TYPE_CHECKING:
    from stallscope.flame.result import Flame

_HOLDS: Final = 0.5
"""Share of a stage's samples from which on a function holds it; of those, the deepest is named."""
_FEWEST: Final = 10
"""Samples of a stage below which nothing is said of it."""
_A_LINE: Final = 0.2
"""Share of a function's samples from which on one of its lines is named."""
_MOST_LINES: Final = 3


class Call(NamedTuple):
    """A kind of call that own code spends its time in, and what helps."""

    name: str
    does: str
    """What it does, as the end of "computing: ..."."""
    remedy: str
    library: str = r"(?!)"
    """Expression for the file of a frame below the user's, from its package on."""
    source: str = r"(?!)"
    """Expression for the text of the user's line."""


_LOCKS: Final = re.compile(
    r"(__enter__|acquire|_acquire\w*|wait|flock|lockf) "
    r"\(.*(multiprocessing/synchronize|filelock/\w+|portalocker/\w+|fasteners/\w+)\.py"
)
"""Innermost frames of a process that waits for another one to let go of something."""
_TAKES: Final = r"\b(flock|lockf)\("
"""Calls in a line of the user's that wait for another process."""
LOCK: Final = "lock"
CALLS: Final = (
    Call(
        LOCK,
        "waiting for a lock",
        "hold the lock for less (one for each file, not one for all), or let each worker have its "
        "own file or connection",
        r"(multiprocessing/synchronize|filelock/\w+|portalocker/\w+|fasteners/\w+)\.py",
        r"\b(flock|lockf|FileLock|acquire)\b|\bwith\b.*lock\b",
    ),
    Call(
        "pandas",
        "pandas looks values up one by one",
        "take the columns out as NumPy arrays once, in __init__ (frame['x'].to_numpy()), and index "
        "those",
        r"pandas/.*",
        r"\.(iloc|loc|iat|at|query|iterrows|itertuples)\b",
    ),
    Call(
        "text",
        "text becomes tokens",
        "tokenise once, beforehand, and store the numbers",
        r"(tokenizers|transformers/tokenization\w*|sentencepiece|tiktoken|nltk|spacy)\b.*",
        r"token|\bencode\(|sentencepiece",
    ),
    Call(
        "network",
        "a request over the network",
        "ask for many samples with one request (tar shards), keep a local copy, or wait for "
        "several at once with more workers",
        r"(http|urllib|urllib3|requests|botocore|boto3|aiohttp|s3fs|gcsfs|socket|ssl)\b.*",
        r"\b(urlopen|requests\.\w+|boto3|get_object|download\w*)\(",
    ),
    Call(
        "opening",
        "a file is opened and read for each sample",
        "one file of all samples: open it once in each worker and keep it, load it once in "
        "__init__, or map it (np.load(..., mmap_mode='r')) so that a sample reads only what it "
        "needs; one file for each sample: pack many into one",
        r"(numpy/lib/_?npyio\w*|numpy/lib/_?format\w*|nibabel|tifffile|pydicom|sqlite3)\b.*",
        r"\b(np|numpy)\.(load|loadtxt|genfromtxt|fromfile|memmap)\(|(?<!Image\.)\bopen\("
        r"|\b(File|Dataset|connect)\(|\bread_(csv|parquet|excel|feather|hdf|json)\(|\bloadmat\(",
    ),
    Call(
        "chunks",
        "data is read in chunks",
        "store it in chunks of one sample, or use all of a chunk once it is read, and compress it "
        "less",
        r"(h5py|netCDF4|xarray|zarr|numcodecs|blosc)\b.*",
    ),
    Call(
        "unpacking",
        "data is unpacked",
        "store it unpacked, or in pieces of one sample, and use all of a piece once it is unpacked",
        r"(gzip|zipfile|tarfile|bz2|lzma|zlib|zstandard|blosc|numcodecs)\b.*",
        r"\b(decompress|extractfile|gzip|zipfile)\b",
    ),
    Call(
        "unpickling",
        "objects are unpickled",
        "store arrays (np.save, mapped with mmap_mode='r') instead of pickled objects",
        r"(pickle|_?compat_pickle|joblib|torch/serialization)\b.*",
        r"\b(pickle|joblib|torch)\.loads?\(",
    ),
    Call(
        "parsing",
        "text is parsed",
        "parse once, beforehand, and store numbers",
        r"(json|csv|xml|yaml|ast|html|bs4|lxml|re)\b.*",
        r"\b(json|csv|yaml|etree|ast)\.\w+\(|literal_eval|\bre\.\w+\(",
    ),
    Call(
        "array by array",
        "a list of arrays is converted element by element",
        "make one array first (np.stack, then torch.from_numpy), or torch.stack tensors: one copy "
        "in place of a conversion for each number",
        source=r"\btorch\.(tensor|as_tensor|\w+Tensor)\(",
    ),
    Call(
        "sleep",
        "it sleeps",
        "see what it waits for there: what it polls could wake it",
        source=r"\bsleep\(",
    ),
    Call(
        "subprocess",
        "another program is started",
        "do it once, beforehand, or call a library in its place",
        r"subprocess\.py",
        r"\bsubprocess\.|\bos\.system\(",
    ),
)
"""The first that fits is named."""
OTHER: Final = Call(
    "Python",
    "Python and what it calls",
    "do it once, beforehand, or for whole arrays at a time instead of element by element",
)


READS: Final = Call(
    "reading",
    "reading",
    "read less for each sample: pieces of one sample, all of a piece used once it is read, lighter "
    "compression",
)
"""The same in the stage that reads."""


@dataclass(frozen=True)
class OwnCode:
    """The function of the user's that holds most of a stage."""

    function: str
    file: str
    """As it was recorded: a path."""
    lines: tuple[int, ...]
    """Those that hold most of it, in the order of the file."""
    share: float
    """Share (0 to 1) of the stage's samples with the function on the stack."""
    call: Call
    """What it does."""

    @property
    def place(self) -> str:
        """Function, file and lines, short."""
        lines = ", ".join(map(str, self.lines))
        return f"{self.function} ({PurePath(self.file).name}:{lines})"


def own_code(flame: Flame, stage: str) -> OwnCode | None:
    """Find the function of the user's that holds most of a stage.

    Args:
        flame: of the workers.
        stage: its name.

    Returns:
        None where too few samples lie in the stage, or none of them in code of the user's.
    """
    inside = flame.samples.filter(pl.col("stage").cast(pl.String) == stage)
    hits = Counter[str]()
    for stack, many in inside.select("stack", "hits").iter_rows():
        hits[stack] += many
    if hits.total() < _FEWEST:
        return None
    within, depth = Counter[StackFunction](), Counter[StackFunction]()
    for stack, many in hits.items():
        own = [one for one in frames(stack) if kind(one) == YOURS]
        for place, one in enumerate(own):
            depth[one] = max(depth[one], place)
        for one in set(own):
            within[one] += many
    if not within:
        return None
    holders = [one for one in within if within[one] >= _HOLDS * hits.total()]
    named = max(holders or within, key=lambda one: (depth[one] if holders else 0, within[one]))
    found = _described(named, hits, within[named] / hits.total())
    reads = found.call is OTHER and stage == FETCH.name
    return replace(found, call=READS) if reads else found


def lock_share(flame: Flame) -> float | None:
    """Share (0 to 1) of the samples inside of a stage that wait at a lock; None: too few samples.

    The thread that sends is left out: between two batches it waits for the next one.

    Args:
        flame: of the workers, with the threads that wait.
    """
    inside = flame.samples.filter(pl.col("stage").cast(pl.String) != SEND.name)
    count = int(inside["hits"].sum())
    if count < _FEWEST:
        return None
    waits = [_waits_at_lock(stack) for stack in inside["stack"]]
    return float(inside.filter(pl.Series(waits, dtype=pl.Boolean))["hits"].sum()) / count


def _waits_at_lock(stack: str) -> bool:
    """Whether a stack ends in a lock of several processes, or in a user's line that takes one.

    Threads wait for those of their own process: their locks do not count.
    """
    *_, leaf = texts = stack.split(";")
    if _LOCKS.search(leaf):
        return True
    if kind(frame(leaf)) != YOURS:
        return False
    return bool(re.search(_TAKES, linecache.getline(frame(leaf).file, _line(texts[-1]))))


def _described(named: StackFunction, hits: Counter[str], share: float) -> OwnCode:
    """What the function does, and in which lines."""
    lines, calls = Counter[int](), Counter[Call]()
    for stack, many in hits.items():
        texts = stack.split(";")
        at = max((i for i, text in enumerate(texts) if frame(text) == named), default=None)
        if at is None:
            continue
        line = _line(texts[at])
        lines[line] += many
        calls[_call(named.file, line, texts[at + 1 :])] += many
    whole = lines.total()
    most = [line for line, many in lines.most_common(_MOST_LINES) if many >= _A_LINE * whole]
    shown = tuple(sorted(most or [lines.most_common(1)[0][0]]))
    return OwnCode(named.function, named.file, shown, share, calls.most_common(1)[0][0])


def _line(text: str) -> int:
    found = re.search(r":(\d+)\)$", text)
    return int(found[1]) if found else 0


def _call(file: str, line: int, below: list[str]) -> Call:
    """What a sample does, by the frames below the user's and by the text of the user's line."""
    text = linecache.getline(file, line)
    packages = [_from_package(frame(one).file) for one in below]
    for call in CALLS:
        if re.search(call.source, text) or any(re.match(call.library, one) for one in packages):
            return call
    return OTHER


def _from_package(file: str) -> str:
    """A library's path from its package on."""
    return re.split(r"(?:site|dist)-packages/|lib\d*/python3[\d.]*t?/", file)[-1]
