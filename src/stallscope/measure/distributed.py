"""Which rank this process is, and that active experiments leave distributed training alone."""

from __future__ import annotations

import os

import torch.distributed

from stallscope.errors import UnsupportedError


def rank() -> int:
    """Rank of this process, 0 where there is only one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def alone() -> None:
    """Make sure that this process trains alone.

    Raises:
        UnsupportedError: it is one of several ranks, which would wait for each other.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    ranks = torch.distributed.get_world_size()
    if ranks > 1:
        raise UnsupportedError(
            f"this process is one of {ranks} ranks, and an experiment of its own would make the "
            "others wait. Use ss.instrumented, which only watches, or run it in one process"
        )
