"""Running an op on captured samples: its results, its time, and if they can be compared.

Each op runs twice for each sample, on the same draws, in two orders of the samples, and is timed.
An op that gives other data the second time keeps a state, or draws from an unknown generator. Such
an op is comparable only on its inputs in the original pipeline.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import random
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from stallscope import isolation
from stallscope.errors import StallscopeError
from stallscope.hooks.find_ops import own_attributes
from stallscope.interrupts import held_back, no_collection
from stallscope.isolation import seed_everywhere
from stallscope.loops.cached_values import fresh
from stallscope.orders.equivalence import State, digest, layout
from stallscope.targets.object_graph import attributes_of, children, functions_of, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from stallscope.orders.pipeline import Op


_LATER: Final = 1_000_000
"""First round that is never a telling draw."""
_STRIDE: Final = 7
_PRIVATE = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class Draw(NamedTuple):
    """Random numbers of one call."""

    sample: int
    """Number of the sample."""
    round: int = 0
    """Number of the draw for the sample."""


class Stream:
    """An op that can be called repeatedly on the same draws, at any place in the order.

    Before a call for a sample, every generator that the op can draw from is seeded by the op and
    the sample alone: the global ones of torch, numpy and Python, and those that the op holds or its
    functions name. The op is a copy of the user's, which so stays unchanged. If it cannot be
    copied, or a generator belongs to a function, the user's own is used, and `restored` restores
    it.

    Args:
        op: the user's.
        number: of the stream.
    """

    def __init__(self, op: Any, number: int) -> None:
        self.copied, self.op = _copy_of(op)
        """True if the op is a copy, and the op that is called."""
        self.telling: dict[int, int] = {}
        """Round of a draw on which the op changes the sample, for samples unchanged on the first
        draw: otherwise an op that rarely acts would be compared on unchanged samples."""
        self._number = number
        self._own = [held for held in walk(self.op, children) if isinstance(held, _PRIVATE)]
        self._named = [named for named in named_by(self.op) if named not in self._own]
        self._restores: list[Callable[[], object]] = []
        self.remember()

    def telling_draw(self, sample: int) -> Draw:
        """Return the draw on which orders are compared."""
        return Draw(sample, self.telling.get(sample, 0))

    def later_draw(self, sample: int, turn: int) -> Draw:
        """Return another draw of a sample, independent of those on which orders are compared.

        An op that rarely acts takes the telling draws of the samples in turn, so that few draws
        show its effect.
        """
        if not self.telling:
            return Draw(sample, _LATER + turn)
        pool = sorted(self.telling.items())
        return Draw(*pool[(sample * _STRIDE + turn) % len(pool)])

    def seed(self, draw: Draw) -> None:
        """Seed every generator that the op can draw from."""
        seed = _seed(self._number, draw)
        seed_everywhere(seed)
        for generator in (*self._own, *self._named):
            _put(generator, seed)

    def places(self) -> list[Any]:
        """Return the state of each generator, which changes when the op draws."""
        return [
            *global_places(),
            *(_place_of(generator) for generator in (*self._own, *self._named)),
        ]

    def remember(self) -> None:
        """Save the state of the user's own objects, which were not copied."""
        shared = self._named if self.copied else [*self._named, *self._own]
        self._restores = [put for generator in shared if (put := isolation.state_of(generator))]
        if not self.copied:
            self._restores.append(attributes_of(self.op))

    def put_back(self) -> None:
        """Restore the state that was saved last."""
        for restore in self._restores:
            restore()


@contextmanager
def restored(streams: Callable[[], Iterable[Stream]]) -> Iterator[None]:
    """Restore, after the block, the state that the streams share with the user.

    Args:
        streams: returns all streams, also those that are made inside of the block.
    """
    for stream in streams():
        stream.remember()
    try:
        yield
    finally:
        with held_back():
            for stream in streams():
                stream.put_back()


@contextmanager
def named_kept(functions: Iterable[Any]) -> Iterator[None]:
    """Restore, after the block, the generators that functions name.

    Args:
        functions: those of the dataset, of its ops and of the collate function.
    """
    generators = {
        id(generator): generator for function in functions for generator in named_by(function)
    }
    restores = [put for generator in generators.values() if (put := isolation.state_of(generator))]
    try:
        yield
    finally:
        with held_back():
            for restore in restores:
                restore()


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
                inside = walk(value, children)
                generators.update({id(held): held for held in inside if isinstance(held, _PRIVATE)})
    return list(generators.values())


def _seed(number: int, draw: Draw) -> int:
    """Return a seed below 2**32, which all generators take."""
    text = f"{number}/{draw.sample}/{draw.round}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")


def _put(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)


def global_places() -> list[Any]:
    """Return the states of torch's, numpy's and Python's global generators, for comparison."""
    numpy_state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return [
        torch.default_generator.get_state().numpy().tobytes(),
        (numpy_state["pos"], numpy_state["key"].tobytes()),
        random.getstate(),
    ]


def _place_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        state: Any = generator.get_state()
        return repr(state[2:]), state[1].tobytes()
    return generator.getstate()


_CHEAP_S: Final = 0.02
"""Ops that take less time than this for all samples are timed more often."""
_FEWEST_ROUNDS: Final = 2
_MOST_ROUNDS: Final = 5
_MOST_DRAWS: Final = 64
"""Draws that are tried to find a telling one."""
_FEWEST_COUNTED: Final = 3
"""Calls from which a number that grows by one each time is a count of calls."""


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
    """Arguments of the sample's recorded calls, a second argument of `CallOp`; None: other ops."""

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


@dataclass(frozen=True)
class Outcome:
    """Result of an op on some samples."""

    results: tuple[OpInput, ...]
    """Arguments of the next op, one per sample."""
    state: State
    """State of all results."""
    times_s: tuple[float, ...]
    """Shortest time of the op, for each sample."""
    is_random: bool
    """True if the op drew random numbers."""
    unsteady: str
    """Reason why it cannot be compared on other inputs; "": it can."""

    @property
    def seconds(self) -> float:
        """Mean over the samples."""
        return sum(self.times_s) / len(self.times_s)

    def first(self, samples: int) -> Outcome:
        """Return the outcome for the first samples alone."""
        results = self.results[:samples]
        return replace(
            self, results=results, state=state_of(results), times_s=self.times_s[:samples]
        )


def digest_of(inputs: Sequence[OpInput]) -> str:
    """Return the digest of several samples."""
    return digest([(op_input.args, op_input.named) for op_input in inputs])


def state_of(inputs: Sequence[OpInput]) -> State:
    """Return the state of several samples; each layout in memory counts once."""
    layouts = sorted({layout([op_input.args, op_input.named]) for op_input in inputs})
    return State(digest_of(inputs), "/".join(layouts))


def call_op(op: Op, call: Any, op_input: OpInput) -> Any:
    """Call an op as its compose would.

    Args:
        op: with the calling convention.
        call: the op, or a copy of it.
        op_input: its arguments.
    """
    if op.maps_items and len(op_input.args) == 1 and isinstance(op_input.args[0], (list, tuple)):
        return [call(item) for item in op_input.args[0]]
    if op_input.beside is not None:
        return call(*op_input.args, op_input.beside)
    return call(*op_input.args, **op_input.named)


def next_input(op: Op, op_input: OpInput, result: Any) -> OpInput:
    """Return the input of the next op, from an op's result.

    Raises:
        OpResultError: the next op cannot be called with the result.
    """
    if result is None:
        raise OpResultError(
            f"{op.name} returns None, so the op after it gets no sample: let its __call__ return "
            "the sample"
        )
    if op.is_only:
        return OpInput((result,), {}, op_input.beside)
    if op_input.named:
        if isinstance(result, Mapping):
            return OpInput((), dict(result))
    elif len(op_input.args) == 1:
        return OpInput((result,), {}, op_input.beside)
    elif isinstance(result, (tuple, list)) and len(result) == len(op_input.args):
        return OpInput(tuple(result), {})
    raise OpResultError(
        f"{op.name} returns a {type(result).__name__}: let it return as many values as it gets, or "
        "a dictionary if it is called by keyword"
    )


def run_op(op: Op, stream: Stream, inputs: Sequence[OpInput], turn: int = 0) -> list[OpInput]:
    """Call an op once for each sample, on its own draws; the samples stay as they are.

    Args:
        op: with the calling convention.
        stream: the op to call.
        inputs: the samples.
        turn: 0 for the draws on which orders are compared; any other number: independent draws.
    """
    results = []
    for number, op_input in enumerate(inputs):
        stream.seed(stream.later_draw(number, turn) if turn else stream.telling_draw(number))
        results.append(next_input(op, op_input, call_op(op, stream.op, op_input.copy())))
    return results


def measure_op(op: Op, stream: Stream, inputs: Sequence[OpInput]) -> Outcome:
    """Run and time an op on samples, which stay as they are.

    Raises:
        Exception: whatever the op raises.
    """
    numbers = _whole_numbers(stream.op)
    is_random = False
    first = []
    for number, op_input in enumerate(inputs):
        used = op_input.copy()
        stream.seed(stream.telling_draw(number))
        places = stream.places()
        result = call_op(op, stream.op, used)
        is_random = is_random or stream.places() != places
        first.append(next_input(op, op_input, result))
    grown = [now - numbers.get(name, now) for name, now in _whole_numbers(stream.op).items()]
    counts_calls = len(inputs) >= _FEWEST_COUNTED and len(inputs) in grown

    def call(draw: Draw) -> tuple[OpInput, float]:
        used = inputs[draw.sample].copy()  # the op may change its input in place
        stream.seed(draw)
        began_ns = time.perf_counter_ns()
        result = call_op(op, stream.op, used)
        took_s = (time.perf_counter_ns() - began_ns) / 1e9
        return next_input(op, inputs[draw.sample], result), took_s

    draws = [stream.telling_draw(number) for number in range(len(inputs))]
    second = [call(draw)[0] for draw in reversed(draws)][::-1]  # the last sample first
    state = state_of(second)
    is_steady = state.digest == digest_of(first)
    unsteady = f"{op.name} counts its calls" if counts_calls else ""
    if not is_steady:
        unsteady = (
            f"{op.name} gives other data for the same sample and the same random numbers: it keeps "
            "a state between its calls, or draws from an unknown generator"
        )
    return Outcome(
        results=tuple(second if is_steady else first),
        state=state if is_steady else state_of(first),
        times_s=tuple(
            _shortest_s(call, Draw(number), _CHEAP_S / len(inputs)) for number in range(len(inputs))
        ),
        is_random=is_random,
        unsteady=unsteady,
    )


def _shortest_s(call: Callable[[Draw], tuple[OpInput, float]], draw: Draw, cheap_s: float) -> float:
    """Return the shortest of a few successive calls for a sample.

    Each result is dropped, so the input is in the cache and memory is reused, as in the pipeline,
    where the op before has just made the input.
    """
    times_s: list[float] = []
    with no_collection():
        while len(times_s) < _FEWEST_ROUNDS or (
            len(times_s) < _MOST_ROUNDS and sum(times_s) < cheap_s
        ):
            times_s.append(call(draw)[1])
    return min(times_s)


def find_telling_draws(
    op: Op,
    stream: Stream,
    inputs: Sequence[OpInput],
    results: Sequence[OpInput],
    is_over: Callable[[], bool],
) -> int:
    """Look for draws on which a random op changes the sample, for every second sample at least.

    Args:
        op: with the calling convention.
        stream: the op to call; its `telling` is filled.
        inputs: of the op in the original pipeline.
        results: of the op for each input, on the first draw.
        is_over: true once the time is used up.

    Returns:
        Number of samples that the op changes.
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
            stream.seed(Draw(number, turn))
            if (
                digest_of([next_input(op, op_input, call_op(op, stream.op, op_input.copy()))])
                != before
            ):
                acting += 1
                stream.telling[number] = turn
                break
    return acting


def _whole_numbers(op: Any) -> dict[str, int]:
    return {name: value for name, value in own_attributes(op).items() if type(value) is int}
