"""Restores what an active measurement moves: generators, samplers, modules, optimizers.

It iterates the user's loader and may run the user's training step. Afterwards every random
generator, global or held by the loader, its samplers, its dataset or its transforms, stands where
it stood, and everything that trains and can be reached from the step is as it was. What was found
is named, and so is that nothing was found. Batches that are made in this process are made as in a
worker: with one torch thread.
"""

from __future__ import annotations

import copy
import functools
import inspect
import random
from collections.abc import Mapping, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from stallscope.hooks.find_ops import names_in, own_attributes
from stallscope.interrupts import held_back
from stallscope.targets.loaders import find_loaders, private_copy
from stallscope.targets.object_graph import attributes_of, children, walk
from stallscope.targets.target import SimulatedStep

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from stallscope.targets.target import Target


_Kind = TypeVar("_Kind")
_OF_TORCH: Final = frozenset(vars(nn.Module()))
"""Attributes of every module: its state covers what is in them."""
_BESIDE: Final = (
    *(torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler),
    *(torch.Generator, random.Random, np.random.Generator, np.random.RandomState),
)
"""Types of a module's optimizers and generators, which are not part of its state."""


def restore_generators(loader: Any) -> Iterator[Callable[[], object]]:
    """Yield what puts every generator and sampler back.

    Global ones, and those of a DataLoader (or something around some), its samplers, its dataset and
    its transforms. A sampler of the user's may count its epochs or shuffle its list.
    """
    numpy_global = np.random.mtrand._rand  # noqa: SLF001
    python_global = random._inst  # noqa: SLF001
    everywhere = (torch.default_generator, python_global, numpy_global)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield functools.partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    yield from filter(None, map(state_of, (*everywhere, *walk(loader, children))))
    for inner in map(own_attributes, find_loaders(loader)):
        batch_sampler = inner.get("batch_sampler")
        of_batches = own_attributes(batch_sampler).get("sampler")
        yield from map(attributes_of, (inner.get("sampler"), batch_sampler, of_batches))


def seed_everywhere(seed: int) -> None:
    """Seed the global generators from which transforms draw in this process."""
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed every device
    np.random.seed(seed)  # noqa: NPY002 - the global one, from which they draw
    random.seed(seed)


def state_of(value: Any) -> Callable[[], object] | None:
    """Return what puts a generator back to where it is; None for anything else."""
    if isinstance(value, torch.Generator):
        return functools.partial(value.set_state, value.get_state())
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return functools.partial(value.setstate, value.getstate())
    if isinstance(value, np.random.Generator):
        state = copy.deepcopy(value.bit_generator.state)
        return lambda: setattr(value.bit_generator, "state", state)
    if isinstance(value, np.random.RandomState):
        return functools.partial(value.set_state, value.get_state())
    return None


@contextmanager
def isolated(target: Target) -> Iterator[Target]:
    """Let the target be measured, and put everything back after the block, also when it fails.

    Yields:
        The target with a loader that starts its own workers, and with notes on what of its step is
        put back.

    Raises:
        UnsupportedError: the loader keeps an iterator that cannot be started anew.
    """
    step = None if isinstance(target.step, SimulatedStep) else target.step
    with private_copy(target.loader) as loader, as_before(loader, step) as notes:
        yield replace(target, loader=loader, notes=(*target.notes, *notes))


@contextmanager
def as_before(loader: Any, step: Any = None) -> Iterator[tuple[str, ...]]:
    """Put everything back after the block, also when it fails.

    That is the generators and samplers of a loader, and what trains or draws and can be reached
    from a training step.

    Yields:
        Sentences on what was found in the step.
    """
    lazy: list[Any] = []
    trained: list[Any] = []
    for value in trainable(step):
        has_none = isinstance(value, nn.Module) and any(map(is_lazy, value.parameters()))
        (lazy if has_none else trained).append(value)
    drawn = filter(None, map(state_of, walk(step, _reached)))
    restores = [*restore_generators(loader), *drawn, *map(_training_state, trained)]
    try:
        yield _notes(step, trained, lazy)
    finally:
        with held_back(), ExitStack() as rest:
            for restore in restores:
                rest.callback(restore)  # one that fails does not keep the others from it


def trainable(step: Any) -> list[Any]:
    """Return modules, optimizers, schedulers and scalers that a step can reach.

    Looks at its bound object, its closure, the arguments of a partial, and the globals it names.
    Leaves out the modules inside of others, whose state has theirs in it.
    """
    values = [value for value in walk(step, _reached) if _trains(value)]
    modules = [value for value in values if isinstance(value, nn.Module)]
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return [value for value in values if id(value) not in inner]


def reached(step: Any, kind: type[_Kind]) -> list[_Kind]:
    """Return the objects of a kind that a step can reach."""
    return [value for value in walk(step, _reached) if isinstance(value, kind)]


def modules_of(step: Any) -> list[nn.Module]:
    """Return the modules that a step can reach, without those inside of others."""
    return [value for value in trainable(step) if isinstance(value, nn.Module)]


def _trains(value: Any) -> bool:
    kind = type(value)  # an object may answer to any name
    stateful = all(
        callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict")
    )
    return stateful and not isinstance(value, (type, DataLoader, Dataset))


def _reached(value: Any) -> list[Any]:
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if inspect.ismethod(value):
        return [value.__self__, value.__func__]
    if inspect.isfunction(value):
        cells = []
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # an empty one
                cells.append(cell.cell_contents)
        names = [value.__globals__.get(name) for name in names_in(value.__code__)]
        usual = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*cells, *usual, *names]
    if isinstance(value, nn.Module):  # its own state covers what else is inside of it
        return [helper for part in value.modules() for helper in _beside(part)]
    return children(value)


def _beside(module: nn.Module) -> list[Any]:
    """Return what a module keeps of `_BESIDE`, also in a list or a mapping of its own."""
    return [
        helper
        for name, helper in own_attributes(module).items()
        if name not in _OF_TORCH
        and isinstance(helper, (*_BESIDE, *(() if name.startswith("_") else (list, tuple, dict))))
    ]


def _training_state(value: Any) -> Callable[[], None]:
    state = copy.deepcopy(value.state_dict())
    modules = list(value.modules()) if isinstance(value, nn.Module) else []
    parameters = value.parameters() if modules else ()
    grads = [(p, None if p.grad is None else p.grad.clone()) for p in parameters]
    # A state_dict leaves out the buffers that are not saved with the model.
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
    ]
    # Nor is the rest of it in there, such as the sums of a metric.
    rest = [(module, module.training, attributes_of(module, _OF_TORCH)) for module in modules]

    def restore() -> None:
        for module, name, buffer, before in buffers:
            buffer.data.copy_(before)
            setattr(module, name, buffer)
        value.load_state_dict(state)
        for parameter, grad in grads:
            parameter.grad = grad
        for module, training, put_back in rest:
            module.training = training
            put_back()

    return restore


def _notes(step: Any, trained: list[Any], lazy: list[Any]) -> tuple[str, ...]:
    if step is not None and not trained and not lazy:
        return ("the step reaches no model or optimizer to restore",)
    groups = {
        "restored after the measurement": trained,
        "not restored, because it had no weights yet": lazy,
    }
    return tuple(
        f"{what}: {', '.join(sorted({type(value).__name__ for value in things}))}"
        for what, things in groups.items()
        if things
    )


def in_one_thread(batches: Iterator[Any]) -> Generator[Any, None, None]:
    """Yield the batches; whoever uses them has as many torch threads as ever."""
    while True:
        with one_thread():
            batch = [*islice(batches, 1)]
        if not batch:
            return
        yield batch.pop()


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread in the block, as in a worker."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)


def to_device(batch: Any, device: Any) -> Any:
    """Return the batch with every tensor in it on the device; everything else as it is.

    A `to` method of another type may return what was moved, or move what it belongs to.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):
        moved = batch.to(device)
        return batch if moved is None else moved
    if isinstance(batch, MutableMapping):  # a class of the user's may hold more than its items
        moved = copy.copy(batch)
        moved.update({key: to_device(value, device) for key, value in batch.items()})
        return moved
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        values = [to_device(value, device) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return batch
