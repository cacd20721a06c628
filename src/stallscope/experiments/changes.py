"""One-line changes to a training step, made for a while and put back.

Each is what a person would write in their own code. It is made around the step, and on what the
step reaches, without touching its source. Whoever makes one keeps the state of models, optimizers
and generators (`isolation.as_before`); what else a change touches, it puts back itself.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from stallscope.files import workspace
from stallscope.loops.cached_values import mapped
from stallscope.loops.devices import NO_MEMORY
from stallscope.targets.object_graph import attributes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from stallscope.experiments.waits import StepFacts
    from stallscope.targets.target import Step


_IMAGES: Final = 4
"""Dimensions of a batch of images (samples, channels, rows, columns), and of their weights."""


@dataclass(frozen=True)
class Scene:
    """A step, and what it reaches."""

    step: Step
    modules: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    kind: str
    """Of the device that it computes on: "cuda", "cpu"."""
    facts: StepFacts
    why_no_copies: str = NO_MEMORY
    """Empty where that device has a memory of its own."""
    compiled: dict[torch.nn.Module, Any] = field(default_factory=dict)
    """Modules that were compiled, with what calls them then: it takes minutes, so once will do."""

    @property
    def convolves(self) -> bool:
        """Whether it has convolutions over images."""
        inner = (part for module in self.modules for part in module.modules())
        return any(isinstance(part, (torch.nn.Conv2d, torch.nn.ConvTranspose2d)) for part in inner)


class Change(NamedTuple):
    """A change to a step."""

    name: str
    code: str
    """What a person would write."""
    made: Callable[[Scene], AbstractContextManager[Step]]
    """Makes it for a block, and gives the step to call there."""
    why_not: Callable[[Scene], str]
    """Why it cannot be tried; empty where it can."""


@contextmanager
def as_it_is(scene: Scene) -> Iterator[Step]:
    """No change at all."""
    yield scene.step


@contextmanager
def nudged(scene: Scene) -> Iterator[Step]:
    """Every other weight a little larger, the others smaller, by what rounding may do to them."""
    weights = {id(one): one for module in scene.modules for one in module.parameters()}
    with torch.no_grad():
        for weight in weights.values():
            if weight.is_floating_point():
                signs = 1 - 2 * (torch.arange(weight.numel(), device=weight.device) % 2)
                weight.add_(weight * signs.view(weight.shape) * torch.finfo(weight.dtype).eps)
    yield scene.step


# ---- autocast ------------------------------------------------------------------------------------


@contextmanager
def _autocast(scene: Scene) -> Iterator[Step]:
    def step(batch: Any) -> object:
        with torch.autocast(scene.kind, dtype=torch.bfloat16):  # anew: it keeps cast weights
            return scene.step(batch)

    yield step


def _no_autocast(scene: Scene) -> str:
    return "the step does so already" if scene.facts.autocasts else _no_module(scene)


# ---- memory format -------------------------------------------------------------------------------


@contextmanager
def _channels_last(scene: Scene) -> Iterator[Step]:
    tensors = [
        tensor
        for module in scene.modules
        for tensor in (*module.parameters(), *module.buffers())
        if tensor.ndim == _IMAGES
    ]
    before = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.clone(memory_format=torch.channels_last)
            if tensor.grad is not None:
                tensor.grad = tensor.grad.clone(memory_format=torch.channels_last)
        yield lambda batch: scene.step(mapped(batch, _image_last))
    finally:
        for tensor, data in zip(tensors, before, strict=True):
            tensor.data = data


def _image_last(leaf: Any) -> Any:
    is_image = isinstance(leaf, torch.Tensor) and leaf.ndim == _IMAGES
    return leaf.contiguous(memory_format=torch.channels_last) if is_image else leaf


def _no_channels_last(scene: Scene) -> str:
    if not scene.convolves:
        return "the step reaches no convolution over images"
    weights = [one for m in scene.modules for one in m.parameters() if one.ndim == _IMAGES]
    last = torch.channels_last
    large = [one for one in weights if min(one.shape[1:]) > 1]  # else both formats are the same
    are_last = large and all(one.is_contiguous(memory_format=last) for one in large)
    return "the weights are so already" if are_last else ""


# ---- cuDNN ---------------------------------------------------------------------------------------


@contextmanager
def _cudnn_benchmark(scene: Scene) -> Iterator[Step]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield scene.step
    finally:
        torch.backends.cudnn.benchmark = before


def _no_cudnn(scene: Scene) -> str:
    if scene.kind != "cuda":
        return "it needs CUDA"
    if not scene.convolves:
        return "the step reaches no convolution over images"
    return "it is on already" if torch.backends.cudnn.benchmark else ""


# ---- gradients and optimizers --------------------------------------------------------------------


@contextmanager
def _to_none(scene: Scene) -> Iterator[Step]:
    held: list[Any] = [*scene.optimizers, *scene.modules]
    with ExitStack() as ends:
        for attributes in (one.__dict__ for one in held):
            if "zero_grad" in attributes:
                ends.callback(attributes.__setitem__, "zero_grad", attributes["zero_grad"])
            else:
                ends.callback(attributes.pop, "zero_grad", None)
        for one in held:
            one.__dict__["zero_grad"] = _always_to_none(one.zero_grad)
        yield scene.step


def _always_to_none(original: Any) -> Any:
    def zero_grad(*_: Any, **__: Any) -> Any:
        return original(set_to_none=True)

    return zero_grad


def _no_to_none(scene: Scene) -> str:
    if not (scene.optimizers or scene.modules):
        return "the step reaches no optimizer and no module"
    if not scene.facts.zero_grads:
        return scene.facts.failure or "the step calls no zero_grad"
    return "the step does so already" if all(scene.facts.zero_grads) else ""


@contextmanager
def _fused(scene: Scene) -> Iterator[Step]:
    with ExitStack() as ends:
        for optimizer in _fusable(scene):
            ends.callback(attributes_of(optimizer, _STATE))
            ends.callback(optimizer.load_state_dict, optimizer.state_dict())
            state = optimizer.state_dict()
            groups = [{**group, "fused": True, "foreach": False} for group in state["param_groups"]]
            optimizer.load_state_dict({**state, "param_groups": groups})
        yield scene.step


_STATE: Final = ("state", "param_groups", "defaults")
"""Of an optimizer: `load_state_dict` puts it back."""


def _fusable(scene: Scene) -> list[torch.optim.Optimizer]:
    return [
        one
        for one in scene.optimizers
        if "fused" in one.defaults and not all(group.get("fused") for group in one.param_groups)
    ]


def _no_fused(scene: Scene) -> str:
    if not scene.optimizers:
        return "the step reaches no optimizer"
    if _fusable(scene):
        return ""
    names = ", ".join(sorted({type(one).__name__ for one in scene.optimizers}))
    has = any("fused" in one.defaults for one in scene.optimizers)
    return "it is so already" if has else f"{names} has no fused kind"


# ---- torch.compile -------------------------------------------------------------------------------


@contextmanager
def _compiled(scene: Scene) -> Iterator[Step]:
    """Compile in this process, with no process and no file of torch's left behind."""
    from torch._inductor import config

    calls = [(module, module._compiled_call_impl) for module in scene.modules]  # noqa: SLF001 - what `Module.compile` sets
    name = "TORCHINDUCTOR_CACHE_DIR"
    known = os.environ.get(name)
    # Headers that are compiled beforehand lie in a folder of their own, which nobody sweeps
    wanted = {"compile_threads": 1, "cpp_cache_precompile_headers": False}
    settings = {one: value for one, value in wanted.items() if hasattr(config, one)}
    with workspace() as folder:
        os.environ[name] = str(folder)
        try:
            with config.patch(settings):
                for module in scene.modules:
                    if module not in scene.compiled:
                        module.compile()
                        scene.compiled[module] = module._compiled_call_impl  # noqa: SLF001 - as above
                    module._compiled_call_impl = scene.compiled[module]  # noqa: SLF001 - as above
                yield scene.step
        finally:
            for module, call in calls:
                module._compiled_call_impl = call  # noqa: SLF001 - as above
            os.environ.pop(name, None)
            if known is not None:
                os.environ[name] = known


def _no_compile(scene: Scene) -> str:
    compiled = [one for one in scene.modules if one._compiled_call_impl is not None]  # noqa: SLF001 - as above
    wrapped = [one for one in scene.modules if type(one).__name__ == "OptimizedModule"]
    return "the step does so already" if compiled or wrapped else _no_module(scene)


def _no_module(scene: Scene) -> str:
    return "" if scene.modules else "the step reaches no module"


def _no_copies(scene: Scene) -> str:
    return scene.why_no_copies


AHEAD: Final = Change(
    "copies ahead",
    "the next batch's .to(device, non_blocking=True) under torch.cuda.stream(copies)",
    as_it_is,  # the loop is what is other
    _no_copies,
)
COMPILE: Final = Change("torch.compile", "model.compile()", _compiled, _no_compile)
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
    Change(
        "zero_grad(set_to_none=True)",
        "optimizer.zero_grad(set_to_none=True)",
        _to_none,
        _no_to_none,
    ),
    Change("fused optimizer", "the optimizer with fused=True", _fused, _no_fused),
    AHEAD,
    COMPILE,
)
"""In the order in which they are tried."""
