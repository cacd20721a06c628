"""Finding a loader's pipeline, and capturing the samples on which its ops are run.

A list and a library's compose are rows of ops for sure. Any other object counts as such a row only
if calling its ops in turn gives the dataset's data.
"""

from __future__ import annotations

import copy
import statistics
from itertools import chain as flat
from typing import TYPE_CHECKING, Any, Final

import torch

from stallscope.errors import StallscopeError, UnsupportedError
from stallscope.isolation import seed_everywhere
from stallscope.loops import cached_loaders
from stallscope.loops.cached_values import bytes_of, fresh, mapped
from stallscope.units import count, said_by, size
from stallscope.verbs.orders.equivalence import digest
from stallscope.verbs.orders.pipeline import Chain, places, readers
from stallscope.verbs.orders.result import FixedCosts
from stallscope.verbs.orders.run_ops import OpInput, OpResultError, apply, clocked
from stallscope.verbs.orders.variant import Site
from stallscope.verbs.orders.watch import watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stallscope.verbs.orders.pipeline import Place
    from stallscope.verbs.orders.watch import CapturedSample, Watched

_CHECKED: Final = 3
"""Samples on which a row of ops has to give its pipeline's data."""
_MOST_BATCHES: Final = 1_000
_ROUNDS: Final = 4
"""Times that a batch is collated."""


class NoPipelineError(StallscopeError, ValueError):
    """The dataset calls nothing that has an order; the message lists what it holds."""


def capture(
    loader: Any, samples: int, room_bytes: int
) -> tuple[Site, list[CapturedSample], list[str]]:
    """Return a loader's pipeline, samples that went through it, and notes on what was left out.

    `room_bytes` is for the samples and all intermediate results.

    Raises:
        NoPipelineError: there is no pipeline that can be split into ops.
        UnsupportedError: the dataset is a stream.
    """
    if cached_loaders.is_stream(loader):
        raise UnsupportedError(
            f"the dataset ({type(loader.dataset).__name__}) is a stream, whose samples cannot be "
            "read twice: give a loader over a map-style dataset with the same transforms"
        )
    held, indices = places(loader.dataset), first_indices(loader, samples)
    try:
        watched = watch(loader.dataset, held, indices, readers(loader.dataset))
    except StallscopeError:
        raise
    except Exception as error:
        for index in indices:
            loader.dataset[index]  # raises the exception again, if it is the user's own
        raise NoPipelineError(
            f"{type(loader.dataset).__name__} does more than call its pipeline ({error}); a cache "
            "does, for example: give a loader over a plain dataset with the same transforms"
        ) from error
    longest = _longest(loader.dataset, watched)
    place, captured = longest.place, longest.samples
    chain, notes = _ops_of(place, [sample.input for sample in captured])
    each = max(bytes_of([sample.input.value, sample.finished]) for sample in captured)
    fitting = max(room_bytes // (each * (len(chain.ops) + 2)), 1)
    if fitting < len(captured):
        notes.append(f"only {count(fitting, 'sample')} were used: each needs {size(each)}")
        captured = captured[:fitting]
    others = [each.place.text for each in watched if each.samples and each is not longest]
    if others:
        notes.append(
            f"only {place.text} was measured; the dataset also calls {', '.join(others)}. Put all "
            "ops into one Compose to have them ordered together"
        )
    first, *rest = {id(sample.reader): sample.reader for sample in captured}.values()
    return Site(place, chain, captured[0].where, None if rest else first), captured, notes


def first_indices(loader: Any, samples: int) -> list[Any]:
    """Return the indices of the first samples of the next batches."""
    if loader.batch_sampler is None:
        return cached_loaders.next_indices(loader, samples)
    batches = min(-(-samples // (loader.batch_size or 1)), _MOST_BATCHES)
    indices = list(flat.from_iterable(cached_loaders.next_indices(loader, batches)))
    return indices[:samples]


def _longest(dataset: Any, watched: list[Watched]) -> Watched:
    """Return the place with most ops that each sample goes through once."""
    called = [each for each in watched if each.samples]
    if once := [each for each in called if each.is_single]:
        return max(once, key=lambda each: len(Chain(each.place.value).ops))
    name = type(dataset).__name__
    if called:
        raise NoPipelineError(
            f"{name} calls {', '.join(each.place.text for each in called)} several times per "
            "sample, or not all of its parts in turn, so there is no single order: give a loader "
            "over a dataset that calls it once per sample, and use the best order for all calls"
        )
    if callable(getattr(dataset, "set_transform", None)):
        raise NoPipelineError(
            f"{name} calls its function (set_transform) on whole columns of a batch, so ops cannot "
            "be compared on samples: give a loader over a dataset that calls a Compose of these "
            "ops on each sample"
        )
    held = ", ".join(each.place.text for each in watched)
    hints = f"; it holds {held}, uncalled" if held else ""
    raise NoPipelineError(
        f"no pipeline was found in {name}: its __getitem__ calls no transform that it holds, and "
        f"no functions of which one takes first what the other returns{hints}"
    )


def _ops_of(place: Place, givens: list[OpInput]) -> tuple[Chain, list[str]]:
    """Return the pipeline's ops, if calling them in turn gives its data; else one op."""
    chain = Chain(place.value)
    if chain.is_known or (len(chain.ops) == 1 and chain.ops[0].call is place.value):
        return chain, []
    try:
        why_not = "the data differs" * (not _is_replayed(chain, givens[:_CHECKED]))
    except OpResultError:
        raise
    except Exception as error:  # noqa: BLE001 - it cannot be copied, or is no row of ops
        why_not = f"{type(error).__name__}: {said_by(error):.100}"
    if not why_not:
        return chain, []
    note = (
        f"{place.text} is treated as one op: calling its {count(len(chain.ops), 'part')} in turn "
        f"gives another result ({why_not})"
    )
    return Chain(place.value, whole=True), [note]


def _is_replayed(chain: Chain, givens: list[OpInput]) -> bool:
    """Return true if calling the ops in turn gives the pipeline's data."""
    whole, ops = copy.deepcopy(chain.value), Chain(copy.deepcopy(chain.value)).ops
    for number, arguments in enumerate(givens):
        seed_everywhere(number)
        expected = whole(*fresh(arguments.args), **fresh(arguments.named))
        seed_everywhere(number)
        now = arguments.copy()
        for op in ops:
            now = apply(op, op.call, now)
        if digest(now.value) != digest(expected):
            return False
    return True


def fixed_costs(loader: Any, samples: Sequence[CapturedSample]) -> FixedCosts:
    """Return the costs around the ops, from captured samples.

    Medians, as the first sample includes one-time imports and opened files.
    """
    return FixedCosts(
        fetch_s=statistics.median(sample.fetch_s for sample in samples),
        decode_s=statistics.median(sample.decode_s for sample in samples),
        batch_s=_batch_s(loader, [sample.finished for sample in samples]),
    )


def _batch_s(loader: Any, samples: list[Any]) -> float:
    """Return a sample's share of the time to collate and to copy to shared memory."""
    has_batches = loader.batch_sampler is not None

    def make() -> Any:
        batch = loader.collate_fn(samples if has_batches else samples[0])
        return mapped(batch, _shared) if loader.num_workers else batch

    best_s = min(clocked(make)[1] for _ in range(_ROUNDS))
    return best_s / len(samples) if has_batches else best_s


def _shared(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor and leaf.layout is torch.strided:
        return leaf.clone().share_memory_()  # type: ignore[no-untyped-call]
    return leaf
