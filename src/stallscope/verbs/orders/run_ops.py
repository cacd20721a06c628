"""Running an op on captured samples: its results, its time, and if they can be compared.

Each op runs twice for each sample, on the same draws, in two orders of the samples, and is timed.
An op that gives other data the second time keeps a state, or draws from an unknown generator. Such
an op is comparable only on its inputs in the original pipeline.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import pickle
import random
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from stallscope.errors import StallscopeError
from stallscope.hooks.find_ops import own_attributes
from stallscope.interrupts import held_back, no_collection
from stallscope.isolation import as_before
from stallscope.isolation import state_of as restore_of
from stallscope.loops.cached_values import fresh
from stallscope.targets.object_graph import (
    LoaderCallables,
    attributes_of,
    bindings_kept,
    children,
    functions_of,
    walk,
)
from stallscope.verbs.orders.equivalence import State, digest, layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from stallscope.verbs.orders.pipeline import Op

    Draw = tuple[int, int]
    """Number of a sample, and of the draw for it: the random numbers of one call."""


_GLOBAL: Final = (
    torch.default_generator,
    np.random.mtrand._rand,  # noqa: SLF001
    random._inst,  # noqa: SLF001
)
_CHEAP_S: Final = 0.02
"""Calls that take less time than this for all samples are timed more often."""
_FEWEST_ROUNDS, _MOST_ROUNDS = 2, 5
_MOST_DRAWS: Final = 64
"""Draws that are tried to find a telling one."""


class OpResultError(StallscopeError, TypeError):
    """Result of an op with which the next op cannot be called."""


class OpInput(NamedTuple):
    """Arguments of an op.

    One positional argument is replaced by the op's result; several are replaced by a tuple of as
    many; keyword arguments by a dictionary.
    """

    args: tuple[Any, ...]
    named: dict[str, Any]
    beside: Any = None
    """The sample's recorded calls, a second argument of `CallOp`, which works on the value of its
    group in `args`; None: other ops."""

    @property
    def value(self) -> Any:
        """The sample, as the last op of a pipeline returns it."""
        if self.named:
            return self.named
        return self.args[0] if len(self.args) == 1 else self.args

    def copy(self) -> OpInput:
        """Return a copy that an op may change in place."""
        args, named = fresh((self.args, self.named))
        return OpInput(args, named, self.beside)


def clocked(call: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function; return its result, and the seconds."""
    began_ns = time.perf_counter_ns()
    result = call()
    return result, (time.perf_counter_ns() - began_ns) / 1e9


def shortest_s(timed: Callable[[], float], samples: int) -> float:
    """Return the shortest of a few successive calls for one of so many samples, seconds.

    Each result is dropped, so the input is in the cache and memory is reused, as in the pipeline,
    where the op before has just made the input. `timed` makes a call and returns its seconds.
    """
    times_s: list[float] = []
    with no_collection():
        while len(times_s) < _FEWEST_ROUNDS or (
            len(times_s) < _MOST_ROUNDS and sum(times_s) < _CHEAP_S / samples
        ):
            times_s.append(timed())
    return min(times_s)


def digest_of(inputs: Sequence[OpInput]) -> str:
    """Return the digest of several samples."""
    return digest([(op_input.args, op_input.named) for op_input in inputs])


def state_of(inputs: Sequence[OpInput]) -> State:
    """Return the state of several samples; each layout in memory counts once."""
    layouts = sorted({layout([op_input.args, op_input.named]) for op_input in inputs})
    return State(digest_of(inputs), "/".join(layouts))


@dataclass(frozen=True)
class Outcome:
    """Result of an op on some samples."""

    results: tuple[OpInput, ...] = ()
    """Arguments of the next op, one per sample."""
    state: State | None = None
    """State of all results; None: it raised."""
    times_s: tuple[float, ...] = ()
    """Shortest time of the op, for each sample."""
    is_random: bool = False
    """True if the op drew random numbers."""
    unsteady: str = ""
    """Reason why it cannot be compared on other inputs; "": it can."""
    why_not: str = ""
    """Reason why it cannot be applied to these samples; "": it can."""

    @property
    def seconds(self) -> float:
        """Mean over the samples; 0: it raised."""
        return sum(self.times_s) / max(len(self.times_s), 1)

    def first(self, samples: int) -> Outcome:
        """Return the outcome for the first samples alone."""
        results = self.results[:samples]
        return replace(
            self, results=results, state=state_of(results), times_s=self.times_s[:samples]
        )


def own_value(op: Op, op_input: OpInput) -> Any:
    """Return the value that an op works on: of several chains of calls, that of its own."""
    return op_input.value if op_input.beside is None else op_input.args[op.group]


def apply(op: Op, call: Any, op_input: OpInput) -> OpInput:
    """Call an op, or a copy of it, as its compose would; return the input of the next op."""
    args, named, beside = op_input
    if beside is not None:
        result: Any = call(args[op.group], beside)
    elif op.maps_items and len(args) == 1 and isinstance(args[0], (list, tuple)):
        result = [call(item) for item in args[0]]
    else:
        result = call(*args, **named)
    if result is None:
        raise OpResultError(
            f"{op.name} returns None, so the op after it gets no sample: let its __call__ return "
            "the sample"
        )
    if beside is not None:
        return OpInput((*args[: op.group], result, *args[op.group + 1 :]), {}, beside)
    if op.is_only or (len(args) == 1 and not named):
        return OpInput((result,), {})
    if named and isinstance(result, Mapping):
        return OpInput((), dict(result))
    if not named and isinstance(result, (tuple, list)) and len(result) == len(args):
        return OpInput(tuple(result), {})
    raise OpResultError(
        f"{op.name} returns a {type(result).__name__}: let it return as many values as it gets, or "
        "a dictionary if it is called by keyword"
    )


class Stream:
    """An op that can be called repeatedly on the same draws, at any place in the order.

    Before a call for a sample, every generator that the op can draw from is seeded by the op and
    the sample alone: the global ones of torch, numpy and Python, and those that the op holds or its
    functions name. The op is a copy of the user's, which so stays unchanged. If it cannot be
    copied, or a generator belongs to a function, the user's own is used, and `restores`
    restores it.

    Args:
        op: with the calling convention.
        call: object that replaces the user's, with the same draws.
    """

    def __init__(self, op: Op, call: Any = None) -> None:
        self.op = op
        self.copied, self.call = _copy_of(op.call if call is None else call)
        """True if the op is a copy, and the op that is called."""
        self.telling: dict[int, int] = {}
        """Round of a draw on which the op changes the sample, for samples unchanged on the first
        draw: otherwise an op that rarely acts would be compared on unchanged samples."""
        own = _generators_in(self.call)
        named = [generator for generator in named_by(self.call) if generator not in own]
        self._generators = [*_GLOBAL, *own, *named]
        self._shared = named if self.copied else [*named, *own]

    def restores(self) -> list[Callable[[], object]]:
        """Return functions that restore the user's own objects, which were not copied."""
        attributes = [] if self.copied else [attributes_of(self.call)]
        return [*restores_of(self._shared), *attributes]

    def seed(self, draw: Draw) -> None:
        """Seed every generator that the op can draw from."""
        for generator in self._generators:
            _put(generator, _seed(self.op.position, draw))

    def _draw(self, sample: int, *, again: bool = False) -> Draw:
        """Return the draw of a sample on which orders are compared, or another draw.

        An op that rarely acts takes the telling draw of another sample, so that few draws show its
        effect.
        """
        if not again:
            return sample, self.telling.get(sample, 0)
        others = sorted(self.telling.items()) or [(sample, _MOST_DRAWS)]
        return others[(sample + 1) % len(others)]

    def _run(self, op_input: OpInput, draw: Draw) -> tuple[OpInput, float]:
        """Call the op on a copy of a sample; return its result, and the seconds."""
        used = op_input.copy()  # the op may change its input in place
        self.seed(draw)
        return clocked(lambda: apply(self.op, self.call, used))

    def _has_drawn(self, draw: Draw) -> bool:
        """Return true if the last call, on this draw, moved a generator; seeds them again."""
        after = states_of(self._generators)
        self.seed(draw)
        return after != states_of(self._generators)

    def outputs(self, inputs: Sequence[OpInput], *, again: bool = False) -> list[OpInput]:
        """Call the op once for each sample, on the draws for comparing orders, or on others."""
        return [self._run(x, self._draw(n, again=again))[0] for n, x in enumerate(inputs)]

    def measure(self, inputs: Sequence[OpInput]) -> Outcome:
        """Run and time the op on samples, which stay as they are."""
        numbers, is_random = _whole_numbers(self.call), False
        calls = [(x, self._draw(number)) for number, x in enumerate(inputs)]
        first = []
        for op_input, draw in calls:
            first.append(self._run(op_input, draw)[0])
            is_random = is_random or self._has_drawn(draw)
        grown = [now - numbers.get(name, now) for name, now in _whole_numbers(self.call).items()]
        counts_calls = len(inputs) > 1 and len(inputs) in grown
        second = [self._run(*each)[0] for each in reversed(calls)][::-1]  # the last sample first
        state = state_of(second)
        is_steady = state.digest == digest_of(first)
        unsteady = f"{self.op.name} counts its calls" if counts_calls else ""
        if not is_steady:
            unsteady = (
                f"{self.op.name} gives other data for the same sample and the same random numbers: "
                "it keeps a state between its calls, or draws from an unknown generator"
            )
        return Outcome(
            results=tuple(second if is_steady else first),
            state=state if is_steady else state_of(first),
            times_s=tuple(shortest_s(lambda at=at: self._run(*at)[1], len(inputs)) for at in calls),  # type: ignore[misc]
            is_random=is_random,
            unsteady=unsteady,
        )

    def find_telling_draws(
        self,
        inputs: Sequence[OpInput],
        results: Sequence[OpInput],
        is_over: Callable[[], bool],
    ) -> int:
        """Look for draws on which a random op changes the sample, for half of the samples at least.

        Returns the number of samples that the op changes; `results` are those of the first draw.
        """
        acting = 0
        for number, (op_input, result) in enumerate(zip(inputs, results, strict=True)):
            before = digest_of([op_input])
            if digest_of([result]) != before:
                acting += 1
                continue
            is_wanted = acting < (number + 2) // 2
            for turn in range(1, _MOST_DRAWS if is_wanted else 1):
                if is_over():
                    break
                if digest_of([self._run(op_input, (number, turn))[0]]) != before:
                    acting += 1
                    self.telling[number] = turn
                    break
        return acting


@contextmanager
def restored(restores: Iterable[Callable[[], object]]) -> Iterator[None]:
    """Call functions after the block that restore a state."""
    try:
        yield
    finally:
        with held_back():
            for restore in restores:
                restore()


def restores_of(generators: Iterable[Any]) -> list[Callable[[], object]]:
    """Return functions that restore the current states of generators."""
    return [restore for generator in generators if (restore := restore_of(generator))]


def _copy_of(op: Any) -> tuple[bool, Any]:
    if inspect.isfunction(op):
        return True, op  # a function has no state to copy
    try:
        return True, copy.deepcopy(op)
    except Exception:  # noqa: BLE001 - an op may hold a lock or a file
        return False, op


def named_by(op: Any) -> list[Any]:
    """Return generators that the op's functions name, or have in their closures."""
    generators: dict[int, Any] = {}
    for function in functions_of(op):
        try:
            cells = inspect.getclosurevars(function)
        except ValueError:  # a cell that is still empty
            continue
        for value in (*cells.nonlocals.values(), *cells.globals.values()):
            if not inspect.ismodule(value):  # a module's own generator is a global one
                generators.update({id(held): held for held in _generators_in(value)})
    return list(generators.values())


def _generators_in(value: Any) -> list[Any]:
    """Return the generators in an object that can be seeded, so no `random.SystemRandom`."""
    return [held for held in walk(value, children) if restore_of(held)]


def _seed(number: int, draw: Draw) -> int:
    """Return a seed below 2**32, which all generators take."""
    text = f"{number}/{draw[0]}/{draw[1]}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")


def _put(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)


def states_of(generators: Iterable[Any] = _GLOBAL) -> list[Any]:
    """Return the states of generators, for comparison; by default those of the global ones."""
    return [_state(generator) for generator in generators]


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state())
    return generator.getstate()


def _whole_numbers(op: Any) -> dict[str, int]:
    return {name: value for name, value in own_attributes(op).items() if type(value) is int}


class NotComparableError(Exception):
    """An op that keeps a state gets another input than in the original pipeline."""


@contextmanager
def preserving_state(loader: Any) -> Iterator[None]:
    """Restore every generator and sampler, and the attributes of the dataset and its ops."""
    parts = LoaderCallables(loader)
    named = [held for each in parts.functions.values() for held in named_by(each)]
    with (
        as_before(loader),
        restored(restores_of(named)),
        bindings_kept(parts.holders),
    ):
        yield
