"""Cutting `__getitem__` in two: what goes into the dataset's transforms, and the rest.

A cut watches the calls of the ops that a dataset holds, while it makes a sample: what went in, what
came out, and where that stands in the sample. Later the sample can be made again from what went in,
by calling the ops alone. That is only right if nothing else happens to what comes out, so a cut
checks that each result is found, as the very same object, in the sample or in a later call.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stallscope.hooks import find_ops
from stallscope.loops.cached_values import fresh, leaves, mapped, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stallscope.hooks.find_ops import Slot


_PLAIN: Final = (str, bytes, int, float, type(None))
"""Equal ones may be one object without having come the same way."""


@dataclass(frozen=True, slots=True)
class DeferredResult:
    """Stands for what a call gave, or for an item of it."""

    call: int
    item: Any = None
    """Its place or key; None: all of it."""

    def of(self, results: list[Any]) -> Any:
        """What it stands for."""
        result = results[self.call]
        return result if self.item is None else result[self.item]


@dataclass(frozen=True)
class DeferredCall:
    """One call of an op, without the op."""

    slot: int
    """Which of the cut's slots."""
    given: Any
    """Positional arguments and keyword arguments; a `Result` where a result went in again."""


@dataclass
class Unfinished:
    """A sample before its transforms."""

    calls: list[DeferredCall] = field(default_factory=list)
    sample: Any = None
    """The finished sample with a `Result` in each place of a result."""
    changed: bool = False
    """Whether an op changed its input in place."""


class Cut:
    """Where the samples of a map-style dataset can be cut."""

    def __init__(self, dataset: Any) -> None:
        self._slots = [slot for one in find_ops.datasets(dataset) for slot in _ops(one)]

    def __bool__(self) -> bool:
        return bool(self._slots)

    def make(self, get: Callable[[], Any]) -> tuple[Any, Unfinished | None]:
        """A sample, and the same before its transforms; None where it cannot be cut."""
        watch = _Watch()
        with _replaced(self._slots, watch.op):
            sample = get()
        return sample, watch.unfinished(sample)

    def finish(self, half: Unfinished, *, copies: bool) -> Any:
        """The sample again, by calling the ops: on copies, where these may change their input."""
        results: list[Any] = []
        for call in half.calls:
            given = fresh(call.given) if copies else call.given
            args, named = _with_results(given, results)
            results.append(self._slots[call.slot].value(*args, **named))
        return _with_results(half.sample, results)


def _ops(dataset: Any) -> Iterator[Slot]:
    """The slots of a dataset's own that hold what is done to a sample; a target's is not meant."""
    for slot in find_ops.slots(dataset):
        is_held = slot.owner is dataset and not find_ops.is_own_part(dataset, slot.value)
        if is_held and slot.name != "target_transform":
            stage = find_ops.stage_of(slot)
            if stage.kind == "transform":
                yield slot


@contextmanager
def _replaced(slots: list[Slot], watcher: Callable[[int, Slot], Any]) -> Iterator[None]:
    """Put a watcher into each slot, past the class's own `__setattr__`."""
    try:
        for number, slot in enumerate(slots):
            vars(slot.owner)[slot.name] = watcher(number, slot)
        yield
    finally:
        for slot in slots:
            vars(slot.owner)[slot.name] = slot.value


class _Watch:
    """The calls of one sample's ops."""

    def __init__(self) -> None:
        self._half = Unfinished()
        self._results: list[Any] = []

    def op(self, number: int, slot: Slot) -> _SplittingOp:
        """What stands in for an op while a sample is made."""

        def call(*args: Any, **named: Any) -> Any:
            given = _by_result((args, named), self._results)
            kept = fresh(given)
            result = slot.value(*args, **named)
            self._half.changed |= not same(kept, given)
            self._half.calls.append(DeferredCall(number, kept))
            self._results.append(result)
            return result

        return _SplittingOp(slot.value, call)

    def unfinished(self, sample: Any) -> Unfinished | None:
        """The sample before its transforms, if each result is found again."""
        self._half.sample = _by_result(sample, self._results)
        used = {number for call in self._half.calls for number in _numbers(call.given)}
        used |= set(_numbers(self._half.sample))
        return self._half if self._results and used == set(range(len(self._results))) else None


class _SplittingOp:
    """Answers as the op that it stands in for, but is called through a watcher."""

    def __init__(self, op: Any, call: Callable[..., Any]) -> None:
        self._op = op
        self._call = call

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._call(*args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


def _by_result(value: Any, results: list[Any]) -> Any:
    """The value with a `Result` in the place of each object that is a result, or an item of one."""
    found = None if isinstance(value, _PLAIN) else _found(value, results)
    if found is not None:
        return found
    if type(value) is dict:
        return {key: _by_result(one, results) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_by_result(one, results) for one in value)
    return value


def _found(value: Any, results: list[Any]) -> DeferredResult | None:
    for call, result in reversed(list(enumerate(results))):
        if result is value:
            return DeferredResult(call)
        for place, item in _items(result):
            if item is value:
                return DeferredResult(call, place)
    return None


def _items(result: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(result, dict):
        return result.items()
    return enumerate(result) if isinstance(result, (list, tuple)) else ()


def _with_results(value: Any, results: list[Any]) -> Any:
    return mapped(
        value, lambda leaf: leaf.of(results) if isinstance(leaf, DeferredResult) else leaf
    )


def _numbers(value: Any) -> list[int]:
    return [leaf.call for leaf in leaves(value) if isinstance(leaf, DeferredResult)]
