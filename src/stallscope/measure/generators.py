"""Putting random generators and samplers back to where they were.

Every global generator, and every one that the loader, its samplers, its dataset or its transforms
hold, of every make.
"""

from __future__ import annotations

import copy
import functools
import random
import sys
from typing import TYPE_CHECKING, Any

import torch

from stallscope.measure.attributes import attributes_of
from stallscope.measure.inner import loaders_of
from stallscope.measure.reach import held, own, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def restores(loader: Any) -> Iterator[Callable[[], None]]:
    """What to call to put everything back.

    Args:
        loader: a DataLoader, or something around some.
    """
    yield from _global_generators()
    yield from _generators(loader)
    for inner in loaders_of(loader):
        yield from _sampler_state(inner)


def _global_generators() -> Iterator[Callable[[], None]]:
    torch_state = torch.get_rng_state()
    yield lambda: torch.set_rng_state(torch_state)
    python_state = random.getstate()
    yield lambda: random.setstate(python_state)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        cuda_states = torch.cuda.get_rng_state_all()
        yield lambda: torch.cuda.set_rng_state_all(cuda_states)
    if "numpy" in sys.modules:
        numpy_random = sys.modules["numpy"].random
        numpy_state = numpy_random.get_state()
        yield lambda: numpy_random.set_state(numpy_state)


def _generators(loader: Any) -> Iterator[Callable[[], None]]:
    """Every generator that the loader, its samplers, its dataset or its transforms hold."""
    restores = (state_of(thing) for thing in walk(loader, held))
    return (restore for restore in restores if restore is not None)


def state_of(thing: Any) -> Callable[[], None] | None:
    """What to call to put a generator back to where it is; None for anything else."""
    if isinstance(thing, torch.Generator):
        torch_state = thing.get_state()
        return functools.partial(_quietly, thing.set_state, torch_state)
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        python_state = thing.getstate()
        return lambda: thing.setstate(python_state)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(thing, numpy.random.Generator):
        numpy_state = copy.deepcopy(thing.bit_generator.state)
        return lambda: setattr(thing.bit_generator, "state", numpy_state)
    if numpy is not None and isinstance(thing, numpy.random.RandomState):
        legacy_state = thing.get_state()
        return lambda: thing.set_state(legacy_state)
    return None


def _quietly(put_back: Callable[[Any], object], state: Any) -> None:
    put_back(state)


def _sampler_state(loader: Any) -> Iterator[Callable[[], None]]:
    """A sampler of the user's may count its epochs or shuffle its list: all that is put back."""
    batch_sampler = own(loader).get("batch_sampler")
    for sampler in (own(loader).get("sampler"), batch_sampler, own(batch_sampler).get("sampler")):
        yield attributes_of(sampler)
