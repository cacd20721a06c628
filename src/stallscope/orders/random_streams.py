"""Each op's own stream of random numbers, whatever its place in the order.

Before an op is called for a sample, every generator that it can draw from is put to a place that
depends on the op and the sample alone: torch's, numpy's and Python's global ones, and those that
the op holds or its functions name. So two orders are compared on the same draws. Ops are copied
before, so that what they hold stays as it is; where an op cannot be copied, or a generator is the
function's and not the op's, the user's own is used, and `restored` puts it back.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from stallscope.interrupts import held_back
from stallscope.isolation import snapshot
from stallscope.targets.object_graph import attributes_of, children, functions_of, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_LATER: Final = 1_000_000
"""Rounds from which on no draw is a telling one."""
_STRIDE: Final = 7
_PRIVATE = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class Draw(NamedTuple):
    """Which random numbers are meant."""

    sample: int
    """The number of the sample."""
    round: int = 0
    """Another round gives the same sample other numbers."""


class Stream:
    """An op that can be called again and again on the same draws.

    Args:
        op: the user's.
        number: of the stream.
    """

    def __init__(self, op: Any, number: int) -> None:
        self.copied, self.op = _copy_of(op)
        """Whether it works on a copy, and the op that is called."""
        self.telling: dict[int, int] = {}
        """For samples on which the first draw does nothing, the round of one that does something:
        an op that rarely acts would otherwise be compared on samples that it leaves alone."""
        self._number = number
        self._own = [one for one in walk(self.op, children) if isinstance(one, _PRIVATE)]
        self._named = [one for one in named_by(self.op) if one not in self._own]
        self._restores: list[Callable[[], object]] = []
        self.remember()

    def telling_draw(self, sample: int) -> Draw:
        """The draw on which orders are compared."""
        return Draw(sample, self.telling.get(sample, 0))

    def later_draw(self, sample: int, turn: int) -> Draw:
        """Another draw of a sample, independent of those on which orders are compared.

        An op that rarely acts takes the telling draws of the samples in turn, so that statistics
        of few draws see what it does.
        """
        if not self.telling:
            return Draw(sample, _LATER + turn)
        pool = sorted(self.telling.items())
        return Draw(*pool[(sample * _STRIDE + turn) % len(pool)])

    def seed(self, draw: Draw) -> None:
        """Put every generator that the op can draw from to the start of this draw."""
        seed = _seed(self._number, draw)
        seed_everywhere(seed)
        for generator in (*self._own, *self._named):
            _put(generator, seed)

    def places(self) -> list[Any]:
        """Where each generator stands: what changes when the op draws."""
        numpy_state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
        return [
            torch.default_generator.get_state().numpy().tobytes(),
            (numpy_state["pos"], numpy_state["key"].tobytes()),
            random.getstate(),
            *(_place_of(generator) for generator in (*self._own, *self._named)),
        ]

    def remember(self) -> None:
        """Remember where everything is that is the user's own: what cannot be copied."""
        shared = self._named if self.copied else [*self._named, *self._own]
        self._restores = [put for one in shared if (put := snapshot.state_of(one))]
        if not self.copied:
            self._restores.append(attributes_of(self.op))

    def put_back(self) -> None:
        """Put back what was remembered last."""
        for restore in self._restores:
            restore()


def seed_everywhere(seed: int) -> None:
    """Seed the global generators from which ops draw in this process."""
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed every device
    np.random.seed(seed)  # noqa: NPY002 - the global one, from which ops draw
    random.seed(seed)


@contextmanager
def restored(streams: Callable[[], Iterable[Stream]]) -> Iterator[None]:
    """Put back, after the block, what the streams share with the user.

    Args:
        streams: gives all that there are; also those that are made inside of the block.
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
    """Put back, after the block, the generators that functions name.

    Args:
        functions: those of the dataset, of its ops and of the collate function.
    """
    found = {id(one): one for function in functions for one in named_by(function)}
    restores = [put for one in found.values() if (put := snapshot.state_of(one))]
    try:
        yield
    finally:
        with held_back():
            for restore in restores:
                restore()


def _copy_of(op: Any) -> tuple[bool, Any]:
    if inspect.isfunction(op):
        return True, op  # it holds nothing of its own
    try:
        return True, copy.deepcopy(op)
    except Exception:  # noqa: BLE001 - whatever an op holds: a lock, a file
        return False, op


def named_by(op: Any) -> list[Any]:
    """Find generators that the op's functions name, or have in their closures."""
    found: dict[int, Any] = {}
    for function in functions_of(op):
        try:
            cells = inspect.getclosurevars(function)
        except ValueError:  # a cell that is still empty
            continue
        for value in (*cells.nonlocals.values(), *cells.globals.values()):
            if not inspect.ismodule(value):  # a module's own generator is a global one
                inside = walk(value, children)
                found.update({id(one): one for one in inside if isinstance(one, _PRIVATE)})
    return list(found.values())


def _seed(number: int, draw: Draw) -> int:
    """A number below 2**32, which all generators take."""
    text = f"{number}/{draw.sample}/{draw.round}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")


def _put(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)


def _place_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        state: Any = generator.get_state()
        return repr(state[2:]), state[1].tobytes()
    return generator.getstate()
