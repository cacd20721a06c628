"""What a new pipeline is made of, and a loader that works by it.

Nothing of the user's is changed: the loader, the dataset and what stands between it and its
pipeline are copied shallowly.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stallscope.measure.pipelines.chain import Chain
    from stallscope.measure.pipelines.place import Place


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
    from stallscope.experiments.candidates.memory import with_cached_head

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
