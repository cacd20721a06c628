"""Samples and batches of any type: how large they are, copies of them, and whether they changed."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from stallscope.targets.object_graph import own_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_DEEPEST: Final = 12


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """What lists, tuples, mappings and the attributes of objects hold, all the way down."""
    if depth > _DEEPEST:
        return
    inside = _inside(value)
    if inside is None:
        yield value
        return
    for one in inside:
        yield from leaves(one, depth + 1)


def _inside(value: Any) -> list[Any] | None:
    """What a value holds; None for one that is held as a whole."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, torch.Tensor) or _is_array(value) or is_image(value):
        return None
    return list(own_attributes(value).values()) or None


def bytes_of(value: Any) -> int:
    """About how much memory a value needs, bytes."""
    return sum(map(_bytes_of_leaf, leaves(value)))


def _bytes_of_leaf(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return leaf.numel() * leaf.element_size()
    if _is_array(leaf):
        return int(leaf.nbytes)
    if is_image(leaf):
        return int(leaf.width * leaf.height * len(leaf.getbands()))
    return sys.getsizeof(leaf, 64)


def samples_in(batch: Any, usual: int | None = None) -> int:
    """How many samples a batch has.

    Args:
        batch: a tensor, columns of samples, or a list of samples; anything else counts as one.
        usual: the loader's batch size; of several lengths that a batch has, this one is meant.
    """
    lengths = list(_lengths(batch))
    meant = next((length for length, is_last in lengths if is_last), 1)
    if usual is None or meant > usual:
        return meant
    return max((length for length, _ in lengths if length <= usual), default=1)


def _lengths(batch: Any, *, is_inside: bool = False) -> Iterator[tuple[int, bool]]:
    """The length of a batch, of the first thing in it, of the first in that; and which is meant.

    A list of tensors inside of a batch may be a column of samples, as the images of a detector,
    which are of any size, or some views of each.
    """
    if _is_tensor(batch):
        yield from [(len(batch), True)] if batch.ndim else []
    elif isinstance(batch, (list, tuple)) and batch:
        deeper = list(_lengths(batch[0], is_inside=True))
        yield len(batch), not deeper or (is_inside and _is_tensor(batch[0]))
        yield from deeper
    elif inside := _inside(batch):
        yield from _lengths(inside[0], is_inside=True)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or _is_array(value)


def fresh(value: Any) -> Any:
    """A copy that shares nothing which could be changed in place."""
    return mapped(value, copied)


def shell(value: Any) -> Any:
    """A copy of the containers alone: items can be added and taken away, tensors are shared."""
    return mapped(value, lambda leaf: leaf)


def compact(value: Any) -> Any:
    """The value with tensors that own no more memory than they show; pickling sends all of it."""
    return mapped(value, _compact_leaf)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with new containers, whose leaves were changed; an object's class is kept."""
    if type(value) is dict:
        return {key: mapped(one, change) for key, one in value.items()}
    if type(value) is list:
        return [mapped(one, change) for one in value]
    if isinstance(value, tuple):
        values = [mapped(one, change) for one in value]
        if type(value) is tuple:
            return tuple(values)
        return type(value)(*values) if hasattr(value, "_fields") else change(value)
    return change(value)


def copied(leaf: Any) -> Any:
    """A copy of what is held as a whole."""
    if isinstance(leaf, torch.Tensor) and type(leaf) is torch.Tensor:
        clone = leaf.detach().clone()
        clone = clone.pin_memory() if leaf.is_pinned() else clone
        return clone.requires_grad_(leaf.requires_grad)
    if is_image(leaf):
        return leaf.copy()
    return copy.deepcopy(leaf)


def _compact_leaf(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor and leaf.layout is torch.strided:
        whole = leaf.untyped_storage().nbytes()
        return leaf.clone() if whole > leaf.numel() * leaf.element_size() else leaf
    return leaf


def versions(value: Any) -> list[int]:
    """A number for each tensor, which grows when it is changed in place."""
    tensors = (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))
    return [tensor._version for tensor in tensors if not tensor.is_inference()]  # noqa: SLF001 - torch has no other name for it


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in each tensor, array and image, and alike in the rest."""
    ours, theirs = list(leaves(one)), list(leaves(other))
    return len(ours) == len(theirs) and all(map(_same_leaf, ours, theirs))


def _same_leaf(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.device == other.device and torch.equal(one, other)
    if _is_array(one):
        return bool(one.shape == other.shape and one.tobytes() == other.tobytes())
    if is_image(one):
        return bool(one == other)
    return bool(one == other) if isinstance(one, (str, bytes, int, float)) else True


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "nbytes") and hasattr(value, "ndim")


def is_image(value: Any) -> bool:
    """Tell whether this is an image of PIL's."""
    return type(value).__module__.startswith("PIL.") and hasattr(value, "getbands")
