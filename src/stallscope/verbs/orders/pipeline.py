"""Places of a dataset's pipeline, and the ops in it: nested composes flattened into one row.

The composes of torchvision, torch, albumentations, MONAI and torchio are supported. Another object
that holds a single list of callables may be a compose; `capture` treats it so only if calling the
ops in turn gives the pipeline's data. A dataset never changes: the objects between it and the
pipeline are copied shallowly.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from torch import nn
from torch.utils.data import Dataset

from stallscope.hooks import find_ops
from stallscope.hooks.find_ops import own_attributes
from stallscope.targets.object_graph import functions_of
from stallscope.units import repr_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Path = tuple[str | int, ...]
    """Steps from a dataset to an object: names of attributes, numbers of items."""

DEEPEST: Final = 6
"""Nesting of datasets, and of composes."""
_MOST_ITEMS: Final = 200
"""Ops in a list, or datasets in another; a longer list holds paths of files."""
_COMPOSES: Final = {
    ("torchvision.transforms.transforms", "Compose"): "a torchvision Compose",
    ("torchvision.transforms.v2._container", "Compose"): "a torchvision v2 Compose",
    ("torch.nn.modules.container", "Sequential"): "an nn.Sequential",
    ("albumentations.core.composition", "Compose"): "an albumentations Compose",
    ("monai.transforms.compose", "Compose"): "a MONAI Compose",
    ("torchio.transforms.augmentation.composition", "Compose"): "a torchio Compose",
}
"""Names, by module and class; a subclass may do anything, so it is treated as the user's object."""
_LIBRARIES: Final = ("torch", "torchvision", "albumentations", "monai", "kornia", "torchio")
_LONGEST: Final = 200
"""Characters of an op's settings."""


class Key(str):
    """Step of a path that is the key of a dictionary, not the name of an attribute."""

    __slots__ = ()


@dataclass(frozen=True)
class Place:
    """Place of a callable that a dataset may call on its samples."""

    paths: tuple[Path, ...]
    """Paths to it; several if nested datasets share it."""
    value: Any
    """The callable, or a list of callables."""

    @property
    def text(self) -> str:
        """The place in Python: "dataset.transform"."""
        return f"dataset{self.texts[0]}"

    @property
    def texts(self) -> list[str]:
        """Each path from a dataset, in Python."""
        return [
            "".join(f"[{step!r}]" if isinstance(step, (int, Key)) else f".{step}" for step in path)
            for path in self.paths
        ]

    def assigned(self, dataset: str, new: str) -> list[str]:
        """Return the lines of Python that put an expression into the place."""
        lines = []
        for path, text in zip(self.paths, self.texts, strict=True):
            last = path[-1]
            if type(last) is int:  # in arguments, which are a tuple
                held = f"{dataset}{text.removesuffix(f'[{last}]')}"
                lines.append(f"{held} = (*{held}[:{last}], {new}, *{held}[{last + 1}:])")
            else:
                lines.append(f"{dataset}{text} = {new}")
        return lines

    def found_in(self, dataset: Any) -> Any:
        """Return the value in this place of another dataset; None: it has no such place."""
        value = dataset
        try:
            for step in self.paths[0]:
                is_item = isinstance(step, (int, Key))
                value = value[step] if is_item else own_attributes(value)[str(step)]
        except (KeyError, IndexError, TypeError):
            return None
        return value

    def filled(self, dataset: Any, value: Any) -> Any:
        """Return a copy of a dataset with another value in this place."""
        for path in self.paths:
            dataset = _with(dataset, path, value)
        return dataset


def passed_on(value: Any) -> Any:
    """Return the input, in the place of an op whose work another op does."""
    return value


def places(dataset: Any) -> list[Place]:
    """Return the places of a dataset and of the datasets inside of it, each value once."""
    return _each_once(_places(dataset, ()))


def readers(dataset: Any) -> list[Place]:
    """Return the places of functions that read an image from a path: `loader`, as torchvision's.

    (`torchvision.datasets.DatasetFolder`: "A function to load a sample given its path".)
    """
    prefixes = [()] + [path[:-1] for place in places(dataset) for path in place.paths]
    pairs = []
    for prefix in dict.fromkeys(prefixes):
        reader = own_attributes(Place((prefix,), None).found_in(dataset)).get("loader")
        if find_ops.is_function(reader):
            pairs.append(((*prefix, "loader"), reader))
    return _each_once(iter(pairs))


def _each_once(pairs: Iterator[tuple[Path, Any]]) -> list[Place]:
    """Return the places, those with the same value joined."""
    by_id: dict[int, Place] = {}
    for path, value in pairs:
        before = by_id.get(id(value))
        paths = (*before.paths, path) if before else (path,)
        by_id[id(value)] = Place(paths, value)
    return list(by_id.values())


def _places(holder: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    for name, value in own_attributes(holder).items():
        here = (*path, name)
        if isinstance(value, Dataset) or name == "dataset":
            if len(here) < DEEPEST:
                yield from _places(value, here)
        elif name == "datasets" and isinstance(value, (list, tuple)):
            for number, inner in enumerate(value[:_MOST_ITEMS]):
                yield from _places(inner, (*here, number))
        elif name == "pipeline" and (inner := list(_arguments(value, here))):
            yield from inner
        elif type(value).__name__ == "StandardTransform":  # torchvision's: for image and label
            inner = own_attributes(value).get("transform")
            if inner is not None:
                yield (*here, "transform"), inner
        else:
            yield from _transforms(holder, name, value, here)


def _arguments(steps: Any, here: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the ops that are arguments of a stream's steps, as of webdataset's `map`."""
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        args = own_attributes(step).get("args")
        for place, op in enumerate(args if isinstance(args, tuple) else ()):
            if _is_op(op):
                yield _opened((*here, number, "args", place), op)


def _transforms(holder: Any, name: str, value: Any, here: Path) -> Iterator[tuple[Path, Any]]:
    """Yield a transform, or those of a dictionary, which may have one for each part or purpose."""
    if type(value) is dict and len(value) <= _MOST_ITEMS and not name.startswith("_"):
        for key, inner in value.items():
            if isinstance(key, str) and _may_transform(holder, name, inner):
                yield _opened((*here, Key(key)), inner)
    elif _may_transform(holder, name, value):
        yield _opened(here, value)


def _opened(here: Path, value: Any) -> tuple[Path, Any]:
    """Return a transform, or the compose inside of an object around it, as in presets.

    The object's own code stays in place: it runs as before, around the ops.
    """
    while len(here) < DEEPEST and not _holder(value) and not find_ops.is_function(value):
        held = own_attributes(value) if _is_users(value) else {}
        inner = [(name, part) for name, part in held.items() if _is_op(part) and _holder(part)]
        if len(inner) != 1:
            break
        here, value = (*here, inner[0][0]), inner[0][1]
    return here, value


def _may_transform(holder: Any, name: str, value: Any) -> bool:
    """Return true for a callable, or a list of callables, whose name is that of a transform."""
    if name == "target_transform" or name.startswith("__"):
        return False
    if isinstance(value, (list, tuple)):
        return 0 < len(value) <= _MOST_ITEMS and all(map(_is_op, value))
    slot = find_ops.Slot(holder, name, value, name)
    is_transform = _is_op(value) and not find_ops.is_own_part(holder, value)
    return is_transform and find_ops.stage_of(slot).kind == "transform"


def _is_op(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def shallow(original: Any) -> Any:
    """Return a shallow copy of an object, without running a `__getstate__` of the user's."""
    try:
        clone = object.__new__(type(original))
        vars(clone).update(vars(original))
    except TypeError:  # slots, or a base that is made in C
        return copy.copy(original)
    return clone


def _with(holder: Any, path: Sequence[str | int], value: Any) -> Any:
    """Return a copy of an object with another value at the end of the path."""
    if not path:
        return value
    step, *rest = path
    if isinstance(step, (int, Key)):
        inner = _with(holder[step], rest, value)
        if isinstance(holder, tuple) and isinstance(step, int):
            return (*holder[:step], inner, *holder[step + 1 :])
        clone = copy.copy(holder)
        clone[step] = inner
        return clone
    clone = shallow(holder)
    vars(clone)[step] = _with(own_attributes(holder)[step], rest, value)
    return clone


@dataclass(frozen=True)
class Op:
    """Op of a pipeline."""

    position: int
    """Its place in the original pipeline, from 0."""
    name: str
    """Name of its class; with a number if the pipeline has two of a class."""
    call: Any = field(repr=False)
    """The user's own object."""
    code: str = ""
    """Expression for it, where `old` is the original pipeline."""
    group: int = 0
    """Number of the ops with which it may exchange places: of its chain of calls, else 0."""
    maps_items: bool = False
    """True if it is called for each item of a list, as MONAI's Compose does."""
    is_only: bool = False
    """True if the pipeline has no other op, so that no op gets its result."""

    @property
    def settings(self) -> str:
        """Settings of the op, in one line."""
        text = repr_of(self.call)
        if " object at 0x" in text or text.startswith("<"):
            public = {k: v for k, v in own_attributes(self.call).items() if not k.startswith("_")}
            text = ", ".join(f"{name}={_short(value)}" for name, value in public.items())
        return one_line(text, _LONGEST)

    @property
    def source(self) -> tuple[str | None, int | None]:
        """File and line of its code; None: it is not written in Python."""
        call_site: tuple[str, int] | None = getattr(self.call, "call_site", None)
        if call_site is not None:  # the call in the user's code, not the library's function
            return call_site
        function = next(iter(functions_of(self.call)), None)
        if function is None:
            return None, None
        return function.__code__.co_filename, function.__code__.co_firstlineno


@dataclass(frozen=True, eq=False)
class Chained:
    """Ops called in turn, in the place of a single op."""

    transforms: list[Any]
    """Ops, each called on the result of the one before."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the result of the last op."""
        result = self.transforms[0](*args, **named) if self.transforms else args[0]
        for op in self.transforms[1:]:
            result = op(result)
        return result


class OuterDataset(Dataset[Any]):
    """Dataset around another, which answers for all attributes that this one lacks."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # while it is unpickled it has none yet
            raise AttributeError(name)
        return getattr(self.dataset, name)


class Chain:
    """A pipeline and its ops.

    Args:
        value: value of the place.
        whole: treat it as one op.
    """

    def __init__(self, value: Any, *, whole: bool = False) -> None:
        self.value = value
        self.kind = "one op" if whole else _kind(value)
        self.holder = "" if whole else _holder(value)
        """Attribute of a compose that holds its ops; "": the value is not a compose."""
        flat = [(value, "old", False)] if whole else list(_flattened(value, "old", 0))
        names = numbered([find_ops.name_of(op) for op, _, _ in flat])
        self.ops = tuple(
            Op(position, name, op, code, maps_items=maps, is_only=len(flat) == 1)
            for position, (name, (op, code, maps)) in enumerate(zip(names, flat, strict=True))
        )

    @property
    def is_known(self) -> bool:
        """True if its ops are called in turn for sure: a list, or a library's own compose."""
        return isinstance(self.value, (list, tuple)) or bool(_compose(self.value))

    def put_together(self, ops: Sequence[Any]) -> Any:
        """Return a pipeline of the same kind from other ops; the original stays unchanged."""
        value = self.value
        if len(ops) == 1 and ops[0] is value:
            return value
        if isinstance(value, (list, tuple)):
            return type(value)(ops)
        if not self.holder:
            return Chained(list(ops))
        clone = shallow(value)
        if isinstance(value, nn.Sequential):
            vars(clone)["_modules"] = {str(number): op for number, op in enumerate(ops)}
            return clone
        inner = own_attributes(value)[self.holder]
        vars(clone)[self.holder] = tuple(ops) if isinstance(inner, tuple) else list(ops)
        return clone


def is_no_tool(value: Any) -> bool:
    """Return true for a callable outside of Python's own library, which may work on a sample."""
    return _package_of(value) not in sys.stdlib_module_names


def _package_of(value: Any) -> str:
    home = value if find_ops.is_function(value) else type(value)
    return find_ops.package(getattr(home, "__module__", None) or "builtins")


def _compose(value: Any) -> str:
    """Return the name of a library's compose; "": the value is not one."""
    return _COMPOSES.get((type(value).__module__, type(value).__name__), "")


def _kind(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "a list of ops"
    return _compose(value) or (f"a {type(value).__name__}" if _holder(value) else "one op")


def _holder(value: Any) -> str:
    """Return the attribute that holds a compose's ops; "": the value is not a compose."""
    if isinstance(value, nn.Sequential):
        return "_modules" if type(value) is nn.Sequential else ""
    if find_ops.is_function(value) or not callable(value) or _is_special(value):
        return ""
    listed = [
        name
        for name, inner in own_attributes(value).items()
        if isinstance(inner, (list, tuple)) and inner and all(map(callable, inner))
    ]
    if _compose(value):
        return "transforms" if "transforms" in listed else ""
    return listed[0] if len(listed) == 1 and _is_users(value) else ""


def _is_special(value: Any) -> bool:
    """Return true if a compose does more than call its ops in turn."""
    attributes = own_attributes(value)
    does_boxes = bool(attributes.get("processors"))  # albumentations: boxes and key points
    is_lazy = bool(attributes.get("_lazy"))  # MONAI
    probability = attributes.get("p", attributes.get("probability", 1))  # torchio's name
    return does_boxes or is_lazy or probability != 1


def _is_users(value: Any) -> bool:
    """Return true if a class is the user's own; a library's RandomApply or OneOf is one op."""
    return _package_of(value) not in _LIBRARIES


def _flattened(value: Any, code: str, depth: int) -> list[tuple[Any, str, bool]]:
    """Return the ops inside of a value, each with its expression and true if it maps items."""
    if isinstance(value, (list, tuple)):
        items, attribute = list(value), ""
    else:
        holder = _holder(value) if depth < DEEPEST else ""
        if not holder or (depth and not _compose(value)):
            return [(value, code, False)]
        is_sequential = isinstance(value, nn.Sequential)
        items = list(value if is_sequential else own_attributes(value)[holder])
        attribute = "" if is_sequential else f".{holder}"
    maps = type(value).__module__ == "monai.transforms.compose" and bool(
        own_attributes(value)["map_items"]
    )
    return [
        (op, text, inner or maps)
        for number, item in enumerate(items)
        for op, text, inner in _flattened(item, f"{code}{attribute}[{number}]", depth + 1)
    ]


def numbered(names: list[str]) -> list[str]:
    """Return the names, with a number behind each repeated name."""
    counts = [names[: at + 1].count(name) for at, name in enumerate(names)]
    pairs = zip(names, counts, strict=True)
    return [f"{name} #{number}" if number > 1 else name for name, number in pairs]


def one_line(text: str, longest: int) -> str:
    """Return a text in one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _short(value: Any) -> str:
    text = " ".join(repr_of(value).split())
    return text if len(text) <= 40 else f"a {type(value).__name__}"  # noqa: PLR2004 - one line


def name_of(op: Any) -> str:
    """Return the name of an object that replaces an op."""
    return str(getattr(op, "__name__", type(op).__name__))
