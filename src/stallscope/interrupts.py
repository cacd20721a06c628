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
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


_POLITE: Final = [getattr(signal, n) for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]
"""A polite kill, and a terminal that was closed; Windows has few signals."""
_DELAYED: Final = [signal.SIGINT, *_POLITE, *filter(None, [getattr(signal, "SIGCHLD", None)])]
_STATUS_OF_SIGNAL: Final = 128
"""A shell's status of a command that a signal has ended: this and the signal's number."""


@contextmanager
def held_back() -> Iterator[None]:
    """Delay what interrupts this block to its end; only in the main thread.

    A second Ctrl-C is not delayed. A process that ignores interrupts, as one that a shell has
    started with `&`, goes on ignoring them: what is spawned in the block inherits that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in _DELAYED}
    before = {number: handler for number, handler in handlers.items() if callable(handler)}
    came: list[int] = []
    pid, is_over = os.getpid(), False

    def delay(number: int, frame: FrameType | None) -> None:
        insists = number == signal.SIGINT and number in came
        if insists or is_over or os.getpid() != pid:  # torch may keep this as the handler it found
            before[number](number, frame)
        else:
            came.append(number)

    for number in before:
        signal.signal(number, delay)
    try:
        yield
    finally:
        is_over = True
        for number, handler in before.items():
            if signal.getsignal(number) is delay:
                signal.signal(number, handler)
        if os.getpid() == pid:
            for number in dict.fromkeys(came):
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
    ours = [number for number in _POLITE if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, _end)
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def no_collection() -> Iterator[None]:
    """Look for no garbage in the block."""
    restore = gc.enable if gc.isenabled() else gc.disable
    gc.disable()
    try:
        yield
    finally:
        restore()


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
    for number in _POLITE:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)
