"""Moving a batch to the device that the step computes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def to_device(batch: Any, device: Any) -> Any:
    """The batch with every tensor in it on the device; everything else as it is.

    Args:
        batch: a tensor, or lists, tuples and mappings of such, or anything with a `to` method.
        device: as `torch.Tensor.to` takes it.
    """
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
