"""One-line changes to a training step, applied for a block and undone.

Each change is a line that a person would write. The change acts around the step, and on the objects
that the step reaches; the source stays as it is. The caller restores models, optimizers and
generators (`isolation.as_before`); a change restores everything else that it touches.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from stallscope.loops.cached_values import mapped
from stallscope.targets.object_graph import attributes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from stallscope.targets.target import Step
    from stallscope.verbs.experiments.waits import StepFacts


_IMAGES: Final = 4
"""Dimensions of a batch of images (samples, channels, rows, columns), and of their weights."""
_NO_CONVOLUTION: Final = "the step reaches no convolution over images"


@dataclass(frozen=True)
class StepContext:
    """Step, with the objects that it reaches."""

    step: Step
    modules: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    kind: str
    """Type of its device: "cuda", "cpu"."""
    facts: StepFacts

    @property
    def convolves(self) -> bool:
        """True where the step has convolutions over images."""
        inner = (part for module in self.modules for part in module.modules())
        return any(isinstance(part, (torch.nn.Conv2d, torch.nn.ConvTranspose2d)) for part in inner)


class Change(NamedTuple):
    """Change to a step."""

    name: str
    code: str
    make: Callable[[StepContext], AbstractContextManager[Step]]
    """Apply the change for a block, and yield the step to call there."""
    why_not: Callable[[StepContext], str]
    """Return the reason why the change cannot be tried; empty where it can."""


@contextmanager
def as_it_is(context: StepContext) -> Iterator[Step]:
    """Change nothing."""
    yield context.step


# ---- autocast ------------------------------------------------------------------------------------


@contextmanager
def _autocast(context: StepContext) -> Iterator[Step]:
    # Autocast caches cast weights, so each call enters it anew
    yield torch.autocast(context.kind, dtype=torch.bfloat16)(context.step)


def _no_autocast(context: StepContext) -> str:
    if context.facts.autocasts:
        return "the step already does this"
    return "" if context.modules else "the step reaches no module"


# ---- memory format -------------------------------------------------------------------------------


@contextmanager
def _channels_last(context: StepContext) -> Iterator[Step]:
    tensors = [
        tensor
        for module in context.modules
        for tensor in (*module.parameters(), *module.buffers())
        if tensor.ndim == _IMAGES
    ]
    before = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.clone(memory_format=torch.channels_last)
            if tensor.grad is not None:
                tensor.grad = tensor.grad.clone(memory_format=torch.channels_last)
        yield lambda batch: context.step(mapped(batch, _image_last))
    finally:
        for tensor, data in zip(tensors, before, strict=True):
            tensor.data = data


def _image_last(leaf: Any) -> Any:
    is_image = isinstance(leaf, torch.Tensor) and leaf.ndim == _IMAGES
    return leaf.contiguous(memory_format=torch.channels_last) if is_image else leaf


def _no_channels_last(context: StepContext) -> str:
    if not context.convolves:
        return _NO_CONVOLUTION
    parameters = (weight for module in context.modules for weight in module.parameters())
    weights = [weight for weight in parameters if weight.ndim == _IMAGES]
    # Both formats of smaller weights are equal
    large = [weight for weight in weights if min(weight.shape[1:]) > 1]
    are_last = [weight.is_contiguous(memory_format=torch.channels_last) for weight in large]
    return "the weights already are channels_last" if large and all(are_last) else ""


# ---- cuDNN ---------------------------------------------------------------------------------------


@contextmanager
def _cudnn_benchmark(context: StepContext) -> Iterator[Step]:
    with ExitStack() as ends:
        ends.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
        torch.backends.cudnn.benchmark = True
        yield context.step


def _no_cudnn(context: StepContext) -> str:
    if context.kind != "cuda":
        return "it needs CUDA"
    if not context.convolves:
        return _NO_CONVOLUTION
    return "already enabled" if torch.backends.cudnn.benchmark else ""


# ---- optimizers ----------------------------------------------------------------------------------


@contextmanager
def _fused(context: StepContext) -> Iterator[Step]:
    with ExitStack() as ends:
        for optimizer in _fusable(context):
            ends.callback(attributes_of(optimizer, _STATE))
            ends.callback(optimizer.load_state_dict, optimizer.state_dict())
            state = optimizer.state_dict()
            groups = [{**group, "fused": True, "foreach": False} for group in state["param_groups"]]
            optimizer.load_state_dict({**state, "param_groups": groups})
        yield context.step


_STATE: Final = ("state", "param_groups", "defaults")
"""Attributes of an optimizer that `load_state_dict` replaces."""


def _fusable(context: StepContext) -> list[torch.optim.Optimizer]:
    return [
        optimizer
        for optimizer in context.optimizers
        if "fused" in optimizer.defaults
        and not all(group.get("fused") for group in optimizer.param_groups)
    ]


def _no_fused(context: StepContext) -> str:
    if not context.optimizers:
        return "the step reaches no optimizer"
    if _fusable(context):
        return ""
    names = ", ".join(sorted({type(optimizer).__name__ for optimizer in context.optimizers}))
    has = any("fused" in optimizer.defaults for optimizer in context.optimizers)
    return "already fused" if has else f"{names} has no fused version"


CHANGES: Final = (
    Change(
        "bfloat16 autocast",
        "with torch.autocast(device, dtype=torch.bfloat16): ...",
        _autocast,
        _no_autocast,
    ),
    Change(
        "channels_last",
        "model.to(memory_format=torch.channels_last), and the images as well",
        _channels_last,
        _no_channels_last,
    ),
    Change("cudnn.benchmark", "torch.backends.cudnn.benchmark = True", _cudnn_benchmark, _no_cudnn),
    Change("fused optimizer", "the optimizer with fused=True", _fused, _no_fused),
)
"""Changes in the order of their trials."""
