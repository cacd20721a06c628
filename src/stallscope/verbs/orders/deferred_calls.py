"""Running a copy of `__getitem__` whose calls are recorded, or deferred to change their order.

`__getitem__` and the other methods of the user's class run as copies of their code. Global names in
the copies are wrapped, so that each call is seen; the user's objects stay unchanged. Workers import
this module, so it imports no polars.

To change the order, a call of a chain returns a placeholder. The calls are made, with the original
arguments, when the code uses the result. So `__getitem__` draws its random numbers as before.
"""

from __future__ import annotations

import dis
import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from torch.utils.data import Dataset

from stallscope.hooks.find_ops import own_attributes
from stallscope.loops.cached_values import mapped
from stallscope.verbs.orders.pipeline import is_no_tool, shallow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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


@dataclass(eq=False)
class CodeCall:
    """One call, without its first argument."""

    site: CallSite
    function: Any
    args: tuple[Any, ...]
    named: dict[str, Any]
    keyword: str = ""
    """Name of the first argument, if it is a keyword argument."""

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


class _Module:
    """Wrapper of a module whose functions report their calls."""

    def __init__(self, module: Any, dataset: NoticedCalls) -> None:
        self._module, self._dataset = module, dataset

    def __getattr__(self, name: str) -> Any:
        return self._dataset.noticed(getattr(self._module, name))


class _Noticed:
    """Wrapper of a callable that reports each call."""

    def __init__(self, function: Any, dataset: NoticedCalls) -> None:
        self._function, self._dataset = function, dataset

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._dataset.call(self._function, sys._getframe(1), args, named)  # noqa: SLF001

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class NoticedCalls(Dataset[Any]):
    """Dataset that runs a copy of another's code, and sees its calls; a subclass makes them.

    Args:
        dataset: the user's, whose class has a `__getitem__` of its own.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._clone: Any = None

    def called(self, call: CodeCall, first: Any, frame: types.FrameType) -> Any:
        """Return the result of a call in the user's code, or a placeholder."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        if self._clone is None:
            self._clone = self._copy_of_dataset()
        return looked_at(self._clone[index])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_clone": None}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("dataset", "_clone"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def call(self, function: Any, frame: types.FrameType, *arguments: Any) -> Any:
        """Hand a call on to `called`."""
        args, named = arguments
        if not args and not named:
            return function()
        site = CallSite(frame.f_code.co_name, frame.f_lasti, _name_of(function))
        keyword = "" if args else next(iter(named))
        first = args[0] if args else named[keyword]
        rest = {name: value for name, value in named.items() if name != keyword}
        return self.called(CodeCall(site, function, args[1:], rest, keyword), first, frame)

    def noticed(self, value: Any) -> Any:
        """Return the wrapper of a global value, or the value itself."""
        if isinstance(value, types.ModuleType):
            package = value.__name__.partition(".")[0]
            return value if package in sys.stdlib_module_names else _Module(value, self)
        if callable(value) and not isinstance(value, type) and is_no_tool(value):
            return _Noticed(value, self)
        return value

    def _copy_of_dataset(self) -> Any:
        """Return a copy of the dataset whose attributes and methods report their calls."""
        clone, cls = shallow(self.dataset), type(self.dataset)
        for name, value in own_attributes(self.dataset).items():
            if callable(value) and not isinstance(value, (type, Dataset)):
                vars(clone)[name] = _Noticed(value, self)
        methods: dict[str, Any] = {}
        for owner in reversed(cls.__mro__):
            if owner.__module__.partition(".")[0] in _LIBRARIES:
                continue
            for name, value in vars(owner).items():
                is_static = isinstance(value, staticmethod)
                function = value.__func__ if is_static else value
                if not isinstance(function, types.FunctionType) or _sets_globals(function):
                    continue
                if name == "__getitem__":
                    methods[name] = self._copied(function)
                elif not name.startswith("__"):
                    methods[name] = self._method(self._copied(function), is_static=is_static)
        clone.__class__ = type(cls.__name__, (cls,), methods)
        return clone

    def _copied(self, function: types.FunctionType) -> types.FunctionType:
        own = function.__globals__
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        stands = {name: self.noticed(own[name]) for name in names if name in own}
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

    def _method(self, function: types.FunctionType, *, is_static: bool) -> Any:
        """Return a method whose calls are reported, and whose own calls are, too."""

        def method(*args: Any, **named: Any) -> Any:
            frame = sys._getframe(1)  # noqa: SLF001 - where the user's code calls it
            called: Any = function if is_static else types.MethodType(function, args[0])
            return self.call(called, frame, args if is_static else args[1:], named)

        return staticmethod(method) if is_static else method


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _sets_globals(function: types.FunctionType) -> bool:
    """Return true if a function writes global names, which a copy would write elsewhere."""
    return any(
        step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
        for code in _codes(function.__code__)
        for step in dis.get_instructions(code)
    )


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


# ---- deferred calls ------------------------------------------------------------------------------


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
            ordered, value = self._ordered, self._value
            for call in sorted(self._calls, key=lambda call: ordered.places[call.site][1]):
                value = call.made(value, ordered.replaced.get(call.site))
            self._result, self._is_done = value, True
        return self._result

    def _cut(self, after: CallSite | None) -> None:
        if after is not None:
            self._ordered.cuts.add((self._calls[-1].site, after))

    def __getattr__(self, name: str) -> Any:
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
        places: chain and place in the new order, of each call.
        replaced: functions that replace the called ones.

    Attributes:
        cuts: pairs of calls between which the code used the result.
    """

    def __init__(
        self,
        dataset: Any,
        places: Mapping[CallSite, tuple[int, int]],
        replaced: Mapping[CallSite, Any],
    ) -> None:
        super().__init__(dataset)
        self.places, self.replaced = places, replaced
        self.cuts: set[tuple[CallSite, CallSite]] = set()

    def called(self, call: CodeCall, first: Any, _: types.FrameType) -> Any:
        """Defer a call of a chain; make any other call."""
        call.args, call.named = looked_at(call.args), looked_at(call.named)
        if call.site not in self.places:
            return call.made(looked_at(first))
        if type(first) is Waiting:
            last = first._calls[-1].site  # noqa: SLF001 - of the same file
            if self.places[last][0] == self.places[call.site][0]:
                longer = first._stallscope_next(call)  # noqa: SLF001
                if longer is not None:
                    return longer
        return Waiting(looked_at(first), (call,), self)
