"""Running a copy of `__getitem__` whose calls are recorded, or deferred to change their order.

`__getitem__` and the other methods of the user's class run as copies of their code. Global names in
the copies are wrapped, so that each call is seen; the user's objects stay unchanged. Workers import
this module, so it imports no polars.

To change the order, a call of a chain returns a placeholder. The calls are made, with the original
arguments, when the code uses the result. So `__getitem__` draws its random numbers as before. Code
that only reads the shape, as to draw the place of a crop, gets it from calls that keep the shape.
"""

from __future__ import annotations

import dis
import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from stallscope.hooks.find_ops import names_in, own_attributes
from stallscope.loops.cached_values import is_image, mapped
from stallscope.verbs.orders.pipeline import OuterDataset, is_no_tool, shallow

if TYPE_CHECKING:
    from collections.abc import Mapping

_LIBRARIES: Final = frozenset({"torch", "torchvision", "builtins", "abc", "typing"})
"""Packages whose methods contain none of the user's calls."""


class CallSite(NamedTuple):
    """Place of a call in the user's code."""

    function: str
    """Name of the function around it."""
    offset: int
    """Offset of its instruction, which tells apart two calls in one line."""
    name: str
    """Name of the called function."""


class PlannedCall(NamedTuple):
    """Plan of a call, in another order of the calls."""

    chain: int
    place: int
    """In the new order."""
    function: Any
    """Replaces the called one; None: not replaced."""
    kept_shape: tuple[type, int] | None
    """Result of `kept_shape` if it is the same for all samples, else None."""


@dataclass(eq=False)
class CodeCall:
    """One call in the user's code."""

    site: CallSite
    line: tuple[str, int]
    """File and line."""
    function: Any
    first: Any
    """First argument, during the sample."""
    args: tuple[Any, ...]
    """The other arguments."""
    named: dict[str, Any]
    keyword: str
    """Name of the first argument, if it is a keyword argument."""
    argument: Any = None
    """Copy of the first argument."""
    decode_s: float = 0.0
    inside: int | None = None
    """Number of the call of the method around it."""
    result: Any = None
    """Result, during the sample."""
    took_s: float = 0.0
    draws: bool = False
    """True if the call moved a random generator."""
    kept_shape: tuple[type, int] | None = None
    """Result of `kept_shape`."""

    def made(self, value: Any, function: Any = None) -> Any:
        """Call the function, or another one, with this first argument."""
        function = function or self.function
        if self.keyword:
            return function(*self.args, **{self.keyword: value}, **self.named)
        return function(value, *self.args, **self.named)


# ---- running a copy of the user's code -----------------------------------------------------------


class _Globals(dict[str, Any]):
    """Global names of a function, some of them replaced; the rest may still change."""

    def __init__(self, own: dict[str, Any], names: dict[str, Any]) -> None:
        super().__init__(names)
        self._own = own

    def __missing__(self, name: str) -> Any:
        return self._own[name]


class _Noticed:
    """Wrapper of a callable that reports each call, or of a module with such callables."""

    def __init__(self, value: Any, dataset: NoticedCalls) -> None:
        self._value, self._dataset = value, dataset

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._dataset.call(self._value, sys._getframe(1), args, named)  # noqa: SLF001

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._value, name)
        is_module = isinstance(self._value, types.ModuleType)
        return self._dataset.noticed(value) if is_module else value


class NoticedCalls(OuterDataset):
    """Dataset that runs a copy of another's code, and sees its calls; a subclass makes them.

    Args:
        dataset: the user's, whose class has a `__getitem__` of its own.
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._clone: Any = None

    def called(self, call: CodeCall) -> Any:
        """Return the result of a call in the user's code, or a placeholder."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        if self._clone is None:
            self._clone = self._copy_of_dataset()
        return looked_at(self._clone[index])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_clone": None}

    def call(
        self, function: Any, frame: types.FrameType, args: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Hand a call on to `called`."""
        if not args and not named:
            return function()
        code, name = frame.f_code, getattr(function, "__name__", type(function).__name__)
        site = CallSite(code.co_name, frame.f_lasti, name)
        keyword = "" if args else next(iter(named))
        first = args[0] if args else named.pop(keyword)
        line = code.co_filename, frame.f_lineno
        return self.called(CodeCall(site, line, function, first, args[1:], named, keyword))

    def noticed(self, value: Any) -> Any:
        """Return the wrapper of a global value, or the value itself."""
        if isinstance(value, types.ModuleType):
            is_wrapped = value.__name__.partition(".")[0] not in sys.stdlib_module_names
        else:
            is_wrapped = callable(value) and not isinstance(value, type) and is_no_tool(value)
        return _Noticed(value, self) if is_wrapped else value

    def _copy_of_dataset(self) -> Any:
        """Return a copy of the dataset whose attributes and methods report their calls."""
        clone, cls = shallow(self.dataset), type(self.dataset)
        getitem = None
        for owner in reversed(cls.__mro__):
            if owner.__module__.partition(".")[0] in _LIBRARIES:
                continue
            for name, value in vars(owner).items():
                is_static = isinstance(value, staticmethod)
                function = value.__func__ if is_static else value
                if not isinstance(function, types.FunctionType) or _sets_globals(function):
                    continue
                new = self._copied(function)
                if name == "__getitem__":
                    getitem = new
                elif not name.startswith("__"):
                    bound = new if is_static else types.MethodType(new, clone)
                    vars(clone)[name] = _Noticed(bound, self)
        for name, value in own_attributes(self.dataset).items():
            is_op = callable(value) and not isinstance(value, (type, Dataset))
            vars(clone)[name] = _Noticed(value, self) if is_op else value
        clone.__class__ = type(cls.__name__, (cls,), {"__getitem__": getitem} if getitem else {})
        return clone

    def _copied(self, function: types.FunctionType) -> types.FunctionType:
        own = function.__globals__
        stands = {
            name: self.noticed(own[name]) for name in names_in(function.__code__) if name in own
        }
        visible = {**stands, "__builtins__": own.get("__builtins__", __builtins__)}
        new = types.FunctionType(
            function.__code__,
            _Globals(own, visible),
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        new.__kwdefaults__ = function.__kwdefaults__
        return new


def _sets_globals(function: types.FunctionType) -> bool:
    """Return true if a function writes global names, which a copy would write elsewhere."""
    codes = [function.__code__]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    opnames = {step.opname for code in codes for step in dis.get_instructions(code)}
    return not opnames.isdisjoint({"STORE_GLOBAL", "DELETE_GLOBAL"})


# ---- deferred calls ------------------------------------------------------------------------------

_SHAPE: Final = frozenset({"shape", "size", "ndim", "dim", "width", "height"})
"""Attributes that follow from the shape."""
_IMAGE: Final = 3
"""Axes of an image."""


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape; of an image that of its tensor; (): the value has none."""
    if is_image(value):
        return len(value.getbands()), value.height, value.width
    return tuple(value.shape) if isinstance(value, (torch.Tensor, np.ndarray)) else ()


def kept_shape(first: Any, result: Any) -> tuple[type, int] | None:
    """Return the result's type, and the roll of the axes that gives its shape; None: another shape.

    A conversion moves the channels from the last axis to the first, or back.
    """
    before, after = shape_of(first), shape_of(result)
    rolls = (0, 1, -1) if len(before) == _IMAGE else (0,) if before else ()
    roll = next((roll for roll in rolls if _rolled(before, roll) == after), None)
    return None if roll is None else (type(result), roll)


def _rolled(shape: tuple[int, ...], roll: int) -> tuple[int, ...]:
    at = -roll % max(len(shape), 1)
    return (*shape[at:], *shape[:at])


def _of_shape(kind: type, shape: tuple[int, ...]) -> Any:
    """Return an object with the attributes `_SHAPE` of a type, without its memory."""
    if issubclass(kind, torch.Tensor):
        return torch.empty(shape, device="meta")
    if issubclass(kind, np.ndarray):
        return np.broadcast_to(np.empty(()), shape)
    _, height, width = shape
    return types.SimpleNamespace(size=(width, height), width=width, height=height)


class Waiting:
    """Placeholder of a result whose calls, in the order of the code, are made when it is used."""

    def __init__(self, value: Any, calls: tuple[CodeCall, ...], ordered: OrderedCalls) -> None:
        self._value, self._calls, self._ordered = value, calls, ordered
        self._result: Any = None
        self._is_done = False
        self._next: CallSite | None = None

    def _stallscope_next(self, call: CodeCall) -> Waiting | None:
        """Defer another call; None: the result was used already."""
        self._cut(self._next or (call.site if self._is_done else None))
        if self._is_done:
            return None
        self._next = call.site
        return Waiting(self._value, (*self._calls, call), self._ordered)

    def _stallscope_result(self) -> Any:
        self._cut(self._next)
        if not self._is_done:
            plan, value = self._ordered.plan, self._value
            for call in sorted(self._calls, key=lambda call: plan[call.site].place):
                value = call.made(value, plan[call.site].function)
            self._result, self._is_done = value, True
        return self._result

    def _cut(self, after: CallSite | None) -> None:
        if after is not None:
            self._ordered.cuts.add((self._calls[-1].site, after))

    def __getattr__(self, name: str) -> Any:
        shapes = [self._ordered.plan[call.site].kept_shape for call in self._calls]
        steps = [shape for shape in shapes if shape is not None]
        if name in _SHAPE and not self._is_done and len(steps) == len(shapes):
            shape = _rolled(shape_of(self._value), sum(roll for _, roll in steps))
            return getattr(_of_shape(steps[-1][0], shape), name)
        return getattr(self._stallscope_result(), name)

    def __array__(self, *args: Any, **named: Any) -> Any:
        return np.asarray(self._stallscope_result(), *args, **named)

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, args: Any = (), named: Any = None) -> Any:
        return function(*looked_at(args), **looked_at(named or {}))


def _forwarded(name: str) -> Any:
    def method(self: Waiting, *args: Any) -> Any:
        return getattr(self._stallscope_result(), name)(*looked_at(args))

    return method


_OPERATORS: Final = (
    "getitem setitem len iter bool float int add radd sub rsub mul rmul truediv rtruediv floordiv "
    "mod pow neg abs matmul and or xor invert lt le gt ge eq ne contains"
)
for _operator in _OPERATORS.split():
    setattr(Waiting, f"__{_operator}__", _forwarded(f"__{_operator}__"))


def looked_at(value: Any) -> Any:
    """Return a value with the results of its deferred calls."""
    return mapped(
        value,
        lambda leaf: leaf._stallscope_result() if type(leaf) is Waiting else leaf,  # noqa: SLF001
    )


class OrderedCalls(NoticedCalls):
    """Dataset whose `__getitem__` makes its calls in another order.

    Args:
        dataset: the user's.
        plan: of the calls of chains; any other call is made at once.

    Attributes:
        cuts: pairs of calls between which the code used the result.
    """

    def __init__(self, dataset: Any, plan: Mapping[CallSite, PlannedCall]) -> None:
        super().__init__(dataset)
        self.plan = plan
        self.cuts: set[tuple[CallSite, CallSite]] = set()

    def called(self, call: CodeCall) -> Any:
        """Defer a call of a chain; make any other call."""
        first, call.first = call.first, None
        call.args, call.named = looked_at(call.args), looked_at(call.named)
        if call.site not in self.plan:
            return call.made(looked_at(first))
        if type(first) is Waiting:
            last = first._calls[-1].site  # noqa: SLF001 - of the same file
            if self.plan[last].chain == self.plan[call.site].chain:
                longer = first._stallscope_next(call)  # noqa: SLF001
                if longer is not None:
                    return longer
        return Waiting(looked_at(first), (call,), self)
