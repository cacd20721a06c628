"""Signals and garbage collection, delayed where they would do harm.

Ctrl-C raises `KeyboardInterrupt`, as ever. SIGTERM and SIGHUP end a process at once, so that
nothing is saved and nothing is cleared away; the command line lets them raise, too. Torch's handler
of SIGCHLD raises `RuntimeError` in the main thread, at any line, when a worker has died.

The collector ends what is garbage, at any allocation. In a forked worker that may be the parent's:
CUDA kills a process that destroys another's events. And `sys._current_frames` of CPython 3.11 lets
it run while holding the lock that each thread needs to begin and to end: garbage that gives up
Python's own lock then stops them all.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


def _existing(*names: str) -> list[int]:
    """Return the signals that this system has; Windows has few."""
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


_POLITE: Final = _existing("SIGTERM", "SIGHUP")
"""A polite kill, and a terminal that was closed."""
_CHILD_ENDS: Final = _existing("SIGCHLD")
_DELAYED: Final = [signal.SIGINT, *_POLITE, *_CHILD_ENDS]
_STATUS_OF_SIGNAL: Final = 128
"""A shell's status of a command that a signal has ended: this and the signal's number."""


class _Delayed:
    """Handler of a signal that remembers the signal until its block ends."""

    def __init__(self, handler: Callable[..., object] | int) -> None:
        self.handler = handler
        self.came = False
        self.delays = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        insists = self.came and number not in _CHILD_ENDS  # pressed twice; children end in crowds
        self.came = True
        if (insists or not self.delays) and callable(self.handler):
            self.handler(number, frame)


@contextmanager
def held_back() -> Iterator[None]:
    """Delay what interrupts this block to its end; only in the main thread.

    A handler that is set in the block stays, and may call the one that it found. A process that
    ignores interrupts, as one that a shell has started with `&`, goes on ignoring them: what is
    spawned in the block inherits that.
    """
    with ExitStack() as ends:
        if threading.current_thread() is threading.main_thread():
            for number in _DELAYED:
                before = signal.getsignal(number)
                # None: set by C code; one that ends the process leaves no block half done
                is_default = before is signal.SIG_DFL and number != signal.SIGINT
                if before in (None, signal.SIG_IGN) or is_default or isinstance(before, _Delayed):
                    continue
                delayed = _Delayed(before)
                ends.callback(_resume, number, delayed)
                signal.signal(number, delayed)
        yield


def _resume(number: int, delayed: _Delayed) -> None:
    delayed.delays, handler = False, delayed.handler
    if signal.getsignal(number) is delayed:
        signal.signal(number, handler)
    if delayed.came:
        signal.raise_signal(number)


def _end(number: int, _: FrameType | None) -> None:
    """End the program as Ctrl-C does: the first signal raises, others change nothing."""
    for signal_number in _POLITE:  # a shell sends SIGHUP after the terminal has: saving goes on
        if signal.getsignal(signal_number) is _end:
            signal.signal(signal_number, signal.SIG_IGN)
    raise SystemExit(_STATUS_OF_SIGNAL + number)


@contextmanager
def ended_politely() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block by `SystemExit`, with the status a shell expects.

    Where they are ignored, as under `nohup`, or have a handler of somebody's, they stay that.
    """
    with ExitStack() as ends:
        for number in _POLITE:
            if signal.getsignal(number) is signal.SIG_DFL:
                ends.callback(signal.signal, number, signal.SIG_DFL)
                signal.signal(number, _end)
        yield


@contextmanager
def no_collection() -> Iterator[None]:
    """Look for no garbage in the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Let processes that start in this block never see Ctrl-C, which a terminal sends to all.

    Their parent ends them. Otherwise each that is still starting would end in a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _restore_in_child() -> None:
    """Give a process that was forked inside such a block the handlers of its parent back."""
    for number in _DELAYED:
        handler: Any = signal.getsignal(number)
        if isinstance(handler, _Delayed):
            handler.delays = False
            handler = handler.handler
            signal.signal(number, handler)
        if handler is _end:
            signal.signal(number, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)
