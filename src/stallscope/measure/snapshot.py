"""Putting back what an active experiment moves: generators, samplers, modules, optimizers.

An experiment iterates the user's loader and may run the user's training step. Afterwards all
random generators stand where they stood, and everything that trains and can be reached from the
step is as it was. What was found is named, and so is that nothing was found.
"""

from __future__ import annotations

import copy
import functools
import inspect
import random
import sys
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.utils.data import DataLoader

from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEEPEST: Final = 4
_MOST: Final = 64
_PLAIN: Final = (str, bytes, int, float, bool, type(None), type)


@contextmanager
def as_before(loader: Any, step: Any = None) -> Iterator[tuple[str, ...]]:
    """Put everything back after the block, also when it fails.

    Args:
        loader: a DataLoader; its generators and its samplers' state are put back.
        step: the training step; what trains and can be reached from it is put back.

    Yields:
        Sentences on what was found in the step.
    """
    trained = trainable(step)
    restores = [
        *_global_generators(),
        *_generators(loader),
        *_sampler_state(loader),
        *(_training_state(thing) for thing in trained),
    ]
    try:
        yield _say(step, trained)
    finally:
        with held_back():
            for restore in restores:
                restore()


def trainable(step: Any) -> list[Any]:
    """Modules, optimizers, schedulers and scalers that a step can reach.

    Looks at its bound object, its closure, the arguments of a partial, and the globals it names.
    """
    return [thing for thing in _walk(step, _reached) if _trains(thing)]


def _walk(start: Any, inside: Callable[[Any], list[Any]]) -> Iterator[Any]:
    """Everything that can be reached, each once, the nearest first."""
    seen: dict[int, Any] = {}
    todo = deque([(start, 0)])
    while todo:
        thing, depth = todo.popleft()
        if id(thing) in seen or isinstance(thing, _PLAIN):
            continue
        seen[id(thing)] = thing
        yield thing
        if depth < _DEEPEST:
            todo.extend((inner, depth + 1) for inner in inside(thing))


def _trains(thing: Any) -> bool:
    stateful = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
    return stateful and not isinstance(thing, (type, DataLoader))


def _reached(thing: Any) -> list[Any]:
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if inspect.ismethod(thing):
        return [thing.__self__, thing.__func__]
    if inspect.isfunction(thing):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if _is_set(cell)]
        names = [thing.__globals__.get(name) for name in thing.__code__.co_names]
        return [*cells, *(thing.__defaults__ or ()), *names]
    if isinstance(thing, nn.Module):
        return []  # a module's own state covers what is inside of it
    return _held(thing)


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _training_state(thing: Any) -> Callable[[], None]:
    state = copy.deepcopy(thing.state_dict())
    parameters = list(thing.parameters()) if isinstance(thing, nn.Module) else []
    grads = [None if p.grad is None else p.grad.clone() for p in parameters]
    modes = [(m, m.training) for m in thing.modules()] if isinstance(thing, nn.Module) else []

    def restore() -> None:
        thing.load_state_dict(state)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        for module, training in modes:
            module.training = training

    return restore


def _say(step: Any, trained: list[Any]) -> tuple[str, ...]:
    if step is None:
        return ()
    if not trained:
        return ("the step reaches no model and no optimizer that could be put back afterwards",)
    names = ", ".join(sorted({type(thing).__name__ for thing in trained}))
    return (f"put back after the measurement: {names}",)


# ---- generators ----------------------------------------------------------------------------------


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
    restores = (_generator_state(thing) for thing in _walk(loader, _held))
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


def _held(thing: Any) -> list[Any]:
    if isinstance(thing, (list, tuple)):
        return list(thing) if len(thing) <= _MOST else []
    if isinstance(thing, dict):
        return list(thing.values()) if len(thing) <= _MOST else []
    if inspect.ismodule(thing):
        return []
    return list(getattr(thing, "__dict__", {}).values())


def _sampler_state(loader: Any) -> Iterator[Callable[[], None]]:
    """A sampler of the user's may count its epochs: its own attributes are put back."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batch_sampler)
    for sampler in (*samplers, getattr(batch_sampler, "sampler", None)):
        attributes = getattr(sampler, "__dict__", None)
        if attributes is not None:
            yield functools.partial(_put_back, attributes, dict(attributes))


def _put_back(attributes: dict[str, Any], before: dict[str, Any]) -> None:
    attributes.clear()
    attributes.update(before)
