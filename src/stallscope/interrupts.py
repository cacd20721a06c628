"""What comes at any moment, signals and garbage collection: held back where that does harm.

Ctrl-C raises `KeyboardInterrupt`, as ever. SIGTERM and SIGHUP end a process at once, so that
nothing is saved and nothing is cleared away; the command line lets them raise, too. Torch's handler
of SIGCHLD raises `RuntimeError` in the main thread, at whatever it does, when a worker has died.

The collector ends what is garbage, at any allocation. In a forked worker that may be the parent's:
CUDA kills a process that destroys another's events. And `sys._current_frames` of CPython 3.11 lets
it run while holding the lock that each thread needs to begin and to end: garbage that gives up
Python's own lock then stops them all.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_POLITE: Final = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""A polite kill, and a terminal that was closed; Windows has no SIGHUP."""
_OF_SIGNAL: Final = 128
"""A shell's status of a command that a signal has ended: this and the signal's number."""
_SOON_S: Final = 0.02


_CHILD_ENDS: Final = [getattr(signal, name) for name in ("SIGCHLD",) if hasattr(signal, name)]
_HELD: Final = [signal.SIGINT, *_POLITE, *_CHILD_ENDS]


class _Held:
    """Stands in for the handler of a signal and remembers that there was one."""

    def __init__(self, handler: Callable[..., object] | int) -> None:
        self.handler = handler
        self.came = False
        self.holds = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        meant = self.came and number not in _CHILD_ENDS  # the second time; children end in crowds
        self.came = True
        if (meant or not self.holds) and callable(self.handler):
            self.handler(number, frame)


class _Ending:
    """Ends the program as Ctrl-C does: its first call raises, others change nothing."""

    def __call__(self, number: int, _: FrameType | None) -> None:
        for one in _POLITE:  # a shell sends SIGHUP after the terminal has: saving goes on
            if isinstance(signal.getsignal(one), _Ending):
                signal.signal(one, signal.SIG_IGN)
        raise SystemExit(_OF_SIGNAL + number)


@contextmanager
def held_back() -> Iterator[None]:
    """Let what interrupts this block be felt at its end; only in the main thread.

    Who sets a handler in the block keeps it, and may call the one that it found.

    A process that ignores interrupts, as one that a shell has started with `&`, goes on so: what is
    spawned in the block inherits that.
    """
    with ExitStack() as ends:
        if threading.current_thread() is threading.main_thread():
            for number in _HELD:
                before = signal.getsignal(number)
                ends_at_once = before is signal.SIG_DFL and number != signal.SIGINT
                if before in (None, signal.SIG_IGN) or isinstance(before, _Held) or ends_at_once:
                    continue
                held = _Held(before)
                ends.callback(_let_go, number, held)
                signal.signal(number, held)
        yield


def _let_go(number: int, held: _Held) -> None:
    held.holds, handler = False, held.handler
    if signal.getsignal(number) is held:
        signal.signal(number, handler)
    if held.came:
        signal.raise_signal(number)


@contextmanager
def ended_politely() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block by `SystemExit`, with the status a shell expects.

    Where they are ignored, as under `nohup`, or have a handler of somebody's, they stay that. What
    interrupts the block is not lost where Python would only print it.
    """
    with ExitStack() as ends:
        for number in _POLITE:
            before = signal.getsignal(number)
            if before is signal.SIG_DFL:
                ends.callback(partial(signal.signal, number, before))
                signal.signal(number, _Ending())
        ends.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = partial(_not_lost, sys.unraisablehook, os.getpid())
        yield


def _not_lost(say: Callable[[Any], object], pid: int, lost: Any) -> None:
    """Let come again what Python loses inside of a finalizer, a collection of garbage, a fork."""
    code: Any = getattr(lost.exc_value, "code", None)
    number: int = signal.SIGINT
    if lost.exc_type is SystemExit and code in {_OF_SIGNAL + one for one in _POLITE}:
        number = code - _OF_SIGNAL
        signal.signal(number, _Ending())
    elif lost.exc_type is not KeyboardInterrupt:
        say(lost)
        return
    if os.getpid() == pid:
        again = threading.Timer(_SOON_S, os.kill, (pid, number))
        again.daemon = True
        again.start()


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage is looked for in the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Let processes that start in this block never see Ctrl-C, which a terminal sends to them, too.

    Who started them ends them. Else each that is still starting would end in a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _release_in_child() -> None:
    """Give a process that was forked inside such a block the handlers of its parent back."""
    for number in _HELD:
        before = signal.getsignal(number)
        if isinstance(before, _Held):
            before.holds = False
            before = before.handler
            signal.signal(number, before)
        if isinstance(before, _Ending):
            signal.signal(number, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
