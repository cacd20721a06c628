"""Which rank this process is, and that active experiments leave distributed training alone."""

from __future__ import annotations

import os

import torch.distributed

from stallscope.errors import UnsupportedError


def rank() -> int:
    """Rank of this process, 0 where there is only one."""
    if _is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK") or 0)


def alone() -> None:
    """Make sure that this process trains alone.

    Raises:
        UnsupportedError: it is one of several ranks, which would wait for each other.
    """
    ranks = _ranks()
    if ranks > 1:
        raise UnsupportedError(
            f"this process is one of {ranks} ranks, and an experiment of its own would make the "
            "others wait. Use ss.instrumented, which only watches, or run it in one process"
        )


def _ranks() -> int:
    """How many ranks train together, also before they have met (torchrun sets the variable)."""
    if _is_initialized():
        return torch.distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE") or 1)


def _is_initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
