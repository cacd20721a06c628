"""Pipelines that `__getitem__` writes as calls; they are ordered and timed like any other.

In a chain of calls, the first argument of each is the result of the call before. An image and its
mask are two chains. Calls that draw random numbers keep their place. `deferred_calls` runs them.
"""

from __future__ import annotations

import linecache
import math
import time
import types
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from stallscope.hooks import find_ops
from stallscope.loops.cached_values import bytes_of, fresh
from stallscope.targets.loaders import copied
from stallscope.units import count, repr_of
from stallscope.verbs.orders.capture import CapturedSample, decoded, seeded
from stallscope.verbs.orders.deferred_calls import (
    CallSite,
    CodeCall,
    NoticedCalls,
    OrderedCalls,
    PlannedCall,
    kept_shape,
    shape_of,
)
from stallscope.verbs.orders.equivalence import FEWEST_OF_PICTURE, digest
from stallscope.verbs.orders.pipeline import DEEPEST, Op, Place, numbered
from stallscope.verbs.orders.run_ops import OpInput, clocked, states_of
from stallscope.verbs.orders.variant import Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Chain = list[CallSite]


@dataclass(frozen=True, eq=False)
class CallOp:
    """A call as an op; it is called with its chain's value and all calls of the sample."""

    site: CallSite
    text: str
    """Arguments of the first sample."""
    call_site: tuple[str, int]
    """File and line."""
    kept_shape: tuple[type, int] | None
    """Result of `kept_shape` if it is the same for all samples, else None."""
    function: Any = None
    """Function that replaces the called one; None: not replaced."""

    @property
    def __name__(self) -> str:
        return find_ops.name_of(self.function) if self.function else self.site.name

    def __call__(self, value: Any, calls: Mapping[CallSite, CodeCall]) -> Any:
        """Make the call; a sample that skipped the call stays unchanged."""
        call = calls.get(self.site)
        return value if call is None else call.made(value, self.function)

    def __repr__(self) -> str:
        return f"{self.site.name}({self.text})"


class RecordedCalls(NoticedCalls):
    """Dataset that records the calls of a sample, in their original order."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.calls: list[CodeCall] = []
        self.recording_s = 0.0
        """Time of the recording itself, which is none of the dataset's."""
        self._inside: int | None = None

    def called(self, call: CodeCall) -> Any:
        """Make a call, and record it."""
        first = call.first
        if not _is_data(first):
            return call.made(first)
        began_ns = time.perf_counter_ns()
        *_, call.decode_s = decoded(first)
        call.argument, call.inside = fresh(first), self._inside
        self._inside = len(self.calls)
        self.calls.append(call)
        before, inner_s = states_of(), self.recording_s
        call.result, took_s = clocked(lambda: call.made(first))
        call.took_s = took_s - (self.recording_s - inner_s)
        call.draws = states_of() != before
        call.kept_shape = kept_shape(first, call.result)
        self._inside = call.inside
        whole_s = (time.perf_counter_ns() - began_ns) / 1e9
        self.recording_s += whole_s - took_s - call.decode_s
        return call.result

    def rows(self) -> list[list[CodeCall]]:
        """Return rows of calls, each on the result of the call before."""
        calls = self._without_inner()
        sites = [call.site for call in calls]
        sources = [
            next((each for each in reversed(calls[:number]) if each.result is call.first), None)
            for number, call in enumerate(calls)
        ]
        rows: list[list[CodeCall]] = []
        for call, source in zip(calls, sources, strict=True):
            if call.draws or sites.count(call.site) > 1:
                continue
            row = next((row for row in rows if row[-1] is source), None)
            if row is None or sources.count(source) > 1:
                rows.append([call])
            else:
                row.append(call)
        return rows

    def _without_inner(self) -> list[CodeCall]:
        """Return the calls; a method that is a row of calls itself is replaced by that row."""
        opened = {
            after.inside
            for before in self.calls
            for after in self.calls
            if after.first is before.result and after.inside == before.inside
            if after is not before
        }
        return [
            call
            for number, call in enumerate(self.calls)
            if number not in opened and (call.inside is None or call.inside in opened)
        ]


def _is_data(value: Any) -> bool:
    """Return true for an image, a mask, boxes or a signal; short arrays hold labels or sizes."""
    shape = shape_of(value)
    return len(shape) > 1 or math.prod(shape) >= FEWEST_OF_PICTURE


@dataclass(frozen=True, eq=False)
class CallsPlace:
    """Place of the chains: the `__getitem__` of a dataset. Has the interface of `variant.Site`."""

    place: Place
    """Place of the dataset in the loader's dataset."""
    ops: tuple[Op, ...]
    """Calls of all chains; those of one chain are a group."""
    where: None = None
    reader: None = None

    @property
    def text(self) -> str:
        """Place and kind in words."""
        name = type(self.place.value).__name__
        return f"{name}.__getitem__, {count(len(self.chains), 'chain')} of calls"

    @property
    def chains(self) -> list[list[Op]]:
        """Ops of each chain."""
        return [list(chain) for _, chain in groupby(self.ops, lambda op: op.group)]

    def loader_with(self, variant: Variant, loader: Any) -> Any:
        """Return a loader whose dataset makes its calls in the variant's order."""
        ordered = self.ordered(self.place.found_in(loader.dataset), variant)
        return copied(loader, dataset=self.place.filled(loader.dataset, ordered))

    def ordered(self, dataset: Any, variant: Variant) -> OrderedCalls:
        """Return a dataset that makes its calls in the variant's order."""
        plan = {}
        for op in self.ops:
            call = variant.replaced.get(op.position, op.call)
            place = variant.positions.index(op.position)
            plan[call.site] = PlannedCall(op.group, place, call.function, call.kept_shape)
        return OrderedCalls(dataset, plan)

    def found_in(self, loader: Any) -> tuple[CallsPlace | None, list[str]]:
        """Find the same code in another loader; also return the name of that loader's code."""
        inner = self.place.found_in(getattr(loader, "dataset", None))
        is_same = type(inner) is type(self.place.value)
        return (self if is_same else None), [type(inner).__name__]

    def code_of(self, variant: Variant) -> str:
        """Return the lines of each chain that changes, in their new order."""
        lines, sites = [], [op.call.call_site for op in self.ops]
        for chain in self.chains:
            ops = {op.position: op for op in chain}
            order = [position for position in variant.positions if position in ops]
            if order == list(ops) and not set(ops) & variant.replaced.keys():
                continue
            file = PurePath(chain[0].call.call_site[0]).name
            lines.append(f"# {self.text.partition(',')[0]} in {file}: call in this order")
            for position in order:
                call = ops[position].call
                path, line = call.call_site
                source = variant.names.get(position)
                if source is None and sites.count(call.call_site) == 1:
                    source = linecache.getline(path, line).strip()
                # a line with several calls cannot be moved as a whole
                lines.append(f"{source or f'{call.site.name}(...)'}  # line {line}")
        return "\n".join(lines)


def find_calls(
    dataset: Any, indices: Sequence[Any], room_bytes: int
) -> tuple[CallsPlace, list[CapturedSample]] | None:
    """Record the calls of some samples; return the place of the chains, and the samples.

    None: there are no chains. `room_bytes` is for the samples and all intermediate results.
    """
    for path in (("dataset",) * depth for depth in range(DEEPEST)):
        inner = Place((path,), None).found_in(dataset)
        if inner is None:
            return None
        if isinstance(getattr(type(inner), "__getitem__", None), types.FunctionType):
            calls = _in_dataset(Place((path,), inner), dataset, indices, room_bytes)
            if calls is not None:
                return calls
    return None


def _in_dataset(
    place: Place, dataset: Any, indices: Sequence[Any], room_bytes: int
) -> tuple[CallsPlace, list[CapturedSample]] | None:
    recorded: list[list[list[CodeCall]]] = []
    samples: list[CapturedSample] = []
    watched = RecordedCalls(place.value)
    outer = place.filled(dataset, watched)
    for number, index in enumerate(indices):
        watched.calls, watched.recording_s = [], 0.0
        finished, whole_s = clocked(lambda at=index, n=number: seeded(outer, at, n))  # type: ignore[misc]
        rows = watched.rows()
        calls = [call for row in rows for call in row]
        room_bytes -= bytes_of([call.result for call in calls]) + bytes_of(finished)
        if room_bytes < 0 and samples:
            break
        decode_s = sum(call.decode_s for call in calls)
        in_calls_s = sum(call.took_s for call in calls) + decode_s
        fetch_s = max(whole_s - watched.recording_s - in_calls_s, 0.0)
        for call in calls:
            call.first = call.result = None
        recorded.append(rows)
        empty = OpInput((), {})
        samples.append(CapturedSample(empty, decode_s=decode_s, fetch_s=fetch_s, finished=finished))
    by_sample = [{call.site: call for row in rows for call in row} for rows in recorded]
    chains = _merged(recorded)
    while reached := [chain for chain in chains if _is_reached(chain, by_sample)]:
        candidate = CallsPlace(place, _as_ops(reached, by_sample))
        ordered = candidate.ordered(place.value, Variant(tuple(range(len(candidate.ops)))))
        make = partial(seeded, place.filled(dataset, ordered))
        chains, is_right = _tried(reached, ordered, make, zip(indices, samples, strict=False))
        if is_right:
            for sample, beside in zip(samples, by_sample, strict=True):
                firsts = [next(beside[site] for site in row if site in beside) for row in chains]
                sample.input = OpInput(tuple(call.argument for call in firsts), {}, beside)
            return candidate, samples
    return None


def _merged(recorded: list[list[list[CodeCall]]]) -> list[Chain]:
    """Join the rows of all samples, as some samples skip calls."""
    chains: list[Chain] = []
    broken: set[int] = set()
    for rows in recorded:
        used: set[int] = set()
        for row in rows:
            sites = [call.site for call in row]
            chain = next((chain for chain in chains if set(chain) & set(sites)), None)
            if chain is None:
                chains.append(chain := [])
            at = 0
            for site in sites:
                if site not in chain:
                    chain.insert(at, site)
                elif chain.index(site) < at:
                    broken.add(id(chain))
                at = chain.index(site) + 1
            if id(chain) in used:
                broken.add(id(chain))
            used.add(id(chain))
    return [chain for chain in chains if len(chain) > 1 and id(chain) not in broken]


def _is_reached(chain: Chain, by_sample: list[dict[CallSite, CodeCall]]) -> bool:
    """Return false if a sample skips the whole chain: each sample needs a value for it."""
    return all(not calls.keys().isdisjoint(chain) for calls in by_sample)


def _tried(
    chains: list[Chain],
    ordered: OrderedCalls,
    make: Callable[[Any, int], Any],
    pairs: Iterable[tuple[Any, CapturedSample]],
) -> tuple[list[Chain], bool]:
    """Defer calls while making the samples; return the chains, cut if needed, and if they work."""
    is_same = True
    for number, (index, sample) in enumerate(pairs):
        try:
            is_same &= digest(make(index, number)) == digest(sample.finished)
        except Exception:  # noqa: BLE001, PERF203 - the code may do anything with a deferred result
            is_same = False
    pieces: list[Chain] = []
    for chain in chains:
        piece: Chain = []
        for site in chain:
            if piece and any(after == site and first in piece for first, after in ordered.cuts):
                pieces.append(piece)
                piece = []
            piece.append(site)
        pieces.append(piece)
    if pieces == chains:
        # the code may use a result in a way that no cut explains: leave that chain out
        is_right = is_same and not ordered.cuts
        return (chains if is_right else chains[:-1]), is_right
    return [piece for piece in pieces if len(piece) > 1], False


def _as_ops(chains: list[Chain], by_sample: list[dict[CallSite, CodeCall]]) -> tuple[Op, ...]:
    """Return the calls of all chains as ops."""
    rows = [(group, site) for group, chain in enumerate(chains) for site in chain]
    names = numbered([site.name for _, site in rows])
    ops = []
    for position, (group, site) in enumerate(rows):
        first, *others = [calls[site] for calls in by_sample if site in calls]
        is_same = all(call.kept_shape == first.kept_shape for call in others)
        shape = first.kept_shape if is_same else None
        call = CallOp(site, _arguments(first), first.line, shape)
        ops.append(Op(position, names[position], call, group=group))
    return tuple(ops)


def _arguments(call: CodeCall) -> str:
    values = [repr_of(value) for value in call.args]
    values += [f"{name}={repr_of(value)}" for name, value in call.named.items()]
    return ", ".join(values)
