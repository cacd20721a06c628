"""Finding a loader's pipeline, and capturing the samples on which its ops are run.

What is a row of ops for sure is a list or a library's compose; all else is believed if trying it
gives what the dataset gives.
"""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import replace
from itertools import chain as flat
from typing import TYPE_CHECKING, Any, Final

import torch

from stallscope.errors import StallscopeError, UnsupportedError
from stallscope.hooks import find_ops
from stallscope.isolation import seed_everywhere
from stallscope.loops import cached_loaders
from stallscope.loops.cached_values import bytes_of, fresh, mapped
from stallscope.orders.equivalence import digest
from stallscope.orders.pipeline import Chain, Row, calls_in, places, readers
from stallscope.orders.result import FixedCosts
from stallscope.orders.run_ops import OpInput, OpResultError, call_op, next_input
from stallscope.orders.variant import Site
from stallscope.orders.watch import CapturedSample, Player, Watched, seeded, watch
from stallscope.units import count, said_by, share, size

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from stallscope.orders.pipeline import Place

_CHECKED: Final = 3
"""Samples on which a row of ops has to give what its pipeline gives."""
_MOST_BATCHES: Final = 1_000
_ROUNDS: Final = 4
"""Times that a batch is collated."""


class NoPipelineError(StallscopeError, ValueError):
    """The dataset calls nothing that could be put in another order; says what was found."""


def capture(
    loader: Any, samples: int, room_bytes: int
) -> tuple[Site, list[CapturedSample], list[str]]:
    """Find the pipeline of a loader, and capture samples for it.

    Args:
        loader: torch's own, map-style.
        samples: how many, in the order of its sampler.
        room_bytes: what the samples may need in memory at all points of their way.

    Returns:
        Where it works; what went through it; and what was left out, in sentences.

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
    indices = first_indices(loader, samples)
    try:
        watched = watch(loader.dataset, found, indices, reading)
    except StallscopeError:
        raise
    except Exception as error:
        for index in indices:
            loader.dataset[index]  # the user's own exception, if it is one, leaves from here
        raise NoPipelineError(
            f"{type(loader.dataset).__name__} does more with its pipeline than to call it "
            f"({error}), as one that keeps finished parts does: give a loader over a plain dataset "
            "with the same transforms"
        ) from error
    numbers, notes = _longest(loader, found, watched, indices)
    place = _row(found, numbers)
    captured = _through(watched.seen, numbers)
    chain, more = _ops_of(place, [one.given for one in captured])
    notes += more
    each = max(bytes_of([one.given.value, one.finished]) for one in captured)
    fitting = max(room_bytes // (each * (len(chain.ops) + 2)), 1)
    if fitting < len(captured):
        notes.append(f"only {count(fitting, 'sample')} were used: each needs {size(each)}")
        captured = captured[:fitting]
    notes += _beside(found, watched, numbers)
    first, *others = {one.reader for one in captured}
    reader = None if others or first is None else reading[first]
    return Site(place, chain, captured[0].where, reader), captured, notes


def first_indices(loader: Any, samples: int) -> list[Any]:
    """Return the indices of the first samples of the next batches."""
    if loader.batch_sampler is None:
        return cached_loaders.next_indices(loader, samples)
    batches = min(-(-samples // (loader.batch_size or 1)), _MOST_BATCHES)
    found = list(flat.from_iterable(cached_loaders.next_indices(loader, batches)))
    return found[:samples]


def _through(seen: dict[int, list[CapturedSample]], numbers: Sequence[int]) -> list[CapturedSample]:
    """Return what went through places that are called in turn."""
    return [
        replace(first, where=last.where, result=last.result, generators=last.generators)
        for first, last in zip(seen[numbers[0]], seen[numbers[-1]], strict=True)
    ]


def _beside(found: list[Place], watched: Watched, numbers: Sequence[int]) -> list[str]:
    """Say which places were left out, and why."""

    def named(these: Collection[int]) -> str:
        return ", ".join(f"{found[one].text} ({share(watched.shares[one])})" for one in these)

    others = [number for number in watched.seen if number not in numbers]
    if not others:
        return []
    note = (
        f"only {named(numbers)} was looked at: the dataset also calls {named(others)} for other "
        "samples or on another value, or its own code stands in between (shares of a sample's "
        "time); ops are ordered together where each gets, for every sample, what the one before "
        "gives, as in one Compose"
    )
    return [note]


def _longest(
    loader: Any, found: list[Place], watched: Watched, indices: list[Any]
) -> tuple[list[int], list[str]]:
    """The place, or the row of places, with most ops that each sample goes through once.

    Args:
        loader: the user's.
        found: the places.
        watched: what was seen of them.
        indices: of the samples.

    Returns:
        Their numbers, and which row had to be left alone, in sentences.

    Raises:
        NoPipelineError: there is none.
    """
    once = [[number] for number in watched.seen if number not in watched.several]
    notes: list[str] = []

    def ops_in(numbers: list[int]) -> int:
        return len(Chain(_row(found, numbers).value).ops)

    for numbers in sorted((*_rows(watched.links), *once), key=lambda one: (-ops_in(one), one)):
        row = _row(found, numbers)
        if not isinstance(row, Row):
            return numbers, notes
        samples = _through(watched.seen, numbers)
        if _is_all_that_counts(row, loader.dataset, indices, samples):
            return numbers, notes
        notes.append(
            f"{row.text} are called one after the other, but were not put in another order: the "
            "sample also depends on what one of them gives before the last, or on which of them "
            "stands where"
        )
    raise NoPipelineError(_why_none(loader, found, watched))


def _row(found: list[Place], numbers: Sequence[int]) -> Place | Row:
    chosen = [found[number] for number in numbers]
    return chosen[0] if len(chosen) == 1 else Row(tuple(chosen))


def _rows(links: set[tuple[int, int]]) -> list[list[int]]:
    """Join links to rows, as long as they get."""
    after = dict(links)
    rows = []
    for first in after.keys() - set(after.values()):
        row = [first]
        while row[-1] in after:
            row.append(after[row[-1]])
        rows.append(row)
    return rows


def _is_all_that_counts(
    row: Row, dataset: Any, indices: list[Any], samples: list[CapturedSample]
) -> bool:
    """Return whether finished samples depend on the result of a row alone.

    That is tried: the first of its places gives at once what the last gave, and the others pass it
    on. Code that keeps what comes in between, or asks an op for its settings, shows.
    """
    played = row.filled(dataset, Player(samples))
    try:
        return all(
            digest(seeded(played, index, number)) == digest(sample.finished)
            for number, (index, sample) in enumerate(zip(indices, samples, strict=False))
        )
    except Exception:  # noqa: BLE001 - the dataset's code may do anything with an odd value
        return False


def _why_none(loader: Any, found: list[Place], watched: Watched) -> str:
    """Say why a dataset has no pipeline, and what to do."""
    dataset = loader.dataset
    name = type(dataset).__name__
    if watched.seen:
        called_twice = ", ".join(found[number].text for number in watched.seen)
        return (
            f"{called_twice} is called several times for one sample of {name}, or not by all of "
            "its parts in turn, so there is no one order: give a loader over a dataset that calls "
            "it once for each sample, and use the order that is found for all calls"
        )
    if callable(getattr(dataset, "set_transform", None)):
        return (
            f"{name} gives its function (set_transform) whole columns of a batch, so there are no "
            "samples on which ops could be compared: give a loader over a dataset that calls a "
            "Compose of these ops on each of its samples"
        )
    held = f"; it holds {', '.join(place.text for place in found)}, uncalled" if found else ""
    called = [
        call
        for inner in find_ops.datasets(dataset)
        for call in calls_in(getattr(type(inner), "__getitem__", None), inner)
    ]
    if called:
        held += f"; its own code calls {', '.join(dict.fromkeys(called))}, which stand in no place"
    batched = [slot.hint for slot in find_ops.slots(loader.collate_fn)]
    if batched:
        held += (
            f"; the collate function holds {', '.join(batched)}, which work on batches: only ops "
            "on samples are ordered"
        )
    return (
        f"no pipeline was found in {name}: its __getitem__ calls no transform that it holds, and "
        f"no functions of which one takes first what the other returns{held}"
    )


def _ops_of(place: Place | Row, givens: list[OpInput]) -> tuple[Chain, list[str]]:
    """Return the pipeline's ops, if calling them in turn gives what it gives; else one op."""
    chain = Chain(place.value)
    if chain.is_known or (len(chain.ops) == 1 and chain.ops[0].call is place.value):
        return chain, []
    why_not = _why_not_replayed(chain, givens[:_CHECKED])
    if not why_not:
        return chain, []
    note = (
        f"{place.text} is taken as one op: calling its {count(len(chain.ops), 'part')} in turn "
        f"does not give what it gives ({why_not})"
    )
    return Chain(place.value, whole=True), [note]


def _why_not_replayed(chain: Chain, givens: list[OpInput]) -> str:
    """Say why a row of ops is not what a pipeline does; "" where it is."""
    try:
        whole, parts = copy.deepcopy(chain.value), copy.deepcopy(chain.value)
    except Exception as error:  # noqa: BLE001 - whatever an op holds: a lock, a file
        return f"it cannot be copied to try that: {said_by(error):.100}"
    ops = Chain(parts).ops
    for number, given in enumerate(givens):
        seed_everywhere(number)
        expected = whole(*fresh(given.args), **fresh(given.named))
        seed_everywhere(number)
        now = given.copy()
        op = ops[0]
        try:
            for op in ops:
                now = next_input(op, now, call_op(op, op.call, now))
        except OpResultError:
            raise
        except Exception as error:  # noqa: BLE001 - it is no row of ops, then
            return f"{op.name} raises {type(error).__name__}: {said_by(error):.100}"
        if digest(now.value) != digest(expected):
            return "it gives other data"
    return ""


def fixed_costs(loader: Any, samples: Sequence[CapturedSample]) -> FixedCosts:
    """Take the costs around the ops from captured samples.

    The first sample pays for what is imported or opened once, so medians are taken.

    Args:
        loader: whose collate function it is.
        samples: finished.
    """
    return FixedCosts(
        fetch_s=statistics.median(one.fetch_s for one in samples),
        decode_s=statistics.median(one.decode_s for one in samples),
        batch_s=_batch_s(loader, [one.finished for one in samples]),
    )


def _batch_s(loader: Any, samples: list[Any]) -> float:
    """Time a sample's share of collating and of copying to shared memory."""
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
