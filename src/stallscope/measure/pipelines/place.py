"""Where a dataset holds what may be its pipeline, and datasets with something else in that place.

A dataset is never changed: what stands on the way from it to the place is copied shallowly, and
the copies lead to the new value.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch.utils.data import Dataset

from stallscope.measure.reach import own
from stallscope.probe import pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEEPEST: Final = 6
_MOST_ITEMS: Final = 200
"""Ops in a list, or datasets in another: a million paths are neither."""


class Step(NamedTuple):
    """One step on the way from a dataset to what it holds."""

    name: Any
    """An attribute's name, an item's number or key."""
    is_item: bool = False

    def __str__(self) -> str:
        return f"[{self.name!r}]" if self.is_item else f".{self.name}"


Path = tuple[Step, ...]


@dataclass(frozen=True)
class Place:
    """Something that a dataset may call on its samples."""

    paths: tuple[Path, ...]
    """The ways to it; several where datasets inside of one share it."""
    value: Any
    """A callable, or a list of such."""

    @property
    def text(self) -> str:
        """The place as one would write it: "dataset.transform"."""
        return "dataset" + "".join(map(str, self.paths[0]))

    def found_in(self, dataset: Any) -> Any:
        """What another dataset holds here; None where it has no such place."""
        value = dataset
        try:
            for step in self.paths[0]:
                value = value[step.name] if step.is_item else own(value)[step.name]
        except (KeyError, IndexError, TypeError):
            return None
        return value

    def filled(self, dataset: Any, value: Any) -> Any:
        """A dataset with another value here; the one that is given stays as it is."""
        for path in self.paths:
            dataset = _with(dataset, path, value)
        return dataset


def places(dataset: Any) -> list[Place]:
    """All places of a dataset and of the datasets inside of it, each value once."""
    return _each_once(_places(dataset, ()))


def readers(dataset: Any) -> list[Place]:
    """Where datasets hold the function that makes an image of a path: `loader`, as torchvision's.

    (`torchvision.datasets.DatasetFolder`: "A function to load a sample given its path".)
    """
    prefixes = [()] + [path[:-1] for place in places(dataset) for path in place.paths]
    found = []
    for prefix in dict.fromkeys(prefixes):
        holder = Place((prefix,), None).found_in(dataset) if prefix else dataset
        reader = own(holder).get("loader")
        if pipeline.is_function(reader):
            found.append(((*prefix, Step("loader")), reader))
    return _each_once(iter(found))


def _each_once(pairs: Iterator[tuple[Path, Any]]) -> list[Place]:
    """Places that hold the same value as one."""
    found: dict[int, Place] = {}
    for path, value in pairs:
        before = found.get(id(value))
        paths = (*before.paths, path) if before else (path,)
        found[id(value)] = Place(paths, value)
    return list(found.values())


def _places(thing: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    for name, value in own(thing).items():
        here = (*path, Step(name))
        if isinstance(value, Dataset) or name == "dataset":
            if len(here) < _DEEPEST:
                yield from _places(value, here)
        elif name == "datasets" and isinstance(value, (list, tuple)):
            for number, inner in enumerate(value[:_MOST_ITEMS]):
                yield from _places(inner, (*here, Step(number, is_item=True)))
        elif type(value).__name__ == "StandardTransform":  # torchvision's: for image and label
            inner = own(value).get("transform")
            if inner is not None:
                yield (*here, Step("transform")), inner
        elif _may_transform(thing, name, value):
            yield here, value


def _may_transform(holder: Any, name: str, value: Any) -> bool:
    """Whether this is a callable or a list of callables, by whose name a sample is transformed."""
    if name == "target_transform" or name.startswith("__"):
        return False
    if isinstance(value, (list, tuple)):
        return 0 < len(value) <= _MOST_ITEMS and all(map(_is_op, value))
    slot = pipeline.Slot(holder, name, value, name)
    is_transform = _is_op(value) and not pipeline.is_own_part(holder, value)
    return is_transform and pipeline.stage_of(slot).kind == "transform"


def _is_op(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def shallow(thing: Any) -> Any:
    """A copy that shares everything with the original; no `__getstate__` of the user's runs."""
    if isinstance(thing, (list, tuple, dict)):
        return copy.copy(thing)
    try:
        clone = object.__new__(type(thing))
        vars(clone).update(vars(thing))
    except TypeError:  # slots, or a base that is made in C
        return copy.copy(thing)
    return clone


def _with(thing: Any, path: Path, value: Any) -> Any:
    """A copy of a thing with another value at the end of the path."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if step.is_item:
        inner = _with(thing[step.name], rest, value)
        if isinstance(thing, tuple):
            return (*thing[: step.name], inner, *thing[step.name + 1 :])
        clone = copy.copy(thing)
        clone[step.name] = inner
        return clone
    clone = shallow(thing)
    vars(clone)[step.name] = _with(own(thing)[step.name], rest, value)
    return clone
