"""A new pipeline as a value, and what makes it real: a loader that works by it, and its source.

Nothing of the user's is changed: the loader, the dataset and what stands between it and its
pipeline are copied shallowly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stallscope.orders.loader_parts import BatchOps, CachedPrefix
from stallscope.orders.pipeline import Chain, Chained, Row
from stallscope.orders.result import FAILS, IDENTICAL, Equivalence
from stallscope.targets.loaders import copied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stallscope.orders.pipeline import Op, Place

_NOT_COMPARED: Final = Equivalence(FAILS, why="not compared")


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
    cached: int = 0
    """One more than how many of the first ops work once for each sample, whose result is kept; 0:
    nothing is kept."""

    @property
    def per_sample(self) -> tuple[int, ...]:
        """The ops that work on one sample at a time."""
        return tuple(position for position in self.positions if position not in self.on_batch)

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
            cached=self.cached or other.cached,
        )


@dataclass(frozen=True, eq=False)
class Variant:
    """A pipeline that is looked at, and what is known of it."""

    kind: str
    """One of `result.KINDS`."""
    recipe: Recipe
    """How it is made."""
    change: str
    """What it changes, in words."""
    changes: str = ""
    """What that means for the model or the machine; "" for nothing."""
    ops_s: float | None = None
    """What its ops should cost, per sample, less what it saves elsewhere; None: it fails, or that
    is not known."""
    comparison: Equivalence = _NOT_COMPARED
    """Its data against the original's."""
    names: Mapping[int, str] = field(default_factory=dict)
    """For ops that are replaced, an expression for what replaces them."""

    @property
    def is_same(self) -> bool:
        """Whether it gives the original's data."""
        return self.comparison.equivalence == IDENTICAL


class Site(NamedTuple):
    """Where a pipeline works."""

    place: Place | Row
    """In the dataset."""
    chain: Chain
    """Its ops."""
    where: tuple[Any, ...] | None
    """Keys that lead to its result in a sample; None: not found there."""
    reader: Place | None = None
    """Where the function is that makes an image of a path; None: there is none."""


def loader_by(recipe: Recipe, site: Site, loader: Any) -> Any:
    """Make a loader with a new pipeline; the given one stays as it is.

    Args:
        recipe: what is new.
        site: where the pipeline works.
        loader: a DataLoader whose dataset has the pipeline in the same place.
    """
    chain = site.chain
    ops = [recipe.op(chain, position) for position in recipe.per_sample]
    if recipe.opener is not None:
        ops.insert(0, recipe.opener)
    dataset = loader.dataset
    if recipe.reader is not None and site.reader is not None:
        dataset = site.reader.filled(dataset, recipe.reader)
    if recipe.cached:
        first, rest = ops[: recipe.cached - 1], ops[recipe.cached - 1 :]
        prefix = site.place.filled(dataset, Chained(first) if first else _loaded)
        dataset = CachedPrefix(prefix, Chained(rest) if rest else None, site.where or ())
    else:
        dataset = site.place.filled(dataset, chain.put_together(ops))
    clone = copied(loader, dataset=dataset)
    if recipe.on_batch:
        works = recipe.works(chain)
        vars(clone)["collate_fn"] = BatchOps(clone.collate_fn, works, site.where or ())
    return clone


def code_of(recipe: Recipe, site: Site, names: Mapping[int, str]) -> str:
    """Write source that puts a recipe's pipeline in the place of the old one of a `loader`.

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
    terms = [f"{names.get(p, ops[p].code)},  # {_comment(ops[p])}" for p in recipe.positions]
    if not isinstance(site.place, Row):
        first, *rest = _source_of_new(site.chain, terms, "old")
        return "\n".join(
            [first, f"old = loader.{site.place.text}", *rest, *_set(site.place)]
        ).strip()
    imports: dict[str, None] = {}
    body = [f"old = ({', '.join(f'loader.{place.text}' for place in site.place.places)})"]
    left = iter(terms)
    for number, (place, size) in enumerate(zip(site.place.places, site.place.sizes, strict=True)):
        chain = Chain(place.value)
        known = chain if chain.is_known else Chain(place.value, whole=True)
        first, *rest = _source_of_new(known, list(islice(left, size)), f"old[{number}]")
        imports[first.strip()] = None
        body += [*rest, *_set(place)]
    return "\n".join([*imports, *body]).strip()


def _set(place: Place) -> list[str]:
    return [f"loader.dataset{text} = new" for text in place.texts]


def _source_of_new(chain: Chain, terms: list[str], old: str) -> list[str]:
    """The lines that make `new`; the first is an import, or empty."""
    kind, value = chain.kind, chain.value
    if kind == "one op":
        return ["", f"new = {terms[0].replace(',  #', '  #', 1)}"]
    listed = "\n".join(f"    {term}" for term in terms)
    if kind == "an nn.Sequential":
        return ["from torch import nn", "", f"new = nn.Sequential(\n{listed}\n)"]
    holder = chain.holder
    begin, end = "()" if isinstance(getattr(value, holder, value), tuple) else "[]"
    row = f"{begin}\n{listed}\n{end}"
    if not holder:
        return ["", f"new = {row}"]
    return ["import copy\n", f"new = copy.copy({old})", f"new.{holder} = {row}"]


def _comment(op: Op) -> str:
    text = op.settings or op.name
    return text if op.name.partition(" ")[0] in text else f"{op.name}: {text}"


def change_of(positions: Sequence[int], ops: Sequence[Op]) -> str:
    """Say what an order changes, in as few words as possible: "RandomCrop before PILToTensor"."""
    moved, changes = _moved(positions), []
    for is_moved, places in groupby(range(len(positions)), lambda at: positions[at] in moved):
        here = [*places]
        names = " and ".join(ops[positions[at]].name for at in here)
        after = positions[here[-1] + 1 :]
        where = f"before {ops[after[0]].name}" if after else "last"
        changes += [f"{names} {where}"] * is_moved
    return ", ".join(changes) or "as it is"


def _moved(positions: Sequence[int]) -> set[int]:
    """The fewest ops that have to be moved: those outside of a longest rising row.

    Of several, those are said to move that come earlier than they did.
    """

    def came_earlier(kept: tuple[int, ...]) -> int:
        """Of the ops that are not kept, how many stand before their old place."""
        return sum(place < op for place, op in enumerate(positions) if op not in kept)

    best: list[tuple[int, ...]] = []
    for place, position in enumerate(positions):
        rows = [row for row in best[:place] if row[-1] < position]
        longest = max(rows, key=lambda row: (len(row), -row[-1]), default=())
        best.append((*longest, position))
    kept = max(best, key=lambda row: (len(row), came_earlier(row)))
    return set(positions) - set(kept)


def _loaded(value: Any) -> Any:
    """An image that is kept is kept decoded."""
    load = getattr(value, "load", None)
    if callable(load):
        load()
    return value
