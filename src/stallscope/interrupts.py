"""Holding Ctrl-C back for the moments in which half done is worse than late."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class _Held:
    """Stands in for the handler of SIGINT and remembers that there was one."""

    def __init__(self, handler: object) -> None:
        self.handler = handler
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.came and callable(self.handler):  # the second time it is meant
            self.handler(number, frame)
        self.came = True


@contextmanager
def held_back() -> Iterator[None]:
    """Let an interrupt that comes in this block be felt at its end; only in the main thread.

    A process that ignores interrupts, as one that a shell has started with `&`, goes on so: what is
    spawned in the block inherits that.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or before in (None, signal.SIG_IGN) or isinstance(before, _Held):
        yield
        return
    held = _Held(before)
    signal.signal(signal.SIGINT, held)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held.came:
            signal.raise_signal(signal.SIGINT)


def _release_in_child() -> None:
    """Give a process that was forked inside such a block the handler of its parent back."""
    held = signal.getsignal(signal.SIGINT)
    if isinstance(held, _Held):
        signal.signal(signal.SIGINT, held.handler)  # type: ignore[arg-type]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
