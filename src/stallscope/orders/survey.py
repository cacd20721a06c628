"""Finding a loader's pipeline and drawing the samples on which its ops are tried.

What a sample costs outside of its ops: reading, decoding, collating, going to shared memory.
"""

from __future__ import annotations

import copy
import random
import statistics
import time
from dataclasses import dataclass
from itertools import chain as flat
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from stallscope.errors import StallscopeError, UnsupportedError
from stallscope.hooks import find_ops
from stallscope.loops import cached_loaders
from stallscope.loops.cached_values import bytes_of, fresh, mapped
from stallscope.orders.captured import OpInput, OpResultError, called, passed_on, watch
from stallscope.orders.digests import digest
from stallscope.orders.pipeline import Chain, places, readers
from stallscope.orders.recipe import Site
from stallscope.orders.result import FixedCosts
from stallscope.units import count, size

if TYPE_CHECKING:
    from stallscope.orders.captured import CapturedSample, Watched
    from stallscope.orders.pipeline import Place


_CHECKED: Final = 3
"""Samples on which a row of ops has to give what its pipeline gives."""
_MOST_BATCHES: Final = 1_000
_SEED: Final = 1_234


class NoPipelineError(StallscopeError, ValueError):
    """The dataset calls nothing that could be put in another order; says what was found."""


@dataclass(frozen=True)
class Survey:
    """A pipeline, and samples that went through it."""

    site: Site
    """Where it works, and its ops."""
    drawn: tuple[CapturedSample, ...]
    """What it was called with."""
    notes: tuple[str, ...] = ()
    """What was left out, in sentences."""


def survey(loader: Any, samples: int, room_bytes: int) -> Survey:
    """Find the pipeline of a loader, and draw samples for it.

    Args:
        loader: torch's own, map-style.
        samples: how many, in the order of its sampler.
        room_bytes: what the samples may need in memory at all points of their way.

    Raises:
        NoPipelineError: there is none that can be taken apart.
        UnsupportedError: the dataset is a stream.
    """
    if cached_loaders.is_stream(loader):
        raise UnsupportedError(
            f"the dataset ({type(loader.dataset).__name__}) is a stream, whose samples cannot be "
            "asked for again: give a loader over a map-style dataset with the same transforms"
        )
    found = places(loader.dataset)
    reading = readers(loader.dataset)
    seen = _watched(loader.dataset, found, _indices(loader, samples), reading)
    number = _chosen(loader.dataset, found, seen)
    place, drawn = found[number], tuple(seen.drawn[number])
    chain, notes = _believed(place, [one.given for one in drawn])
    each = max(bytes_of([one.given.value, one.finished]) for one in drawn)
    fitting = max(room_bytes // (each * (len(chain.ops) + 2)), 1)
    if fitting < len(drawn):
        notes.append(f"only {count(fitting, 'sample')} were used: each needs {size(each)}")
        drawn = drawn[:fitting]
    others = [found[other].text for other in seen.drawn if other != number]
    if others:
        notes.append(
            f"only {place.text} was looked at: the dataset also calls {', '.join(others)} on its "
            "own; put all ops in one Compose to have them ordered together"
        )
    number_read = {one.reader for one in drawn}
    first = drawn[0].reader
    reader = reading[first] if len(number_read) == 1 and first is not None else None
    return Survey(Site(place, chain, drawn[0].where, reader), drawn, tuple(notes))


def _watched(dataset: Any, found: list[Place], indices: list[Any], reading: list[Place]) -> Watched:
    """What goes through each place.

    Raises:
        NoPipelineError: the dataset works, but not with a watcher in the place of its pipeline.
    """
    try:
        return watch(dataset, found, indices, reading)
    except StallscopeError:
        raise
    except Exception as error:
        for index in indices:
            dataset[index]  # the user's own exception, if it is one, leaves from here
        raise NoPipelineError(
            f"{type(dataset).__name__} does more with its pipeline than to call it ({error}), as "
            "one that keeps finished parts does: give a loader over a plain dataset with the same "
            "transforms"
        ) from error


def _indices(loader: Any, samples: int) -> list[Any]:
    """The indices of so many samples, without those of batches that nobody needs."""
    if loader.batch_sampler is None:
        return cached_loaders.next_indices(loader, samples)
    batches = min(-(-samples // (loader.batch_size or 1)), _MOST_BATCHES)
    found = list(flat.from_iterable(cached_loaders.next_indices(loader, batches)))
    return found[:samples]


def _chosen(dataset: Any, found: list[Place], seen: Watched) -> int:
    """The place with most ops, among those that each sample goes through once.

    Raises:
        NoPipelineError: there is none.
    """
    once = [number for number in seen.drawn if number not in seen.more_than_once]
    if once:
        return max(once, key=lambda number: (len(Chain(found[number].value).ops), -number))
    name = type(dataset).__name__
    if seen.drawn:
        called_twice = ", ".join(found[number].text for number in seen.drawn)
        raise NoPipelineError(
            f"{called_twice} is called several times for one sample of {name}, so there is no one "
            "order: let the dataset call one Compose once for each sample"
        )
    helpers = [
        slot.name for inner in find_ops.datasets(dataset) for slot in find_ops.helpers(inner)
    ]
    inline = f"; its code calls {', '.join(map(str, helpers))} itself" if helpers else ""
    if callable(getattr(dataset, "set_transform", None)):
        inline = "; a function given to set_transform gets whole columns and is not taken apart"
    held = f"; it holds {', '.join(place.text for place in found)}, uncalled" if found else ""
    raise NoPipelineError(
        f"no pipeline was found in {name}: its __getitem__ calls no transform that it holds"
        f"{inline}{held}. Put the ops in a Compose and let the dataset hold and call it, as in "
        "self.transform(image)"
    )


def _believed(place: Place, givens: list[OpInput]) -> tuple[Chain, list[str]]:
    """The pipeline's ops, if calling them in turn gives what it gives; else it is one op."""
    chain = Chain(place.value)
    if len(chain.ops) == 1 and chain.ops[0].call is place.value:
        return chain, []
    if chain.is_known or _is_replayed(chain, givens[:_CHECKED]):
        return chain, []
    note = (
        f"{place.text} is taken as one op: calling its {count(len(chain.ops), 'part')} in turn "
        "does not give what it gives"
    )
    return Chain(place.value, whole=True), [note]


def _is_replayed(chain: Chain, givens: list[OpInput]) -> bool:
    try:
        whole, parts = copy.deepcopy(chain.value), copy.deepcopy(chain.value)
    except Exception:  # noqa: BLE001 - whatever an op holds: a lock, a file
        return False
    ops = Chain(parts).ops
    for number, given in enumerate(givens):
        _seed(number)
        expected = whole(*fresh(given.args), **fresh(given.named))
        _seed(number)
        given = OpInput(*fresh(tuple(given)))  # noqa: PLW2901 - goes on its way
        try:
            for op in ops:
                given = passed_on(op, given, called(op, op.call, given))  # noqa: PLW2901
        except OpResultError:
            raise
        except Exception:  # noqa: BLE001 - it is no row of ops, then
            return False
        if digest(given.value) != digest(expected):
            return False
    return True


def _seed(number: int) -> None:
    torch.default_generator.manual_seed(_SEED + number)
    np.random.seed(_SEED + number)  # noqa: NPY002 - the global one, from which ops draw
    random.seed(_SEED + number)


_ROUNDS: Final = 4


def rest_of(loader: Any, drawn: tuple[CapturedSample, ...]) -> FixedCosts:
    """The costs around the ops, from the samples that were drawn.

    The first sample pays for what is imported or opened once, so medians are taken.

    Args:
        loader: whose collate function it is.
        drawn: the samples, finished.
    """
    return FixedCosts(
        fetch_s=statistics.median(one.fetch_s for one in drawn),
        decode_s=statistics.median(one.decode_s for one in drawn),
        batch_s=_batch_s(loader, [one.finished for one in drawn]),
    )


def _batch_s(loader: Any, samples: list[Any]) -> float:
    """Its share of collating and of copying to shared memory, as workers do to send."""
    if loader.batch_sampler is None:
        samples = samples[:1]
    best_s = float("inf")
    for _ in range(_ROUNDS):
        began_ns = time.perf_counter_ns()
        batch = loader.collate_fn(samples if loader.batch_sampler is not None else samples[0])
        if loader.num_workers:
            batch = mapped(batch, _shared)
        best_s = min(best_s, (time.perf_counter_ns() - began_ns) / 1e9)
        del batch
    return best_s / len(samples)


def _shared(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor and leaf.layout is torch.strided:
        return leaf.clone().share_memory_()  # type: ignore[no-untyped-call]
    return leaf
