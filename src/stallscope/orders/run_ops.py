"""Trying an op on samples: what it gives, how long it takes, and whether it can be compared.

Each op is called twice for each sample, on the same draws, in two orders of the samples, and timed.
An op that gives other data the second time keeps a state, or draws from a generator that nobody can
find. It is then only comparable on the very inputs that it gets in the pipeline as it is.
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from stallscope.loops.cached_values import fresh, versions
from stallscope.orders.captured import OpInput, called, passed_on
from stallscope.orders.digests import digest, layout
from stallscope.orders.random_streams import Draw, Stream
from stallscope.targets.object_graph import own_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stallscope.orders.pipeline import Op


_CHEAP_S: Final = 0.02
"""Ops that are done with all samples sooner than this are called a few times more for each."""
_FEWEST_ROUNDS: Final = 2
_MOST_ROUNDS: Final = 5
_MOST_TRIES: Final = 64
"""Draws that are looked through for one that does something."""
_LOOKED_AT: Final = 3
"""Samples whose inputs are compared after the call; of the others the tensors' version numbers."""
_FEWEST_COUNTED: Final = 3
"""Calls from which on a number that grows by one with each is a count of calls."""


@dataclass(frozen=True)
class Outcome:
    """What an op did to some samples."""

    givens: tuple[OpInput, ...]
    """What the next op is called with, one a sample."""
    digest: str
    """Of all of them."""
    layout: str
    """How they lie in memory."""
    times_s: tuple[float, ...]
    """For each sample the shortest time that the op took."""
    is_random: bool
    """Whether it drew random numbers."""
    changes_input: bool
    """Whether it changes what it is given in place."""
    unsteady: str
    """Why it cannot be compared on other inputs; "" where it can."""

    @property
    def seconds(self) -> float:
        """Mean over the samples."""
        return sum(self.times_s) / len(self.times_s)


def beginning(outcome: Outcome, samples: int) -> Outcome:
    """The outcome for the first samples alone."""
    if samples >= len(outcome.givens):
        return outcome
    givens = outcome.givens[:samples]
    return replace(
        outcome,
        givens=givens,
        digest=digest_of(givens),
        layout=layout_of(givens),
        times_s=outcome.times_s[:samples],
    )


def digest_of(givens: Sequence[OpInput]) -> str:
    """The digest of several samples."""
    return digest([(given.args, given.named) for given in givens])


def layout_of(givens: Sequence[OpInput]) -> str:
    """How several samples lie in memory; samples of one kind count once."""
    return "/".join(sorted({layout([given.args, given.named]) for given in givens}))


def run(op: Op, stream: Stream, givens: Sequence[OpInput], turn: int = 0) -> list[OpInput]:
    """Call an op once for each sample, on its own draws; the samples stay as they are.

    Args:
        op: how it is called.
        stream: what is called.
        givens: the samples.
        turn: 0 for the draws on which orders are compared; another number for independent ones.
    """
    results = []
    for number, given in enumerate(givens):
        kept = OpInput(*fresh(tuple(given)))
        stream.seed(stream.later_draw(number, turn) if turn else stream.telling_draw(number))
        results.append(passed_on(op, given, called(op, stream.op, kept)))
    return results


def measure_op(op: Op, stream: Stream, givens: Sequence[OpInput]) -> Outcome:
    """Try an op on samples, which stay as they are.

    Raises:
        Exception: whatever the op raises.
    """
    first = _First(op, stream, givens)
    calls = _Calls(op, stream, givens, copies=first.changes_input)
    again = calls.again()
    steady = first.digest == digest_of(again)
    return Outcome(
        givens=tuple(again if steady else first.results),
        digest=first.digest,
        layout=layout_of(again),
        times_s=tuple(map(calls.shortest_s, range(len(givens)))),
        is_random=first.is_random,
        changes_input=first.changes_input,
        unsteady=_unsteady(op, steady=steady, counts=first.counts),
    )


def _unsteady(op: Op, *, steady: bool, counts: bool) -> str:
    if not steady:
        return (
            f"{op.name} gives other data for the same sample and the same random numbers: it keeps "
            "a state between its calls, or draws from a generator that was not found"
        )
    return f"{op.name} counts its calls" if counts else ""


def tell(
    op: Op,
    stream: Stream,
    givens: Sequence[OpInput],
    results: Sequence[OpInput],
    is_over: Callable[[], bool],
) -> int:
    """Look for draws on which a random op does something, for every second sample at least.

    Args:
        op: how it is called.
        stream: what is called; its `telling` is filled.
        givens: what it gets in the pipeline as it is.
        results: what it gave for each of them on its first draw.
        is_over: whether there is no time for other draws.

    Returns:
        On how many samples it does something.
    """
    acting = 0
    for number, (given, result) in enumerate(zip(givens, results, strict=True)):
        before = digest_of([given])
        if digest_of([result]) != before:
            acting += 1
            continue
        wanted = acting < (number + 2) // 2
        for turn in range(1, _MOST_TRIES if wanted else 1):
            if is_over():
                break
            kept = OpInput(*fresh(tuple(given)))
            stream.seed(Draw(number, turn))
            if digest_of([passed_on(op, given, called(op, stream.op, kept))]) != before:
                acting += 1
                stream.telling[number] = turn
                break
    return acting


class _First:
    """The first calls of an op, on copies of its inputs; not timed.

    Args:
        op: how it is called.
        stream: what is called.
        givens: the samples.
    """

    def __init__(self, op: Op, stream: Stream, givens: Sequence[OpInput]) -> None:
        self.results: list[OpInput] = []
        self.is_random = self.changes_input = False
        numbers = _whole_numbers(stream.op)
        for number, given in enumerate(givens):
            self._call(op, stream, given, number)
        calls = len(givens)
        grown = [now - numbers.get(name, now) for name, now in _whole_numbers(stream.op).items()]
        self.counts = calls >= _FEWEST_COUNTED and calls in grown
        self.digest = digest_of(self.results)

    def _call(self, op: Op, stream: Stream, given: OpInput, number: int) -> None:
        kept = OpInput(*fresh(tuple(given)))
        looks = number < _LOOKED_AT and not self.changes_input
        before = digest(tuple(kept)) if looks else ""
        tensors = versions(tuple(kept))
        stream.seed(stream.telling_draw(number))
        places = stream.places() if not self.is_random else []
        result = called(op, stream.op, kept)
        if not self.is_random:
            self.is_random = stream.places() != places
        self.changes_input |= versions(tuple(kept)) != tensors
        if looks:
            self.changes_input |= digest(tuple(kept)) != before
        self.results.append(passed_on(op, given, result))


class _Calls:
    """More calls of an op for all samples.

    Args:
        op: how it is called.
        stream: what is called.
        givens: the samples.
        copies: whether each call gets a copy.
    """

    def __init__(self, op: Op, stream: Stream, givens: Sequence[OpInput], *, copies: bool) -> None:
        self._op, self._stream, self._givens, self._copies = op, stream, givens, copies

    def again(self) -> list[OpInput]:
        """What the op gives on the draws on which orders are compared, the last sample first."""
        draws = map(self._stream.telling_draw, range(len(self._givens)))
        return [self._call(draw)[0] for draw in reversed(list(draws))][::-1]

    def shortest_s(self, number: int) -> float:
        """The shortest of a few calls in a row for one sample, on its first draw.

        In a row, and with each result let go: so the input is in the cache and memory is used
        again, as in the pipeline, where the op before has just made what this one gets.
        """
        times_s: list[float] = []
        each_s = _CHEAP_S / len(self._givens)
        with _no_collection():
            while len(times_s) < _FEWEST_ROUNDS or (
                len(times_s) < _MOST_ROUNDS and sum(times_s) < each_s
            ):
                times_s.append(self._call(Draw(number))[1])
        return min(times_s)

    def _call(self, draw: Draw) -> tuple[OpInput, float]:
        """What the op gives for a sample, and how long it takes."""
        given = self._givens[draw.sample]
        kept = OpInput(*fresh(tuple(given))) if self._copies else given
        self._stream.seed(draw)
        began_ns = time.perf_counter_ns()
        result = called(self._op, self._stream.op, kept)
        took_s = (time.perf_counter_ns() - began_ns) / 1e9
        return passed_on(self._op, given, result), took_s


def _whole_numbers(op: Any) -> dict[str, int]:
    return {name: value for name, value in own_attributes(op).items() if type(value) is int}


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection falls into a call that is timed."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
