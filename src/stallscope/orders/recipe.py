"""What a new pipeline is made of, and a loader that works by it.

Nothing of the user's is changed: the loader, the dataset and what stands between it and its
pipeline are copied shallowly.

The user's rewrites of ops: which op each is meant for.

Python source for a new pipeline, and the words for what it changes.

The first ops of a pipeline done once for each sample, and their results kept in memory.

A worker keeps what it has made, and what was made before it was forked; workers do not share what
they make later. Workers that end with an epoch lose theirs.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from stallscope.errors import ArgumentError
from stallscope.loops.cached_values import fresh
from stallscope.orders.pipeline import Chained

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from stallscope.orders.pipeline import Chain, Op, Place


@dataclass(frozen=True)
class Recipe:
    """A pipeline, as it differs from the one that was found."""

    positions: tuple[int, ...]
    """The ops in their order, by their place in the pipeline as it is."""
    replaced: Mapping[int, Any] = field(default_factory=dict)
    """Other objects in the place of ops."""
    on_batch: tuple[int, ...] = ()
    """Ops that get whole batches, after collating; the last of `positions`."""
    by_vmap: frozenset[int] = frozenset()
    """Those of them that cannot do so themselves, and are vectorised by torch."""
    opener: Any = None
    """Called before all ops on the image as the dataset opened it; None: nothing is."""
    reader: Any = None
    """In the place of the function by which the dataset makes an image of a path; None: its own."""
    needless: frozenset[int] = frozenset()
    """Ops whose work the opener has done."""
    cached: int = 0
    """How many of the first ops work once for each sample, whose result is kept in memory."""

    @property
    def per_sample(self) -> tuple[int, ...]:
        """The ops that work on one sample at a time."""
        return tuple(p for p in self.positions if p not in self.on_batch and p not in self.needless)

    def op(self, chain: Chain, position: int) -> Any:
        """The object that works in the place of an op."""
        return self.replaced.get(position, chain.ops[position].call)

    def works(self, chain: Chain) -> list[tuple[Any, bool]]:
        """What is done to whole batches: each op, and whether torch vectorises it."""
        return [(self.op(chain, position), position in self.by_vmap) for position in self.on_batch]

    def joined(self, other: Recipe) -> Recipe:
        """Both changes at once; the other's order holds where it has one of its own."""
        reordered = other.positions != tuple(sorted(other.positions))
        return Recipe(
            positions=other.positions if reordered else self.positions,
            replaced={**self.replaced, **other.replaced},
            on_batch=self.on_batch or other.on_batch,
            by_vmap=self.by_vmap | other.by_vmap,
            opener=self.opener or other.opener,
            reader=self.reader or other.reader,
            needless=self.needless | other.needless,
            cached=self.cached or other.cached,
        )


@dataclass(frozen=True)
class Site:
    """Where a pipeline works."""

    place: Place
    """In the dataset."""
    chain: Chain
    """Its ops."""
    where: tuple[Any, ...] | None
    """Keys that lead to its result in a sample; None: not found there."""
    reader: Place | None = None
    """Where the function is that makes an image of a path; None: there is none."""


def loader_by(recipe: Recipe, site: Site, loader: Any, **changed: Any) -> Any:
    """A loader with a new pipeline; the given one stays as it is.

    Args:
        recipe: what is new.
        site: where the pipeline works.
        loader: a DataLoader whose dataset has the pipeline in the same place.
        changed: more attributes of the new loader.
    """
    chain = site.chain
    ops = [recipe.op(chain, position) for position in recipe.per_sample]
    if recipe.opener is not None:
        ops.insert(0, recipe.opener)
    dataset = loader.dataset
    if recipe.reader is not None and site.reader is not None:
        dataset = site.reader.filled(dataset, recipe.reader)
    if recipe.cached:
        dataset = with_cached_head(site, dataset, ops, recipe.cached)
    else:
        dataset = site.place.filled(dataset, chain.put_together(ops))
    clone = copy.copy(loader)
    attributes = vars(clone)  # torch forbids to set some of them
    attributes.update(dataset=dataset, _iterator=None, **changed)
    if recipe.on_batch:
        works = recipe.works(chain)
        attributes["collate_fn"] = BatchOps(clone.collate_fn, works, site.where or ())
    return clone


class BatchOps:
    """A collate function that has ops work on the whole batch afterwards.

    Args:
        collate: the user's.
        works: the ops, and whether torch vectorises each.
        where: keys that lead to the column they work on.
    """

    def __init__(
        self, collate: Any, works: Sequence[tuple[Any, bool]], where: tuple[Any, ...]
    ) -> None:
        self.collate = collate
        self.works = list(works)
        self.where = where

    def __call__(self, samples: Any) -> Any:
        """The batch, with the ops done."""
        return _changed(self.collate(samples), self.where, self.work)

    def work(self, column: Any) -> Any:
        """The ops' result for the samples of a batch, stacked."""
        for op, by_vmap in self.works:
            column = torch.vmap(op)(column) if by_vmap else op(column)
        return column


def _changed(value: Any, where: tuple[Any, ...], change: Any) -> Any:
    """A batch with another value in one place."""
    if not where:
        return change(value)
    key, rest = where[0], where[1:]
    inner = _changed(value[key], rest, change)
    if isinstance(value, Mapping):
        return {**value, key: inner}
    parts = [inner if number == key else one for number, one in enumerate(value)]
    if hasattr(value, "_fields"):
        return type(value)(*parts)
    return type(value)(parts) if isinstance(value, (list, tuple)) else parts


def rewrites(
    ops: tuple[Op, ...], alternatives: Mapping[Any, Any] | None
) -> Iterator[tuple[int, Any, str]]:
    """Position, object and expression of each rewrite.

    Args:
        ops: of the pipeline.
        alternatives: a rewrite, or several, by an op's name or position.

    Raises:
        ArgumentError: there is no such op, or the rewrite cannot be called.
    """
    known = {op.name: op.position for op in ops}
    for key, value in (alternatives or {}).items():
        position = known.get(key) if isinstance(key, str) else key
        if not isinstance(position, int) or position not in range(len(ops)):
            raise ArgumentError(
                f"alternatives: there is no op {key!r} in this pipeline; there are "
                f"{', '.join(repr(name) for name in known)}"
            )
        several = list(value) if isinstance(value, (list, tuple)) else [value]
        for number, op in enumerate(several):
            if not callable(op) or isinstance(op, type):
                raise ArgumentError(
                    f"alternatives[{key!r}] is {op!r:.80}: give an op that can be called with a "
                    "sample, an object and not its class"
                )
            place = f"[{number}]" if len(several) > 1 else ""
            yield position, op, f"alternatives[{key!r}]{place}"


def code_of(recipe: Recipe, site: Site, names: dict[int, str]) -> str:
    """Source that puts a recipe's pipeline in the place of the old one of a `loader`.

    Args:
        recipe: the new pipeline.
        site: where the old one works.
        names: for ops that are replaced, an expression for what replaces them.

    Returns:
        "" for what is more than another row of ops.
    """
    decodes = recipe.opener is not None or recipe.reader is not None
    if recipe.on_batch or decodes or recipe.cached:
        return ""
    ops = site.chain.ops
    lines = [f"    {names.get(p, ops[p].code)},  # {_comment(ops[p])}" for p in recipe.positions]
    old = f"old = loader.{site.place.text}"
    listed = "\n".join(lines)
    made = _made(site, listed, names)
    places = ["loader.dataset" + "".join(map(str, path)) for path in site.place.paths]
    return "\n".join([*made[:1], old, *made[1:], *(f"{place} = new" for place in places)]).strip()


def _made(site: Site, listed: str, names: dict[int, str]) -> list[str]:
    """The lines that make `new`; the first is an import, or empty."""
    kind, value = site.chain.kind, site.chain.value
    if kind == "one op":
        return ["", f"new = {names.get(0, 'old')}"]
    if isinstance(value, list):
        return ["", f"new = [\n{listed}\n]"]
    if isinstance(value, tuple):
        return ["", f"new = (\n{listed}\n)"]
    if kind == "an nn.Sequential":
        return ["from torch import nn", "", f"new = nn.Sequential(\n{listed}\n)"]
    holder = site.chain.holder
    closing = ("(", ")") if isinstance(getattr(value, holder, None), tuple) else ("[", "]")
    return [
        "import copy\n",
        "new = copy.copy(old)",
        f"new.{holder} = {closing[0]}\n{listed}\n{closing[1]}",
    ]


def _comment(op: Op) -> str:
    text = op.settings or op.name
    return text if op.name.partition(" ")[0] in text else f"{op.name}: {text}"


def change_of(positions: Sequence[int], ops: Sequence[Op]) -> str:
    """What an order changes, in as few words as possible: "RandomCrop before PILToTensor"."""
    moved = _moved(tuple(positions))
    if not moved:
        return "as it is"
    said = []
    for position in moved:
        place = list(positions).index(position)
        said.append(
            f"{ops[position].name} before {ops[positions[place + 1]].name}"
            if place + 1 < len(positions)
            else f"{ops[position].name} last"
        )
    return ", ".join(said)


def _moved(positions: tuple[int, ...]) -> list[int]:
    """The fewest ops that have to be moved: those outside of a longest rising row.

    Of several, those are said to move that come earlier than they did.
    """
    best: list[tuple[int, ...]] = []
    for place, position in enumerate(positions):
        rows = [row for row in best[:place] if row[-1] < position]
        longest = max(rows, key=lambda row: (len(row), -row[-1]), default=())
        best.append((*longest, position))
    kept = max(best, key=lambda row: (len(row), sum(map(_came_earlier, [positions], [row]))))
    return [position for position in positions if position not in kept]


def _came_earlier(positions: tuple[int, ...], kept: tuple[int, ...]) -> int:
    """Of the ops that are not kept, how many stand before their old place."""
    return sum(place < position for place, position in enumerate(positions) if position not in kept)


def random_order_changed(positions: Sequence[int], is_random: dict[int, bool]) -> bool:
    """Whether ops that draw random numbers draw them in another order than before."""
    drawing = [position for position in positions if is_random.get(position)]
    return drawing != sorted(drawing)


class CachedPrefix:
    """A dataset whose samples come from memory, as far as they are the same every time.

    Args:
        dataset: with the first ops alone in the place of its pipeline.
        tail: the ops that are done every time, one after the other; None: there are none.
        where: keys that lead to the pipeline's result in a sample.
    """

    def __init__(self, dataset: Any, tail: Any, where: Sequence[Any]) -> None:
        self.dataset = dataset
        self.tail = tail
        self.where = tuple(where)
        self.kept: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        key = key_of(index)
        if key not in self.kept:
            self.kept[key] = fresh(self.dataset[index])
        return _placed(self.kept[key], self.where, self._finish)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def _finish(self, value: Any) -> Any:
        value = fresh(value)  # an op may change its input in place
        return value if self.tail is None else self.tail(value)


def key_of(index: Any) -> Hashable:
    """The index itself, or its bytes where it cannot be a key, as the list of a batch."""
    try:
        hash(index)
    except TypeError:
        return pickle.dumps(index)
    return index  # type: ignore[no-any-return]  # it has just been hashed


def _placed(value: Any, where: tuple[Any, ...], change: Any) -> Any:
    """A sample with another value in one place."""
    if not where:
        return change(value)
    key, rest = where[0], where[1:]
    inner = _placed(value[key], rest, change)
    if isinstance(value, dict):
        return {**value, key: inner}
    parts = [inner if number == key else one for number, one in enumerate(value)]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def with_cached_head(site: Site, dataset: Any, ops: Sequence[Any], cached: int) -> CachedPrefix:
    """A dataset that keeps what the first ops give.

    Args:
        site: where the pipeline works.
        dataset: the user's; it stays as it is.
        ops: of the pipeline.
        cached: one more than how many of them are done once.
    """
    first, rest = list(ops[: cached - 1]), list(ops[cached - 1 :])
    inner = site.place.filled(dataset, Chained(first) if first else _same)
    return CachedPrefix(inner, Chained(rest) if rest else None, site.where or ())


def _same(value: Any) -> Any:
    """An image that is kept is kept decoded."""
    load = getattr(value, "load", None)
    if callable(load):
        load()
    return value
