"""Lines of a step that make the host wait for its device, and the time of copies.

The host waits for each value that it needs (`.item()`, `print`, a condition, the number of elements
of a mask) until the device has computed the value. Meanwhile the host launches nothing, so the
device is idle afterwards. A torch function mode sees each function before it runs. On CUDA, torch's
debug mode for synchronizations also reports waits inside of its C++ code. Without CUDA, the report
lists the lines that would wait.

Copies of a batch make the host wait, too, depending on the memory, on `non_blocking` and on the
type.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import warnings
from collections import defaultdict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from stallscope.hooks.device_time import SimulatedDevice
from stallscope.hooks.patches import Patches
from stallscope.loops.cached_values import bytes_of, leaves, mapped
from stallscope.loops.devices import BatchMemory
from stallscope.targets.object_graph import qualified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.loops.devices import Device


_WAITING: Final = {
    **{name: f".{name}()" for name in ("item", "tolist", "cpu")},
    **{name: f"torch.{name}()" for name in ("equal", "allclose")},
    **dict.fromkeys(("__bool__", "is_nonzero"), "a condition on a tensor"),
    **dict.fromkeys(("__int__", "__index__"), "int() of a tensor"),
    "__float__": "float() of a tensor",
    **dict.fromkeys(("__repr__", "__format__"), "a tensor as text (print)"),
    **dict.fromkeys(("nonzero", "argwhere"), "nonzero()"),
    "masked_select": "a boolean mask",
    **dict.fromkeys(("unique", "_unique2", "unique_consecutive"), "unique()"),
}
"""Functions of torch whose result the host needs, by name."""
_SYNCHRONIZE: Final = "synchronize()"
_IN_CPP: Final = "called a synchronizing CUDA operation"
"""Start of the warning of `torch.cuda.set_sync_debug_mode`."""
_OURS: Final = ("torch", "stallscope", "contextlib", "warnings")
_BETWEEN: Final = (__name__, "torch.overrides", "functools")
"""Modules between a call and the mode that sees it."""
_MOVED: Final = (".cpu()", ".item()")
_USERS: Final = "stallscope.demo"
"""Module that counts as the user's."""


class Line(NamedTuple):
    """Line of the user's code that waits, with the kind of wait."""

    what: str
    function: str
    file: str
    line: int
    source: str


@dataclass
class StepFacts:
    """Observations of some steps."""

    steps: int = 0
    waits: dict[Line, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds that the host waited in each call."""
    autocasts: bool = False
    """True where a function of torch ran under autocast."""


class StepWatch(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
    """Observer of a step on a device of this kind ("cuda", "cpu"), or on a simulated one."""

    def __init__(self, kind: str, simulated: SimulatedDevice | None) -> None:
        super().__init__()
        self.facts = StepFacts()
        self._kind = kind
        self._simulated = simulated
        self._inside = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = functools.partial(func, *args, **(kwargs or {}))
        if not self.facts.autocasts:
            self.facts.autocasts = torch.is_autocast_enabled(self._kind)
        what = None if self._inside else self._what(func, args, kwargs or {})
        return self._waited(what, call) if what else call()

    def _what(self, func: Any, args: Any, named: Any) -> str | None:
        """Return the kind of wait that a call causes; None for no wait."""
        name = getattr(func, "__name__", "")
        if not args or not isinstance(args[0], torch.Tensor):
            return None
        what = _WAITING.get(name)
        if name == "__getitem__":
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            masks = (torch.bool, torch.uint8)
            has_mask = any(isinstance(part, torch.Tensor) and part.dtype in masks for part in parts)
            what = "a boolean mask" if has_mask else None
        elif name == "to":
            to_host = any(str(part) == "cpu" for part in (*args[1:], named.get("device")))
            what = ".cpu()" if to_host and not named.get("non_blocking") else None
        elif name == "where":
            what = "nonzero()" if len(args) == 1 and not named else None
        waits = what and (args[0].is_cuda if self._kind == "cuda" else _would_wait(what))
        return what if waits else None

    def _waited(self, what: str, call: Callable[[], Any]) -> Any:
        line, began_ns = _line(what), perf_counter_ns()
        self._inside = True
        try:
            if self._simulated is not None:
                self._simulated.synchronize()
            return call()
        finally:
            self._inside = False
            self.facts.waits[line].append((perf_counter_ns() - began_ns) / 1e9)

    @contextmanager
    def watching(self) -> Iterator[StepFacts]:
        """Watch this process in the block; afterwards all patches are gone."""
        with ExitStack() as ends:
            patches = Patches()
            ends.callback(patches.undo)
            patches.put(torch.cuda, "synchronize", self._synchronising(torch.cuda.synchronize))
            if self._simulated is not None:
                original = SimulatedDevice.synchronize
                patches.put(SimulatedDevice, "synchronize", self._synchronising(original))
            if self._kind == "cuda":
                self._watch_cuda(ends)
            ends.enter_context(self)
            yield self.facts

    def _synchronising(self, original: Any) -> Any:
        @functools.wraps(original)
        def synchronize(*args: Any, **named: Any) -> Any:
            call = functools.partial(original, *args, **named)
            return call() if self._inside else self._waited(_SYNCHRONIZE, call)

        return synchronize

    def _watch_cuda(self, ends: ExitStack) -> None:
        """Store torch's warnings about synchronizations as waiting calls; show other warnings."""
        ends.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
        ends.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("always", message=_IN_CPP)
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        shown = warnings.showwarning

        def show(message: Any, *rest: Any, **named: Any) -> None:
            if not str(message).startswith(_IN_CPP):
                shown(message, *rest, **named)
            elif not self._inside:
                self.facts.waits[_line("inside of torch")].append(0.0)

        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")


def _would_wait(what: str) -> bool:
    """Return whether a value on the host would be on the device of a GPU step.

    Optimizers keep counters on the host, and torch itself moves values between devices.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    module = frame.f_globals.get("__name__", "") if frame is not None else ""
    is_torchs = module.partition(".")[0] == "torch"
    return not (module.startswith("torch.optim") or (is_torchs and what in _MOVED))


def _line(what: str) -> Line:
    """Return the innermost line that is neither torch's nor ours."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not use_watched.__code__:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if module == _USERS or module.partition(".")[0] not in _OURS:
            source = linecache.getline(code.co_filename, frame.f_lineno).strip()
            return Line(what, qualified(code), code.co_filename, frame.f_lineno, source)
        frame = frame.f_back
    return Line(what, "the step", "", 0, "")


def use_watched(step: Callable[[Any], object], batch: Any, facts: StepFacts) -> object:
    """Count and call a step, which may raise; its frames end here."""
    facts.steps += 1
    return step(batch)


PAGEABLE: Final = "from pageable memory"
PINNED: Final = "from pinned memory"
NON_BLOCKING: Final = "pinned, non_blocking=True"
_ROUNDS: Final = 9
"""Rounds of all ways to copy, in turn; the first is a warm-up."""


def copy_times(device: Device, batch: Any) -> list[tuple[Any, ...]]:
    """Copy a batch of the loader by each method, in turn, and return rows of `result.COPY_TIMES`.

    The first row copies from the batch's own kind of memory.
    """
    is_pinned = any(_is_pinned(leaf) for leaf in leaves(batch))
    pageable = mapped(batch, lambda leaf: leaf.clone() if _is_pinned(leaf) else leaf)
    methods: dict[str, tuple[Any, Device, bool]] = {
        PAGEABLE: (pageable, device.reading(BatchMemory.PAGEABLE), True)
    }
    with suppress(RuntimeError):  # the system's limit is reached
        pinned, reading = device.kept(batch, BatchMemory.PINNED), device.reading(BatchMemory.PINNED)
        methods[PINNED] = pinned, reading, True
        methods[NON_BLOCKING] = pinned, reading, False
    if is_pinned and PINNED in methods:
        methods = {PINNED: methods.pop(PINNED), **methods}
    rows = []
    for number in range(_ROUNDS):
        for method, (source, reading, waits) in methods.items():
            host_s, copy_s = _timed(reading, source, waits=waits)
            if number:
                rows.append((method, bytes_of(source), copy_s, host_s))
    return rows


def _is_pinned(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_pinned()


def _timed(device: Device, batch: Any, *, waits: bool) -> tuple[float, float]:
    """Return the seconds that a copy blocks the host, and those until it is complete."""
    behind = device.behind
    assert behind is not None  # noqa: S101 - a device with its own memory works behind the host
    behind.synchronize()
    began_ns = perf_counter_ns()
    there = device.copied(batch, waits=waits)
    host_ns = perf_counter_ns() - began_ns
    behind.synchronize()
    copy_ns = perf_counter_ns() - began_ns
    del there
    return host_ns / 1e9, copy_ns / 1e9
