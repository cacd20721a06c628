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
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from stallscope.interrupts import held_back
from stallscope.measure import generators
from stallscope.measure.attributes import attributes_of
from stallscope.measure.reach import held, own, walk
from stallscope.probe.pipeline import names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OF_TORCH: Final = frozenset(vars(nn.Module()))
"""Attributes of every module: its state covers what is in them."""
_BESIDE: Final = (
    *(torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler),
    *(torch.Generator, random.Random, np.random.Generator, np.random.RandomState),
)
"""What a module may keep that trains it or draws for it, and is no part of its state."""


@contextmanager
def as_before(loader: Any, step: Any = None) -> Iterator[tuple[str, ...]]:
    """Put everything back after the block, also when it fails.

    Args:
        loader: a DataLoader; its generators and its samplers' state are put back.
        step: the training step; what trains or draws and can be reached from it is put back.

    Yields:
        Sentences on what was found in the step.
    """
    reached = _outermost(trainable(step))
    lazy = [thing for thing in reached if _is_lazy(thing)]
    trained = [thing for thing in reached if not _is_lazy(thing)]
    drawn = filter(None, map(generators.state_of, walk(step, _reached)))
    restores = [*generators.restores(loader), *drawn, *map(_training_state, trained)]
    try:
        yield _say(step, trained, lazy)
    finally:
        with held_back(), ExitStack() as rest:
            for restore in restores:
                rest.callback(restore)  # one that fails does not keep the others from it


def trainable(step: Any) -> list[Any]:
    """Modules, optimizers, schedulers and scalers that a step can reach.

    Looks at its bound object, its closure, the arguments of a partial, and the globals it names.
    """
    return [thing for thing in walk(step, _reached) if _trains(thing)]


def modules_of(step: Any) -> list[nn.Module]:
    """The modules that a step can reach, without those inside of others."""
    return [thing for thing in _outermost(trainable(step)) if isinstance(thing, nn.Module)]


def _outermost(things: list[Any]) -> list[Any]:
    """Without the modules inside of others, whose state has theirs in it."""
    modules = [thing for thing in things if isinstance(thing, nn.Module)]
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return [thing for thing in things if id(thing) not in inner]


def _trains(thing: Any) -> bool:
    kind = type(thing)  # an object may answer to any name
    stateful = all(
        callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict")
    )
    return stateful and not isinstance(thing, (type, DataLoader, Dataset))


def _is_lazy(thing: Any) -> bool:
    return isinstance(thing, nn.Module) and any(map(is_lazy, thing.parameters()))


def _reached(thing: Any) -> list[Any]:
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if inspect.ismethod(thing):
        return [thing.__self__, thing.__func__]
    if inspect.isfunction(thing):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if _is_set(cell)]
        names = [thing.__globals__.get(name) for name in names_in(thing.__code__)]
        usual = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        return [*cells, *usual, *names]
    if isinstance(thing, nn.Module):  # its own state covers what else is inside of it
        return [one for part in thing.modules() for one in _beside(part)]
    return held(thing)


def _beside(module: nn.Module) -> list[Any]:
    """What a module keeps of that, also in a list or a mapping of its own."""
    named = [(name, one) for name, one in own(module).items() if name not in _OF_TORCH]
    return [
        one
        for name, one in named
        if isinstance(one, _BESIDE)
        or (isinstance(one, (list, tuple, dict)) and not name.startswith("_"))
    ]


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _training_state(thing: Any) -> Callable[[], None]:
    state = copy.deepcopy(thing.state_dict())
    modules = list(thing.modules()) if isinstance(thing, nn.Module) else []
    parameters = list(thing.parameters()) if modules else []
    grads = [None if p.grad is None else p.grad.clone() for p in parameters]
    modes = [(module, module.training) for module in modules]
    # A state_dict leaves out the buffers that are not saved with the model.
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
    ]
    # Nor is the rest of it in there, such as the sums of a metric.
    attributes = [attributes_of(module, _OF_TORCH) for module in modules]

    def restore() -> None:
        for module, name, buffer, before in buffers:
            buffer.data.copy_(before)
            setattr(module, name, buffer)
        thing.load_state_dict(state)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        for module, training in modes:
            module.training = training
        for put_back in attributes:
            put_back()

    return restore


def _say(step: Any, trained: list[Any], lazy: list[Any]) -> tuple[str, ...]:
    if step is None:
        return ()
    if not trained and not lazy:
        return ("the step reaches no model and no optimizer that could be put back afterwards",)
    said = (f"put back after the measurement: {_names(trained)}",) if trained else ()
    not_yet = (f"not put back, because it had no weights yet: {_names(lazy)}",) if lazy else ()
    return said + not_yet


def _names(things: list[Any]) -> str:
    return ", ".join(sorted({type(thing).__name__ for thing in things}))
