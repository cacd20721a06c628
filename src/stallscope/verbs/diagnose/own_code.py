"""Own code of the user in sampled stacks: the function, its lines, and the kind of call.

Most datasets are written by hand, and no hook can name the work in their `__getitem__`. Stacks of
the workers can: the deepest function of the user's that holds most of a stage's samples is the
place to look at. The library below it, or the text of the line, tells the kind of call.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from stallscope.model.thresholds import FEWEST_SAMPLES, MOSTLY, ONE_OF_MANY, OWN_PART
from stallscope.stages import GETITEM, READING_WORDS, SEND, UNPACK
from stallscope.units import MOST_NAMED, share
from stallscope.verbs.flame.classify import (
    YOURS,
    StackFunction,
    frame,
    frames,
    inside,
    kind,
    package,
)

if TYPE_CHECKING:
    from stallscope.verbs.flame.result import Flame

_SHOWS: Final = 1 / 3
"""Share of a function's samples that show a kind of call, from which on it is what the function
does: what is compiled is often sampled without the frame of the library that called it."""


_INLINE: Final = ("comp>", "<genexpr>")
"""Ends of names of comprehensions, which are lines of the function around them."""


class Call(NamedTuple):
    """A kind of call that own code spends its time in, and what helps."""

    does: str
    """Activity, as the end of "computing: ..."."""
    remedy: str
    library: str = r"(?!)"
    """Expression for the file of a frame below the user's, from its package on."""
    source: str = r"(?!)"
    """Expression for the text of the user's line."""
    waits: bool = False
    """True: the call may wait for something other than a core."""


_PLAIN: Final = frozenset({"torch", "torchdata", "stallscope", "lightning", ""})
"""Packages that only call what makes a sample."""
_LOCK_FILES: Final = r"(multiprocessing/synchronize|filelock/\w+|portalocker/\w+|fasteners/\w+)\.py"
_LOCKS: Final = re.compile(r"(__enter__|acquire|_acquire\w*|wait|flock|lockf) \(.*" + _LOCK_FILES)
"""Innermost frames of a process that waits for another one to let go of something."""
_MODEL: Final = re.compile(
    r"_call_impl \([^;]*torch/nn/modules/module\.py"
    r"|backward \([^;]*torch/_tensor\.py|\([^;]*torch/(autograd|optim|compiler|_dynamo)\b"
)
"""Frames below which a model computes: forward, backward, optimizer."""
_TAKES: Final = r"\b(flock|lockf)\("
"""Calls in a line of the user's that wait for another process."""
READS: Final = Call(
    "reading",
    "read only the slice that a sample uses (with a list of indices, select in NumPy afterwards); "
    "store chunks of one sample, or use all of a chunk once it is read; compress it less",
    r"(h5py|h5netcdf|netCDF4|zarr|numcodecs|blosc|scipy/io)\b.*",
    waits=True,
)
"""Call for anything else that holds the stage that reads, too."""
COLLECTS: Final = Call(
    "Python's garbage collector is called",
    "call gc.collect() less often, or raise gc.set_threshold; call gc.freeze() in worker_init_fn, "
    "to leave out objects that stay; keep fewer objects: arrays instead of lists",
    source=r"\bgc\.collect\(",
)
CALLS: Final = {
    "garbage": COLLECTS,
    "lock": Call(
        "waiting for a lock",
        "hold the lock for less time: one per file, not one for all; or give each worker its own "
        "file or connection",
        _LOCK_FILES,
        r"\b(flock|lockf|FileLock|acquire)\b|\bwith\b.*lock\b",
        waits=True,
    ),
    "text": Call(
        "text becomes tokens",
        "tokenise once, beforehand, and store the numbers",
        r"(tokenizers|transformers/tokenization\w*|sentencepiece|tiktoken|nltk|spacy)\b.*",
        r"tokeni[sz]|\bencode\(|sentencepiece",
    ),
    "network": Call(
        "a request over the network",
        "ask for many samples per request (tar shards), or keep a local copy; raise num_workers, "
        "so that requests overlap",
        r"(http|urllib|urllib3|requests|botocore|boto3|aiohttp|s3fs|gcsfs|socket|ssl)\b.*",
        r"\b(urlopen|requests\.\w+|boto3|get_object|download\w*)\(",
        waits=True,
    ),
    "database": Call(
        "a database is queried",
        "take all rows of a batch with one query, over an indexed column; give each worker its own "
        "read-only connection; a write (a temporary table, too) locks the database for the others",
        r"(sqlite3|sqlalchemy|psycopg\w*|pymysql|duckdb)\b.*",
        r"\.(execute|executemany|fetchone|fetchall|fetchmany)\(",
        waits=True,
    ),
    "codec": Call(
        "a codec decodes",
        "decode only the frames that are used, with one codec thread per worker; store shorter or "
        "smaller pieces, with a key frame every few frames",
        r"(av|torchcodec|decord|soundfile|audioread)\b.*|torchaudio/(_?backend|io)\b.*",
        r"\bav\.open\(|\.decode\((video|audio)|\bVideo(Reader|Capture|Decoder)\(|\bCAP_PROP_",
        waits=True,
    ),
    "unpacking": Call(
        "data is unpacked",
        "store it unpacked: np.load(..., mmap_mode='r') of .npy, not .npz, reads only what a "
        "sample needs; or store pieces of one sample, and use all of a piece once unpacked",
        r"(gzip|bz2|lzma|zstandard)\b.*",
        r"\b(decompress|gzip|bz2|lzma)\b",
    ),
    "opening": Call(
        "a file is opened and read for each sample",
        "open it once in each worker and keep it, or load it once in __init__; map arrays "
        "(np.load(..., mmap_mode='r') of .npy, not .npz), to read only what a sample needs; pack "
        "many small files into one file",
        r"(numpy/lib/_?npyio\w*|numpy/lib/_?format\w*|nibabel|tifffile|pydicom|zipfile"
        r"|tarfile)\b.*|pandas/io/(?!formats).*",
        r"\b(np|numpy)\.(load|loadtxt|genfromtxt|fromfile|memmap)\("
        r"|(?<!Image\.)\bopen\(|\b(Zip|Tar)?File\(|\bextractfile\("
        r"|\b(Dataset|connect)\(|\bread_(csv|parquet|excel|feather|hdf|json)\(|\bloadmat\(",
        waits=True,
    ),
    "reading": READS,
    "labels": Call(
        "xarray or dask looks values up by their labels",
        "extract the variables as NumPy arrays once, in __init__ (ds['x'].to_numpy()), and index "
        "those; open larger data without dask (chunks=None)",
        r"(xarray|dask)/.*",
        r"\.(isel|sel)\(",
    ),
    "searching": Call(
        "all rows are compared to find some",
        "find the rows once, in __init__: groupby(key).indices of pandas, or np.argsort with "
        "np.searchsorted; and take them by these indices from NumPy arrays",
        source=r"\[[^\[\]]*\b\w+(\.\w+|\[[^\]]+\])\s*==|\[[^\[\]]*\.eq\(",
    ),
    "pandas": Call(
        "pandas looks up or computes a few values at a time",
        "convert the columns to NumPy arrays once, in __init__ (frame['x'].to_numpy()), and index "
        "those; compute there what is the same each time",
        r"pandas/.*",
        r"\.(iloc|loc|iat|iterrows|itertuples)\b",
    ),
    "formatting": Call(
        "rows of an Arrow table become Python lists, and these tensors",
        "keep arrays as arrays: with_format('numpy'), features Array2D or Array3D; select only "
        "the columns that are used (select_columns), as each row decodes all; or extract a column "
        "once, in __init__",
        r"datasets/(formatting|features|arrow_dataset)\b.*",
    ),
    "listing": Call(
        "a folder is listed",
        "list it once, in __init__, and keep the names",
        r"glob\.py",
        r"\b(r?glob|iglob|listdir|scandir|iterdir|walk)\(",
    ),
    "unpickling": Call(
        "objects are unpickled",
        "store arrays (np.save, mapped with mmap_mode='r') instead of pickled objects; clone() a "
        "view before torch.save, which stores all of its tensor",
        r"(pickle|_?compat_pickle|joblib|torch/serialization)\b.*",
        r"\b(pickle|joblib|torch)\.loads?\(",
    ),
    "copying": Call(
        "objects are copied with all their contents",
        "copy only what changes: a shallow copy (copy.copy, dict(sample)), or the used piece",
        r"copy\.py",
        r"\bdeepcopy\(",
    ),
    "parsing": Call(
        "text is parsed",
        "parse once, beforehand, and store numbers",
        r"(json|csv|xml|yaml|ast|html|bs4|lxml|re)\b.*",
        r"\b(json|csv|yaml|etree|ast)\.\w+\(|literal_eval|\bre\.\w+\(",
    ),
    "array by array": Call(
        "a list becomes a tensor element by element",
        "compute on whole arrays (index a NumPy table by an array, np.stack); convert the result "
        "once (torch.from_numpy, or torch.stack of tensors), not number by number",
        source=r"\btorch\.(tensor|as_tensor|\w+Tensor)\(",
    ),
    "to an array": Call(
        "something is converted to an array",
        "keep arrays as arrays, as a list is converted number by number; make them once in "
        "__init__, store them as .npy, or read a table with_format('numpy')",
        source=r"\b(np|numpy)\.(array|asarray)\(",
    ),
    "drawing": Call(
        "NumPy draws from the whole population",
        "use numpy.random.default_rng(): choice() without, integers() with replacement; or draw "
        "one permutation per epoch; replace=False and p= go through all of it at each call",
        source=r"\b(np|numpy)\.random\.(choice|permutation|shuffle)\(",
    ),
    "sequence": Call(
        "Python draws from a sequence",
        "draw from a list, not from a deque, which is slow in the middle; or draw a batch of "
        "numbers (numpy.random.default_rng().integers()) to index NumPy arrays",
        r"random\.py",
        r"(?<!\.)\brandom\.(sample|choices?|shuffle)\(",
    ),
    "sparse": Call(
        "a sparse matrix is indexed, which makes a matrix for each row",
        "take all rows of a batch by one index (__getitems__, or in collate_fn); or slice its "
        "arrays: m.indices[m.indptr[i]:m.indptr[i + 1]], and m.data likewise",
        r"scipy/sparse/",
    ),
    "image": Call(
        "scikit-image or SciPy computes on images",
        "do what is the same each time once, beforehand, and store it; use OpenCV (cv2.resize, "
        "cv2.fillPoly), Pillow or torch, which are many times faster; or use a lower order=, or "
        "fewer pixels",
        r"(skimage|scipy/ndimage)/",
    ),
    "distances": Call(
        "distances of all pairs are computed",
        "use a faster routine (scipy's cdist, torch.cdist) or a tree (scipy.spatial.cKDTree) that "
        "looks only at neighbours; or compute whole batches on the device; store what is the same "
        "each time",
        r"(scipy/spatial|sklearn/(metrics|neighbors))/",
        r"\b(distance_matrix|cdist|pdist|pairwise_distances)\(",
    ),
    "signal": Call(
        "signals are filtered, resampled or transformed",
        "do what is the same each time once, beforehand, and store it; use fftconvolve instead of "
        "convolve; or transform whole batches on the device (torchaudio.transforms)",
        r"(scipy/signal|scipy/fft|numpy/fft|librosa|torchaudio)/",
    ),
    "element by element": Call(
        "tensors or pixels are read one by one",
        "compute on whole arrays or tensors (a mask, isin, bincount, one index); or convert all "
        "before the loop, with one .numpy() or .tolist(); compute once, beforehand, what is the "
        "same each time",
        source=r"\.(item|getpixel|putpixel)\(",
    ),
    "sleep": Call(
        "it sleeps",
        "find what it polls, and let that wake it instead; raise num_workers, so that more waits "
        "overlap",
        source=r"\bsleep\(",
        waits=True,
    ),
    "subprocess": Call(
        "another program is started",
        "do it once, beforehand, or call a library instead",
        r"subprocess\.py",
        r"\bsubprocess\.|\bos\.system\(",
        waits=True,
    ),
}
"""Kinds of calls by name; the first that fits is meant."""
OTHER: Final = Call(
    "Python and what it calls",
    "compute once what is the same each time, and keep it (in __init__, with functools.cache) or "
    "store it beforehand; vectorize the rest (whole arrays at once, no Python loop over elements), "
    "or compile it (numba)",
)


@dataclass(frozen=True)
class OwnCode:
    """The function of the user's that holds most of a stage."""

    function: str
    file: str
    lines: tuple[int, ...]
    """Lines that hold most of the function, in the order of the file."""
    share: float
    """Share (0 to 1) of the stage's samples with the function on the stack."""
    call: Call
    """Kind of call that the function spends its time in."""
    calls: str = ""
    """Function of a library that holds most of the time, as `package.function`."""
    package: str = ""
    """Library of the function, where the stage has no code of the user's."""
    beside: str = ""
    """Next step for another line of the user's that holds a good part of the stage, too."""

    @property
    def does(self) -> str:
        """Activity, as the end of "computing: ..."; the called function if the kind is unknown."""
        return f"{self.calls}()" if self.call is OTHER and self.calls else self.call.does

    @property
    def place(self) -> str:
        """Function, file and lines, short; a library's with its package."""
        lines = ", ".join(map(str, self.lines))
        inside = StackFunction(self.function, self.file).place
        file = inside if self.package else PurePath(self.file).name
        return f"{self.package and f'{self.package}: '}{self.function} ({file}:{lines})"


def own_code(flame: Flame, stage: str) -> OwnCode | None:
    """Find the function of the user's that holds most of a stage in stacks of the workers.

    A dataset that comes from a library is the library's: its outermost function is named then, with
    its package. None where too few samples lie in the stage, or all of them in torch and Python
    alone.
    """
    hits = _hits(flame.samples.filter(pl.col("stage").cast(pl.String) == stage))
    # Only of `getitem`: any other stage of a library's has a name of its own
    is_own = stage != GETITEM.name or any(
        kind(function) == YOURS for stack in hits for function in frames(stack)
    )
    holder = _holder(hits, is_own=is_own)
    if holder is None:
        return None
    # The stage was measured, and the stacks only show who opens what it unpacks
    is_unpacking = stage == UNPACK.name and holder.call is CALLS["opening"]
    if stage in READING_WORDS and (holder.call is OTHER or is_unpacking):
        return replace(holder, call=reading_call(stage))
    return holder


def reading_call(stage: str) -> Call:
    """Return the kind of call of a stage that reads or unpacks."""
    return CALLS["unpacking"] if stage == UNPACK.name else READS


def loop_code(samples: pl.DataFrame) -> OwnCode | None:
    """Find the function of the user's that the training process computes in, beside its model.

    Its `share` is one of all that the process computes. None where too little was seen of it, or no
    function of the user's holds most of what is not the model.

    Args:
        samples: stacks of that process; columns `stack` and `hits`.
    """
    hits = _hits(samples)
    rest = Counter({stack: number for stack, number in hits.items() if not _MODEL.search(stack)})
    holder = _holder(rest, is_own=True)
    if holder is None or holder.share < MOSTLY:
        return None
    return replace(holder, share=holder.share * rest.total() / hits.total())


def unhooked_code(flame: Flame) -> OwnCode | None:
    """Find the function of the user's that computes outside of all stages: in another's loader.

    Such loaders have processes and threads of their own, which no hook of ours is in.
    """
    return loop_code(flame.samples.filter(pl.col("stage").is_null()))


def calling_code(flame: Flame) -> OwnCode | None:
    """Find the function of the user's below which most of the work of all stages happens.

    None where no function holds most of it, or only the one that the loader itself calls: all of
    the work is below that.
    """
    hits = _hits(flame.samples.filter(pl.col("stage").cast(pl.String) != SEND.name))
    holder = _holder(hits, is_own=True)
    if holder is None or holder.share < ONE_OF_MANY:
        return None
    outermost = {function for stack in hits for function in _own(stack)[:1]}
    return None if StackFunction(holder.function, holder.file) in outermost else holder


def _hits(samples: pl.DataFrame) -> Counter[str]:
    hits = Counter[str]()
    for stack, number in samples.select("stack", "hits").iter_rows():
        hits[stack] += number
    return hits


def _holder(hits: Counter[str], *, is_own: bool) -> OwnCode | None:
    """Find the deepest function that holds most of the stacks; the user's, or any library's."""
    if hits.total() < FEWEST_SAMPLES:
        return None
    hits_of, depth = Counter[StackFunction](), Counter[StackFunction]()
    for stack, number in hits.items():
        own = _own(stack)
        if not is_own:
            own = [function for function in frames(stack) if package(function) not in _PLAIN][:1]
        for place, function in enumerate(own):
            depth[function] = max(depth[function], place)
        for function in set(own):
            hits_of[function] += number
    if not hits_of:
        return None
    holders = [function for function in hits_of if hits_of[function] >= MOSTLY * hits.total()]
    named = max(
        holders or hits_of,
        key=lambda function: (depth[function] if holders else 0, hits_of[function]),
    )
    described = _described(named, hits, hits_of[named] / hits.total())
    if not is_own:
        return replace(described, package=package(named))
    return replace(described, beside=_beside(named, hits))


def _beside(named: StackFunction, hits: Counter[str]) -> str:
    """Say what helps in the user's function that takes most outside of another one."""
    innermost = {stack: own[-1] for stack in hits if (own := _own(stack)) and named not in own}
    parts = Counter[StackFunction]()
    for stack, function in innermost.items():
        parts[function] += hits[stack]
    function, number = next(iter(parts.most_common(1)), (named, 0))
    part = number / hits.total()
    if part < OWN_PART:
        return ""
    stacks = Counter({stack: hits[stack] for stack in innermost if innermost[stack] == function})
    also = _described(function, stacks, part)
    return f"then at {also.place}, {share(part)} of the same work: {also.call.remedy}"


def _own(stack: str) -> list[StackFunction]:
    """Return the user's functions in a stack, the outermost first."""
    return [
        function
        for function in frames(stack)
        if kind(function) == YOURS and not function.function.endswith(_INLINE)
    ]


def lock_share(flame: Flame) -> float | None:
    """Return the share (0 to 1) of stage samples that wait at a lock; None: too few samples.

    The thread that sends is left out: between two batches it waits for the next one.
    """
    inside = flame.samples.filter(pl.col("stage").cast(pl.String) != SEND.name)
    count = int(inside["hits"].sum())
    if count < FEWEST_SAMPLES:
        return None
    waits = [_waits_at_lock(stack) for stack in inside["stack"]]
    return float(inside.filter(pl.Series(waits, dtype=pl.Boolean))["hits"].sum()) / count


def _waits_at_lock(stack: str) -> bool:
    """Return whether a stack ends in a lock between processes, or in a line that takes such a lock.

    Threads wait for those of their own process: their locks do not count.
    """
    leaf = stack.rpartition(";")[2]
    if _LOCKS.search(leaf):
        return True
    if kind(frame(leaf)) != YOURS:
        return False
    return bool(re.search(_TAKES, linecache.getline(frame(leaf).file, _line(leaf))))


def _described(named: StackFunction, hits: Counter[str], part: float) -> OwnCode:
    """Describe the calls of a function and its lines."""
    lines, calls = Counter[int](), Counter[Call]()
    called, depth = Counter[StackFunction](), Counter[StackFunction]()
    for stack, number in hits.items():
        texts = stack.split(";")
        at = max((i for i, text in enumerate(texts) if frame(text) == named), default=None)
        if at is None:
            continue
        line = _line(texts[at])
        lines[line] += number
        calls[_call(named.file, line, texts[at + 1 :])] += number
        for place, each in enumerate(dict.fromkeys(map(frame, texts[at + 1 :]))):
            called[each] += number if package(each) else 0
            depth[each] = max(depth[each], place)
    whole = lines.total()
    most = [line for line, number in lines.most_common(MOST_NAMED) if number >= OWN_PART * whole]
    shown = tuple(sorted(most or [lines.most_common(1)[0][0]]))
    kinds = (call for call, number in calls.most_common() if number >= _SHOWS * whole)
    call = next((each for each in kinds if each is not OTHER), OTHER)
    holders = [each for each, number in called.items() if number >= MOSTLY * whole]
    deepest = max(holders, key=lambda each: depth[each], default=None)
    inner = f"{package(deepest)}.{deepest.function}" if deepest else ""
    return OwnCode(named.function, named.file, shown, part, call, inner)


def _line(text: str) -> int:
    match = re.search(r":(\d+)\)$", text)
    return int(match[1]) if match else 0


def _call(file: str, line: int, below: list[str]) -> Call:
    """Classify a sample by the frames below the user's and by the text of the user's line."""
    source = linecache.getline(file, line)
    packages = [inside(frame(text)) for text in below]
    for call in CALLS.values():
        if re.search(call.source, source) or any(re.match(call.library, name) for name in packages):
            return call
    return OTHER
