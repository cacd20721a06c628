"""Variant of a pipeline: its ops, its change in words, the grade of its data, and its times.

A `Variant` goes from the search through the comparison and the benchmark into the result, its text,
its charts and its panel.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from PIL import Image

from stallscope.loops.cached_values import fresh, is_image
from stallscope.targets.loaders import copied
from stallscope.verbs.orders.pipeline import Chain, Chained, OuterDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from stallscope.bench.comparison import Factor, Rate
    from stallscope.verbs.orders.pipeline import Op, Place

    Picture = NDArray[np.uint8]


IDENTICAL: Final = "identical"
ROUNDING: Final = "rounding"
NEAR: Final = "8-bit rounding"
DIFFERENT: Final = "different"
FAILS: Final = "fails"
EQUIVALENCES: Final = (IDENTICAL, ROUNDING, NEAR, DIFFERENT, FAILS)
"""Grades of a pipeline's data against the original's on the same draws, the best first: the same
bits; a difference by floating-point rounding; one by rounding to 8 bits at another step; other
values; no values, because the pipeline raises."""
TOLERANCES: Final = (IDENTICAL, ROUNDING, NEAR)
"""Grades that a user can allow."""

FETCH: Final = "fetch"
DECODE: Final = "decode"
ON_BATCH: Final = "on the batch"
BATCH: Final = "collate and send"
"""Names of the parts of a sample's time outside of the ops."""
CACHE: Final = "cache"
"""Kind of a variant that costs memory, which is the user's decision."""
KINDS: Final = ("order", "alternative", "batch", "decode", CACHE, "fused", "together")
"""Kinds of changes: the order; the user's rewrite of an op; ops on the batch; another decoder; a
cache in memory; two ops as one; several of these."""
REDRAWN: Final = "random numbers are drawn in another order, so the same seed gives other samples"


class Grade(NamedTuple):
    """Distance of a pipeline's data from the original's, on the same samples and draws."""

    equivalence: str
    """One of `EQUIVALENCES`."""
    max_difference: float | None = None
    """Largest difference of a value as a share (0 to 1) of the values' range."""
    psnr_db: float | None = None
    """Lowest PSNR of a sample."""
    compared: int = 0
    """Number of samples."""
    why: str = ""
    """Reason of the grade; "": none."""

    @property
    def works(self) -> bool:
        """True if the pipeline returns a sample."""
        return self.equivalence != FAILS

    def within(self, tolerance: str) -> bool:
        """Return true if a tolerance allows this data."""
        return self.equivalence in TOLERANCES[: TOLERANCES.index(tolerance) + 1]


class CostPart(NamedTuple):
    """One part of a sample's time."""

    name: str
    """Name of an op, or of another part."""
    seconds: float
    """Seconds per sample."""
    kind: str
    """Kind of stage: fetch, decode, transform or collate."""


@dataclass(frozen=True)
class FixedCosts:
    """Time of a sample outside of its ops, seconds per sample, in one process."""

    fetch_s: float = 0.0
    """The dataset's own code around the pipeline, such as reading."""
    decode_s: float = 0.0
    """Decoding a lazy image, in the first op that uses its pixels; 0: no image was lazy."""
    batch_s: float = 0.0
    """Share of collating the batch and copying it to shared memory."""

    @property
    def total_s(self) -> float:
        """Sum of the three."""
        return self.fetch_s + self.decode_s + self.batch_s


NOT_COMPARED: Final = Grade(FAILS, why="not compared")


@dataclass(frozen=True, eq=False)
class Variant:
    """A pipeline, described by its changes to the original, and its measurements."""

    positions: tuple[int, ...]
    """Ops in their order, by their place in the original pipeline."""
    kind: str = "order"
    """One of `KINDS`."""
    change: str = "as it is"
    """Change in words."""
    changes: str = ""
    """Consequence for the model or the machine; "": none."""
    replaced: Mapping[int, Any] = field(default_factory=dict)
    """Objects that replace ops."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Expressions for the objects in `replaced`."""
    on_batch: tuple[int, ...] = ()
    """Ops that run on whole batches, after collating; the last of `positions`."""
    draft: Callable[[Any], Any] | None = None
    """Decoder of the images, see `drafted`; None: the dataset's own."""
    cached: int = 0
    """Number of first ops whose result is cached, plus 1; 0: no cache."""
    costs: Mapping[int | str, float] = field(default_factory=dict)
    """Seconds per sample of what the change makes faster: ops by position, other parts by name;
    nan: unknown. Everything else costs what it does in the original, or in this order."""
    trial: int = 0
    """Number in the result; 0 is the original pipeline."""
    order: str = ""
    """Names of the ops in their order."""
    predicted_s: float | None = None
    """Predicted seconds per sample, the sum of its parts; None: it fails, or unknown."""
    parts: tuple[CostPart, ...] = ()
    """Parts of its time in their order, up to an op that raises; (): unknown."""
    grade: Grade = NOT_COMPARED
    """Grade of its data against the original's."""
    pictures: tuple[tuple[Picture, Picture], ...] = ()
    """A few samples, original and new, uint8 of shape (height, width, 3)."""
    gains: bool = False
    """True if it is predicted to be faster and costs no memory."""
    code: str = ""
    """Python source that sets it in a `loader`; "": there is none."""
    measured: Rate | None = None
    """Measured seconds per sample; None: not measured."""
    speedup: Factor | None = None
    """Measured time of the original over that of the variant; None: not measured."""
    loader_gain: Factor | None = None
    """Speedup of the loader; None: not measured."""
    predicted_speedup: float | None = None
    """Predicted time of the original over that of the variant."""

    @property
    def is_order(self) -> bool:
        """True if only the order of the ops may differ from the original's."""
        return self.kind == "order"

    @property
    def is_original(self) -> bool:
        """True if this is the original pipeline."""
        return self.is_order and self.positions == tuple(sorted(self.positions))

    @property
    def per_sample(self) -> tuple[int, ...]:
        """Ops that run on single samples."""
        return tuple(position for position in self.positions if position not in self.on_batch)

    @property
    def fast(self) -> float:
        """Speedup, measured or else predicted; 0: unknown."""
        return float((self.speedup and self.speedup.factor) or self.predicted_speedup or 0.0)

    @property
    def says(self) -> str | None:
        """Word of `bench.comparison` of the speedup; None: not measured."""
        return self.speedup.says if self.speedup else None


class Site(NamedTuple):
    """Place of a pipeline in a dataset."""

    place: Place
    chain: Chain
    """Its ops."""
    where: tuple[Any, ...] | None
    """Keys that lead to its result in a sample; None: the result is not in there."""
    reader: Place | None = None
    """Place of the function that reads an image from a path; None: there is none."""

    @property
    def text(self) -> str:
        """Place and kind in words."""
        return f"{self.place.text}, {self.chain.kind}"

    @property
    def ops(self) -> tuple[Op, ...]:
        """Its ops."""
        return self.chain.ops

    def op(self, variant: Variant, position: int) -> Any:
        """Return an op, or the object that replaces it."""
        return variant.replaced.get(position, self.chain.ops[position].call)

    def batch_ops(self, variant: Variant) -> Chained:
        """Return the variant's ops on the batch."""
        return Chained([self.op(variant, position) for position in variant.on_batch])

    def loader_with(self, variant: Variant, loader: Any) -> Any:
        """Return a loader with another pipeline in the same place; the old loader is unchanged."""
        ops = [self.op(variant, position) for position in variant.per_sample]
        dataset = loader.dataset
        if variant.draft is not None and self.reader is not None:
            dataset = self.reader.filled(dataset, variant.draft)
        elif variant.draft is not None:
            ops.insert(0, variant.draft)  # on the image as the dataset opened it
        if variant.cached:
            first, rest = ops[: variant.cached - 1], ops[variant.cached - 1 :]
            prefix = self.place.filled(dataset, Chained(first) if first else loaded)
            dataset = CachedPrefix(prefix, Chained(rest) if rest else None, self.where or ())
        else:
            dataset = self.place.filled(dataset, self.chain.put_together(ops))
        clone = copied(loader, dataset=dataset)
        if variant.on_batch:
            ops_on_batch = self.batch_ops(variant), self.where or ()
            vars(clone)["collate_fn"] = partial(collated, clone.collate_fn, *ops_on_batch)
        return clone

    def found_in(self, loader: Any) -> tuple[Site | None, list[str]]:
        """Find the same ops in the same place of another loader; also return its ops' names."""
        value = self.place.found_in(getattr(loader, "dataset", None))
        if value is None:
            return None, []
        chain = Chain(value, whole=self.chain.kind == "one op")
        names = [op.name for op in chain.ops]
        is_same = names == [op.name for op in self.chain.ops]
        return (self._replace(chain=chain) if is_same else None), names

    def code_of(self, variant: Variant) -> str:
        """Return source that replaces a loader's pipeline; "": not just another row of ops."""
        if variant.on_batch or variant.draft or variant.cached or variant.kind == "fused":
            return ""
        ops = self.chain.ops
        terms = [
            f"{variant.names.get(p, ops[p].code)},  # {_comment(ops[p])}" for p in variant.positions
        ]
        body = [f"old = loader.{self.place.text}", *_source_of_new(self.chain, terms)]
        body += self.place.assigned("loader.dataset", "new")
        return "\n".join(body)


def _source_of_new(chain: Chain, terms: list[str]) -> list[str]:
    """Return the lines that make `new` of `old`."""
    if chain.kind == "one op":
        return [f"new = {terms[0].replace(',  #', '  #', 1)}"]
    listed = "\n".join(f"    {term}" for term in terms)
    if chain.kind == "an nn.Sequential":
        return ["from torch import nn", "", f"new = nn.Sequential(\n{listed}\n)"]
    value, holder = chain.value, chain.holder
    begin, end = "()" if isinstance(getattr(value, holder, value), tuple) else "[]"
    row = f"{begin}\n{listed}\n{end}"
    if not holder:
        return [f"new = {row}"]
    return ["import copy", "", "new = copy.copy(old)", f"new.{holder} = {row}"]


def _comment(op: Op) -> str:
    text = op.settings or op.name
    return text if op.name.partition(" ")[0] in text else f"{op.name}: {text}"


def change_of(positions: Sequence[int], names: Sequence[str] | Mapping[int, str]) -> str:
    """Return the change of an order in few words: "RandomCrop before PILToTensor"."""
    moved, changes = moved_ops(positions), []
    for is_moved, places in groupby(range(len(positions)), lambda at: positions[at] in moved):
        here = [*places]
        listed = " and ".join(names[positions[at]] for at in here)
        after = positions[here[-1] + 1 :]
        where = f"before {names[after[0]]}" if after else "last"
        changes += [f"{listed} {where}"] * is_moved
    return ", ".join(changes) or "as it is"


def moved_ops(positions: Sequence[int]) -> set[int]:
    """Return the fewest ops that have to move: those outside of a longest rising row.

    Of several such rows, the row is taken whose other ops move forward.
    """

    def came_earlier(row: tuple[int, ...]) -> int:
        return sum(place < op for place, op in enumerate(positions) if op not in row)

    best: list[tuple[int, ...]] = []
    for place, position in enumerate(positions):
        rows = [row for row in best[:place] if row[-1] < position]
        longest = max(rows, key=lambda row: (len(row), -row[-1]), default=())
        best.append((*longest, position))
    longest = max(best, key=lambda row: (len(row), came_earlier(row)))
    return set(positions) - set(longest)


# ---- parts of changed loaders --------------------------------------------------------------------


def collated(collate: Any, ops: Chained, where: tuple[Any, ...], samples: Any) -> Any:
    """Return the user's batch of samples, after some ops on its column at `where`."""
    return with_column(collate(samples), where, ops)


class CachedPrefix(OuterDataset):
    """Dataset that caches its samples in memory, up to the first op that changes them each time.

    A worker caches its own samples, and has those from before its fork; workers share no later
    ones. Workers that end with an epoch lose their cache.

    Args:
        dataset: with only the first ops in its pipeline.
        tail: the ops that run every time; None: there are none.
        where: keys that lead to the pipeline's result in a sample.
    """

    def __init__(self, dataset: Any, tail: Any, where: Sequence[Any]) -> None:
        super().__init__(dataset)
        self.tail = tail
        self.where = tuple(where)
        self.kept: dict[Hashable, Any] = {}

    def __getitem__(self, index: Any) -> Any:
        key = key_of(index)
        if key not in self.kept:
            self.kept[key] = fresh(self.dataset[index])
        return with_column(self.kept[key], self.where, self._finish)

    def _finish(self, value: Any) -> Any:
        value = fresh(value)  # an op may change its input in place
        return value if self.tail is None else self.tail(value)


def key_of(index: Any) -> Hashable:
    """Return a key for an index: itself, or its bytes if it cannot be hashed, as a list."""
    try:
        hash(index)
    except TypeError:
        return pickle.dumps(index)
    return index  # type: ignore[no-any-return]  # hashed just above


def loaded(value: Any) -> Any:
    """Decode an image, so that the cache holds pixels."""
    load = getattr(value, "load", None)
    if callable(load):
        load()
    return value


def with_column(value: Any, where: tuple[Any, ...], change: Any) -> Any:
    """Return a sample or a batch with the value at `where` changed."""
    if not where:
        return change(value)
    key, rest = where[0], where[1:]
    inner = with_column(value[key], rest, change)
    if isinstance(value, Mapping):
        return {**value, key: inner}
    parts = [inner if number == key else part for number, part in enumerate(value)]
    if hasattr(value, "_fields"):
        return type(value)(*parts)
    return type(value)(parts) if isinstance(value, (list, tuple)) else parts


def drafted(size: tuple[int, int], image: Any) -> Any:
    """Decode a JPEG at the smallest of its sizes that is at least this large (width, height).

    Stands before the ops, or in the place of a function that reads an RGB image from a path.
    """
    if not is_image(image):
        with Image.open(image) as opened:
            return drafted(size, opened).convert("RGB")
    if getattr(image, "tile", None):
        image.draft(image.mode, size)
    image.load()
    return image


_REACH: Final = 3
"""Reach of the widest of Pillow's filters (Lanczos), in pixels of the resized image."""
_MODULES: Final = ("torchvision.transforms.transforms", "torchvision.transforms.v2._geometry")
_CROPS: Final = ("CenterCrop", "RandomCrop")


@dataclass(frozen=True, eq=False)
class ResizedCrop:
    """Resize and crop in one, for PIL images; anything else goes through both ops."""

    resize: Any
    """The user's op."""
    crop: Any
    """The user's op; draws its place as before."""

    @property
    def __name__(self) -> str:
        return f"{type(self.resize).__name__} and {type(self.crop).__name__} in one"

    def __call__(self, image: Any) -> Any:
        """Return the crop of the resized image."""
        if not is_image(image):
            return self.crop(self.resize(image))
        wide, high = self.resize(Image.new("1", image.size)).size  # quick, as it is black and white
        top, left, down, across = _box_of(self.crop, wide, high)
        if min(top, left) < 0 or top + down > high or left + across > wide:
            return self.crop(self.resize(image))  # the crop pads
        scales = image.width / wide, image.height / high
        spare = [math.ceil(_REACH * max(1.0, 1 / scale)) + 1 for scale in scales]
        first = max(left - spare[0], 0), max(top - spare[1], 0)
        last = min(left + across + spare[0], wide), min(top + down + spare[1], high)
        name = str(getattr(self.resize.interpolation, "value", self.resize.interpolation))
        part = image.resize(
            (last[0] - first[0], last[1] - first[1]),
            Image.Resampling[name.partition("-")[0].upper()],  # "bilinear", "nearest-exact"
            (
                first[0] * scales[0],
                first[1] * scales[1],
                min(last[0] * scales[0], image.width),
                min(last[1] * scales[1], image.height),
            ),
        )
        at = left - first[0], top - first[1]
        return part.crop((*at, at[0] + across, at[1] + down))


def _box_of(crop: Any, wide: int, high: int) -> tuple[int, int, int, int]:
    """Return top, left, height and width of the crop, with the op's own draws."""
    down, across = crop.size
    if type(crop).__name__ == "CenterCrop":
        return round((high - down) / 2.0), round((wide - across) / 2.0), down, across
    empty = Image.new("1", (wide, high))  # the op only uses its size
    params = getattr(crop, "make_params", None) or getattr(crop, "_get_params", None)
    if params is not None:  # of v2; the second name is that of older versions
        sides = params([empty])
        return sides["top"], sides["left"], sides["height"], sides["width"]
    box: tuple[int, int, int, int] = crop.get_params(empty, crop.size)
    return box


def can_be_one(resize: Any, crop: Any) -> bool:
    """Return true if a resize and a crop do no more than their names say."""
    kinds = type(resize), type(crop)
    if any(kind.__module__ not in _MODULES for kind in kinds):
        return False
    pads = getattr(crop, "padding", None) or getattr(crop, "pad_if_needed", False)
    return (
        kinds[0].__name__ == "Resize"
        and kinds[1].__name__ in _CROPS
        and resize.size is not None
        and not pads
    )
