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

from stallscope.measure.reach import held, own, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def restores(loader: Any) -> Iterator[Callable[[], None]]:
    """What to call to put everything back.

    Args:
        loader: a DataLoader.
    """
    yield from _global_generators()
    yield from _generators(loader)
    yield from _sampler_state(loader)


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
    restores = (_generator_state(thing) for thing in walk(loader, held))
    return (restore for restore in restores if restore is not None)


def _generator_state(thing: Any) -> Callable[[], None] | None:
    if isinstance(thing, torch.Generator):
        torch_state = thing.get_state()
        return functools.partial(_quietly, thing.set_state, torch_state)
    if isinstance(thing, random.Random):
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
        attributes = own(sampler)
        if attributes:
            contents = {name: _content(value) for name, value in attributes.items()}
            yield functools.partial(_put_back, attributes, dict(attributes), contents)


def _content(value: Any) -> Any:
    """A copy of what can be changed in place."""
    if isinstance(value, (list, set, dict, bytearray)):
        return copy.copy(value)
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if type(value).__module__ == "numpy" and hasattr(value, "copy") else None


def _put_back(attributes: dict[str, Any], before: dict[str, Any], contents: dict[str, Any]) -> None:
    attributes.clear()
    attributes.update(before)
    for name, content in contents.items():
        value = before[name]
        if isinstance(value, (list, bytearray)):
            value[:] = content
        elif isinstance(value, (set, dict)):
            value.clear()
            value.update(content)
        elif content is not None and getattr(value, "ndim", None):
            value[...] = content
