"""Finding a loader's pipeline, and capturing the samples on which its ops are run.

A list and a library's compose are rows of ops for sure. Any other object counts as such a row only
if calling its ops in turn gives the dataset's data.
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
"""Samples on which a row of ops has to give its pipeline's data."""
_MOST_BATCHES: Final = 1_000
_ROUNDS: Final = 4
"""Times that a batch is collated."""


class NoPipelineError(StallscopeError, ValueError):
    """The dataset calls nothing that has an order; the message lists what it holds."""


def capture(
    loader: Any, samples: int, room_bytes: int
) -> tuple[Site, list[CapturedSample], list[str]]:
    """Find the pipeline of a loader, and capture samples for it.

    Args:
        loader: torch's own, map-style.
        samples: number of samples, in the order of its sampler.
        room_bytes: memory for the samples and all their intermediate results.

    Returns:
        The pipeline's place, the samples, and notes on what was left out.

    Raises:
        NoPipelineError: there is no pipeline that can be split into ops.
        UnsupportedError: the dataset is a stream.
    """
    if cached_loaders.is_stream(loader):
        raise UnsupportedError(
            f"the dataset ({type(loader.dataset).__name__}) is a stream, whose samples cannot be "
            "read twice: give a loader over a map-style dataset with the same transforms"
        )
    held = places(loader.dataset)
    reading = readers(loader.dataset)
    indices = first_indices(loader, samples)
    try:
        watched = watch(loader.dataset, held, indices, reading)
    except StallscopeError:
        raise
    except Exception as error:
        for index in indices:
            loader.dataset[index]  # raises the exception again, if it is the user's own
        raise NoPipelineError(
            f"{type(loader.dataset).__name__} does more than call its pipeline ({error}); a cache "
            "does, for example: give a loader over a plain dataset with the same transforms"
        ) from error
    numbers, notes = _longest(loader, held, watched, indices)
    place = _row(held, numbers)
    captured = _through(watched.seen, numbers)
    chain, reasons = _ops_of(place, [sample.input for sample in captured])
    notes += reasons
    each = max(bytes_of([sample.input.value, sample.finished]) for sample in captured)
    fitting = max(room_bytes // (each * (len(chain.ops) + 2)), 1)
    if fitting < len(captured):
        notes.append(f"only {count(fitting, 'sample')} were used: each needs {size(each)}")
        captured = captured[:fitting]
    notes += _beside(held, watched, numbers)
    first, *others = {sample.reader for sample in captured}
    reader = None if others or first is None else reading[first]
    return Site(place, chain, captured[0].where, reader), captured, notes


def first_indices(loader: Any, samples: int) -> list[Any]:
    """Return the indices of the first samples of the next batches."""
    if loader.batch_sampler is None:
        return cached_loaders.next_indices(loader, samples)
    batches = min(-(-samples // (loader.batch_size or 1)), _MOST_BATCHES)
    indices = list(flat.from_iterable(cached_loaders.next_indices(loader, batches)))
    return indices[:samples]


def _through(seen: dict[int, list[CapturedSample]], numbers: Sequence[int]) -> list[CapturedSample]:
    """Return the samples that went through places that are called in turn."""
    return [
        replace(first, where=last.where, result=last.result, generators=last.generators)
        for first, last in zip(seen[numbers[0]], seen[numbers[-1]], strict=True)
    ]


def _beside(held: list[Place], watched: Watched, numbers: Sequence[int]) -> list[str]:
    """Return a note on the places that were left out, and why."""

    def named(these: Collection[int]) -> str:
        return ", ".join(
            f"{held[number].text} ({share(watched.shares[number])})" for number in these
        )

    others = [number for number in watched.seen if number not in numbers]
    if not others:
        return []
    note = (
        f"only {named(numbers)} was measured (shares of a sample's time). The dataset also calls "
        f"{named(others)}, but for other samples, on another value, or with its own code in "
        "between. Put all ops into one Compose to have them ordered together"
    )
    return [note]


def _longest(
    loader: Any, held: list[Place], watched: Watched, indices: list[Any]
) -> tuple[list[int], list[str]]:
    """Return the place, or row of places, with most ops that each sample goes through once.

    Returns:
        Numbers of the places, and notes on rows that cannot be ordered.

    Raises:
        NoPipelineError: there is none.
    """
    once = [[number] for number in watched.seen if number not in watched.several]
    notes: list[str] = []

    def ops_in(numbers: list[int]) -> int:
        return len(Chain(_row(held, numbers).value).ops)

    for numbers in sorted(
        (*_rows(watched.links), *once), key=lambda numbers: (-ops_in(numbers), numbers)
    ):
        row = _row(held, numbers)
        if not isinstance(row, Row):
            return numbers, notes
        samples = _through(watched.seen, numbers)
        if _is_all_that_counts(row, loader.dataset, indices, samples):
            return numbers, notes
        notes.append(
            f"{row.text} are called one after the other, but cannot change places: the sample also "
            "depends on a result before the last, or on the attribute that holds an op"
        )
    raise NoPipelineError(_why_none(loader, held, watched))


def _row(held: list[Place], numbers: Sequence[int]) -> Place | Row:
    chosen = [held[number] for number in numbers]
    return chosen[0] if len(chosen) == 1 else Row(tuple(chosen))


def _rows(links: set[tuple[int, int]]) -> list[list[int]]:
    """Join links to the longest possible rows."""
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
    """Return true if finished samples depend on the result of a row alone.

    Tested by a replay: the first place returns the result of the last, and the others pass it on.
    Code that uses an intermediate result, or the settings of an op, then gives another sample.
    """
    played = row.filled(dataset, Player(samples))
    try:
        return all(
            digest(seeded(played, index, number)) == digest(sample.finished)
            for number, (index, sample) in enumerate(zip(indices, samples, strict=False))
        )
    except Exception:  # noqa: BLE001 - the dataset's code may do anything with an odd value
        return False


def _why_none(loader: Any, held: list[Place], watched: Watched) -> str:
    """Return why a dataset has no pipeline, and what to do."""
    dataset = loader.dataset
    name = type(dataset).__name__
    if watched.seen:
        called_twice = ", ".join(held[number].text for number in watched.seen)
        return (
            f"{name} calls {called_twice} several times per sample, or not all of its parts in "
            "turn, so there is no single order: give a loader over a dataset that calls it once "
            "per sample, and use the best order for all calls"
        )
    if callable(getattr(dataset, "set_transform", None)):
        return (
            f"{name} calls its function (set_transform) on whole columns of a batch, so ops cannot "
            "be compared on samples: give a loader over a dataset that calls a Compose of these "
            "ops on each sample"
        )
    hints = f"; it holds {', '.join(place.text for place in held)}, uncalled" if held else ""
    called = [
        call
        for inner in find_ops.datasets(dataset)
        for call in calls_in(getattr(type(inner), "__getitem__", None), inner)
    ]
    if called:
        hints += f"; its own code calls {', '.join(dict.fromkeys(called))}, which it does not hold"
    batched = [slot.hint for slot in find_ops.slots(loader.collate_fn)]
    if batched:
        hints += (
            f"; the collate function holds {', '.join(batched)}, which work on batches: only ops "
            "on samples are ordered"
        )
    return (
        f"no pipeline was found in {name}: its __getitem__ calls no transform that it holds, and "
        f"no functions of which one takes first what the other returns{hints}"
    )


def _ops_of(place: Place | Row, givens: list[OpInput]) -> tuple[Chain, list[str]]:
    """Return the pipeline's ops, if calling them in turn gives its data; else one op."""
    chain = Chain(place.value)
    if chain.is_known or (len(chain.ops) == 1 and chain.ops[0].call is place.value):
        return chain, []
    why_not = _why_not_replayed(chain, givens[:_CHECKED])
    if not why_not:
        return chain, []
    note = (
        f"{place.text} is treated as one op: calling its {count(len(chain.ops), 'part')} in turn "
        f"gives another result ({why_not})"
    )
    return Chain(place.value, whole=True), [note]


def _why_not_replayed(chain: Chain, givens: list[OpInput]) -> str:
    """Return why a row of ops is not equal to a pipeline; "": it is equal."""
    try:
        whole, parts = copy.deepcopy(chain.value), copy.deepcopy(chain.value)
    except Exception as error:  # noqa: BLE001 - an op may hold a lock or a file
        return f"it cannot be copied for that test: {said_by(error):.100}"
    ops = Chain(parts).ops
    for number, arguments in enumerate(givens):
        seed_everywhere(number)
        expected = whole(*fresh(arguments.args), **fresh(arguments.named))
        seed_everywhere(number)
        now = arguments.copy()
        op = ops[0]
        try:
            for op in ops:
                now = next_input(op, now, call_op(op, op.call, now))
        except OpResultError:
            raise
        except Exception as error:  # noqa: BLE001 - then it is not a row of ops
            return f"{op.name} raises {type(error).__name__}: {said_by(error):.100}"
        if digest(now.value) != digest(expected):
            return "the data differs"
    return ""


def fixed_costs(loader: Any, samples: Sequence[CapturedSample]) -> FixedCosts:
    """Return the costs around the ops, from captured samples.

    Medians, as the first sample includes one-time imports and opened files.

    Args:
        loader: with the collate function.
        samples: finished.
    """
    return FixedCosts(
        fetch_s=statistics.median(sample.fetch_s for sample in samples),
        decode_s=statistics.median(sample.decode_s for sample in samples),
        batch_s=_batch_s(loader, [sample.finished for sample in samples]),
    )


def _batch_s(loader: Any, samples: list[Any]) -> float:
    """Return a sample's share of the time to collate and to copy to shared memory."""
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
