"""Moving a batch to the device that the step computes on."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch


def to_device(batch: Any, device: Any) -> Any:
    """The batch with every tensor in it on the device; everything else as it is.

    Args:
        batch: a tensor, or lists, tuples and mappings of such, or anything with a `to` method,
            which may return what was moved or move what it belongs to.
        device: as `torch.Tensor.to` takes it.
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
