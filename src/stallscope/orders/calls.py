"""Pipelines that `__getitem__` writes as calls; they are ordered and timed like any other.

In a chain of calls, the first argument of each is the result of the call before. An image and its
mask are two chains. Calls that draw random numbers keep their place. `deferred_calls` runs them.
"""

from __future__ import annotations

import linecache
import time
import types
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from stallscope.hooks import find_ops
from stallscope.loops.cached_values import bytes_of, fresh, is_image
from stallscope.orders.deferred_calls import (
    CallPlan,
    CallSite,
    CodeCall,
    Deferring,
    NoticedCalls,
    OrderedCalls,
    Waiting,
)
from stallscope.orders.equivalence import digest
from stallscope.orders.pipeline import Op, Place, numbered
from stallscope.orders.run_ops import OpInput, states_of
from stallscope.orders.watch import CapturedSample, decoded, seeded
from stallscope.targets.loaders import copied
from stallscope.units import count, repr_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stallscope.orders.variant import Variant

_FEWEST: Final = 2
"""Calls of a chain."""
_PLANE: Final = 2
"""Fewest axes of an image or a mask."""
_DEEPEST: Final = 4
"""Datasets nested in one another."""
_ROUNDS: Final = 4
"""Times that chains are cut where the code uses a result, and tried again."""
_LONGEST: Final = 60
"""Characters of a call's arguments."""


@dataclass(eq=False)
class SeenCall:
    """Call during the recording of a sample."""

    call: CodeCall
    first: Any
    result: Any
    file: str
    line: int
    argument: Any = None
    """Copy of the first argument."""
    decode_s: float = 0.0
    took_s: float = 0.0
    draws: bool = False
    """True if the call moved a random generator."""
    inside: int | None = None
    """Number of the call of the method around it."""


@dataclass(frozen=True, eq=False)
class CallOp:
    """A call as an op; its input is the sample and the arguments of all the sample's calls."""

    site: CallSite
    text: str
    """Arguments of the first sample."""
    call_site: tuple[str, int]
    """File and line."""
    function: Any = None
    """Function that replaces the called one; None: not replaced."""

    @property
    def __name__(self) -> str:
        return find_ops.name_of(self.function) if self.function else self.site.name

    def __call__(self, value: Any, beside: Mapping[CallSite, CodeCall]) -> Any:
        """Make the call; a sample that skipped the call stays unchanged."""
        call = beside.get(self.site)
        return value if call is None else call.made(value, self.function)

    def __repr__(self) -> str:
        return f"{self.site.name}({self.text})"


# ---- the calls of a sample -----------------------------------------------------------------------


class SampleRecording:
    """Calls of one sample, in their original order."""

    def __init__(self) -> None:
        self.calls: list[SeenCall] = []
        self._inside: int | None = None

    def called(self, call: CodeCall, first: Any, frame: types.FrameType) -> Any:
        """Make a call, and record it."""
        if not _is_plane(first):
            return call.made(first)
        _, decode_s = decoded(first)
        seen = SeenCall(call, first, None, frame.f_code.co_filename, frame.f_lineno)
        seen.argument, seen.decode_s, seen.inside = fresh(first), decode_s, self._inside
        self._inside = len(self.calls)
        self.calls.append(seen)
        before = states_of()
        seen.result, seen.took_s = _timed(lambda: call.made(first))
        seen.draws = states_of() != before
        self._inside = seen.inside
        return seen.result

    def rows(self) -> list[list[SeenCall]]:
        """Return rows of calls, each on the result of the call before."""
        calls = self._without_inner()
        sites = [seen.call.site for seen in calls]
        usable = [s for s in calls if not s.draws and sites.count(s.call.site) == 1]
        before: dict[int, SeenCall] = {}
        takers: dict[int, list[SeenCall]] = {}
        for number, seen in enumerate(calls):
            source = next((c for c in reversed(calls[:number]) if c.result is seen.first), None)
            if source is not None and _is_plane(source.result):
                takers.setdefault(id(source), []).append(seen)
                before[id(seen)] = source
        rows: list[list[SeenCall]] = []
        for seen in usable:
            source = before.get(id(seen))
            row = next((row for row in rows if row[-1] is source), None)
            if row is None or len(takers[id(source)]) > 1:
                rows.append([seen])
            else:
                row.append(seen)
        return rows

    def _without_inner(self) -> list[SeenCall]:
        """Return the calls; a method that is a row of calls itself is replaced by that row."""
        inner: dict[int, list[SeenCall]] = {}
        for seen in self.calls:
            if seen.inside is not None:
                inner.setdefault(seen.inside, []).append(seen)
        opened = {
            number
            for number, inside in inner.items()
            if any(b.first is a.result for a in inside for b in inside if a is not b)
        }
        return [
            seen
            for number, seen in enumerate(self.calls)
            if number not in opened and (seen.inside is None or seen.inside in opened)
        ]


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began_ns = time.perf_counter_ns()
    result = call()
    return result, (time.perf_counter_ns() - began_ns) / 1e9


def _is_plane(value: Any) -> bool:
    if isinstance(value, Waiting):
        return False
    return is_image(value) or (
        isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim >= _PLANE
    )


# ---- the pipeline --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CallsPlace:
    """Place of the chains: the `__getitem__` of a dataset. Has the interface of `variant.Site`."""

    place: Place
    """Place of the dataset in the loader's dataset."""
    chains: tuple[tuple[Op, ...], ...]
    where: None = None
    reader: None = None
    takes_ops: bool = False

    @property
    def text(self) -> str:
        """Place and kind in words."""
        name = type(self.place.value).__name__
        return f"{name}.__getitem__, {count(len(self.chains), 'chain')} of calls"

    def rewrite(self, position: int, op: Any) -> Any:
        """Return the user's rewrite as a call, with the arguments of the old call."""
        old = next(op for chain in self.chains for op in chain if op.position == position).call
        return CallOp(old.site, old.text, old.call_site, op)

    def plan_of(self, variant: Variant) -> CallPlan:
        """Return the order of the calls in a variant."""
        places = {
            op.call.site: (number, variant.positions.index(op.position))
            for number, chain in enumerate(self.chains)
            for op in chain
        }
        replaced = {op.site: op.function for op in variant.replaced.values()}
        return CallPlan(places, replaced)

    def loader_with(self, variant: Variant, loader: Any) -> Any:
        """Return a loader whose dataset makes its calls in the variant's order."""
        inner = self.place.found_in(loader.dataset)
        ordered = OrderedCalls(inner, self.plan_of(variant))
        return copied(loader, dataset=self.place.filled(loader.dataset, ordered))

    def found_in(self, loader: Any) -> tuple[CallsPlace | None, list[str]]:
        """Find the same code in another loader; also return the name of that loader's code."""
        inner = self.place.found_in(getattr(loader, "dataset", None))
        is_same = type(inner) is type(self.place.value)
        return (self if is_same else None), [type(inner).__name__]

    def code_of(self, variant: Variant) -> str:
        """Return the lines of each chain that changes, in their new order."""
        lines = []
        for chain in self.chains:
            ops = {op.position: op for op in chain}
            order = [position for position in variant.positions if position in ops]
            if order == list(ops) and not set(ops) & variant.replaced.keys():
                continue
            file = PurePath(chain[0].call.call_site[0]).name
            lines.append(f"# {self.text.partition(',')[0]} in {file}: call in this order")
            for position in order:
                path, line = ops[position].call.call_site
                source = variant.names.get(position) or linecache.getline(path, line).strip()
                lines.append(f"{source or ops[position].name}  # line {line}")
        return "\n".join(lines)


class FoundCalls(NamedTuple):
    """Chains of a dataset, and the samples that went through them."""

    place: CallsPlace
    samples: list[CapturedSample]
    inputs: list[list[OpInput]]
    """Inputs of each chain's first call, one per sample."""


def find_calls(dataset: Any, indices: Sequence[Any], room_bytes: int) -> FoundCalls | None:
    """Record the calls of some samples, and find the chains; None: there are none.

    Args:
        dataset: the loader's.
        indices: of the samples.
        room_bytes: memory for the samples and all their intermediate results.
    """
    for path in (("dataset",) * depth for depth in range(_DEEPEST)):
        inner = Place((path,), None).found_in(dataset) if path else dataset
        if inner is None:
            return None
        if not isinstance(getattr(type(inner), "__getitem__", None), types.FunctionType):
            continue
        calls = _in_dataset(Place((path,), inner), dataset, indices, room_bytes)
        if calls is not None:
            return calls
    return None


def _in_dataset(
    place: Place, dataset: Any, indices: Sequence[Any], room_bytes: int
) -> FoundCalls | None:
    recorded: list[list[list[SeenCall]]] = []
    samples: list[CapturedSample] = []
    watched = NoticedCalls(place.value)
    outer = place.filled(dataset, watched)
    room = room_bytes
    for number, index in enumerate(indices):
        watched.session = SampleRecording()
        finished, whole_s = _timed(lambda at=index, n=number: seeded(outer, at, n))  # type: ignore[misc]
        rows = watched.session.rows()
        room -= bytes_of([seen.result for row in rows for seen in row]) + bytes_of(finished)
        if room < 0 and samples:
            break
        inside_s = sum(seen.took_s for row in rows for seen in row)
        decode_s = sum(seen.decode_s for row in rows for seen in row)
        for row in rows:
            for seen in row:
                seen.first = seen.result = None
        empty = OpInput((), {})
        fetch_s = max(whole_s - inside_s - decode_s, 0.0)
        recorded.append(rows)
        samples.append(CapturedSample(empty, decode_s=decode_s, fetch_s=fetch_s, finished=finished))
    chains = _merged(recorded)
    for _ in range(_ROUNDS):
        chains, is_right = _tried(place, dataset, indices[: len(samples)], samples, chains)
        if is_right:
            break
    else:
        return None
    if not chains:
        return None
    return _found(place, chains, recorded, samples)


def _merged(recorded: list[list[list[SeenCall]]]) -> list[list[CallSite]]:
    """Join the rows of all samples, as some samples skip calls."""
    chains: list[list[CallSite]] = []
    broken: list[list[CallSite]] = []
    for rows in recorded:
        used: list[list[CallSite]] = []
        for row in rows:
            sites = [seen.call.site for seen in row]
            chain = next((chain for chain in chains if set(chain) & set(sites)), None)
            if chain is None:
                chain = []
                chains.append(chain)
            at = 0
            for site in sites:
                if site not in chain:
                    chain.insert(at, site)
                elif chain.index(site) < at:
                    broken.append(chain)
                at = chain.index(site) + 1
            if any(chain is earlier for earlier in used):
                broken.append(chain)
            used.append(chain)
    return [
        chain for chain in chains if len(chain) >= _FEWEST and not any(chain is b for b in broken)
    ]


def _tried(
    place: Place,
    dataset: Any,
    indices: Sequence[Any],
    samples: list[CapturedSample],
    chains: list[list[CallSite]],
) -> tuple[list[list[CallSite]], bool]:
    """Defer calls while making the samples; return the chains, cut if needed, and if they work."""
    plan = CallPlan({site: (n, at) for n, row in enumerate(chains) for at, site in enumerate(row)})
    watched = NoticedCalls(place.value)
    outer = place.filled(dataset, watched)
    cuts: set[tuple[CallSite, CallSite]] = set()
    is_same = True
    for number, (index, sample) in enumerate(zip(indices, samples, strict=True)):
        watched.session = Deferring(plan)
        try:
            is_same &= digest(seeded(outer, index, number)) == digest(sample.finished)
        except Exception:  # noqa: BLE001 - the dataset's code may do anything with a deferred result
            is_same = False
        cuts |= watched.session.cuts
    if not cuts:
        # the code uses a result in a way that no cut explains: leave that chain out
        return (chains, True) if is_same else (chains[:-1], False)
    pieces: list[list[CallSite]] = []
    for chain in chains:
        piece: list[CallSite] = []
        for site in chain:
            if piece and any(after == site and first in piece for first, after in cuts):
                pieces.append(piece)
                piece = []
            piece.append(site)
        pieces.append(piece)
    return [piece for piece in pieces if len(piece) >= _FEWEST], False


def _found(
    place: Place,
    chains: list[list[CallSite]],
    recorded: list[list[list[SeenCall]]],
    samples: list[CapturedSample],
) -> FoundCalls:
    """Return the chains as ops, and the samples as their inputs."""
    by_sample = [{seen.call.site: seen for row in rows for seen in row} for rows in recorded]
    names = iter(numbered([site.name for chain in chains for site in chain]))
    ops: list[tuple[Op, ...]] = []
    position = 0
    for chain in chains:
        here = []
        for site in chain:
            seen = next(calls[site] for calls in by_sample if site in calls)
            call = CallOp(site, _arguments(seen.call), (seen.file, seen.line))
            here.append(Op(position, next(names), call))
            position += 1
        ops.append(tuple(here))
    inputs = []
    for chain in chains:
        lane_inputs = []
        for calls in by_sample:
            mine = [calls[site] for site in chain if site in calls]
            beside = {seen.call.site: seen.call for seen in mine}
            lane_inputs.append(OpInput((mine[0].argument,), {}, beside))
        inputs.append(lane_inputs)
    for sample, arguments in zip(samples, inputs[0], strict=True):
        sample.input = arguments
    return FoundCalls(CallsPlace(place, tuple(ops)), samples, inputs)


def _arguments(call: CodeCall) -> str:
    values = [repr_of(value) for value in call.args]
    values += [f"{name}={repr_of(value)}" for name, value in call.named.items()]
    text = " ".join(", ".join(values).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
