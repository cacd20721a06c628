"""Batches that are made in this process, made as in a worker: with one torch thread."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def in_one_thread(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches; whoever uses them has as many torch threads as ever."""
    threads = torch.get_num_threads()
    while True:
        try:
            torch.set_num_threads(1)
            batch = next(batches)
        except StopIteration:
            return
        finally:
            torch.set_num_threads(threads)
        yield batch


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread, as in a worker."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)
