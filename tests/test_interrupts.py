"""Holding Ctrl-C back."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack

import pytest

from stallscope.interrupts import held_back


def test_an_interrupt_is_felt_at_the_end_of_the_block():
    """The block runs to its end, then KeyboardInterrupt comes, once."""
    reached = []

    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        with held_back():
            reached.append("end")

    assert ["end"] == reached
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


def test_ignored_interrupts_stay_ignored():
    """A program that is started in the block, such as a spawned worker, inherits that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back():
            assert signal.SIG_IGN is signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_just_run():
    """Signals belong to the main thread: elsewhere the block is a plain block."""
    done = []

    def run() -> None:
        with held_back():
            done.append(1)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert [1] == done


def _handling(number, handler):
    """Set a handler for the length of a `with` block."""
    ends = ExitStack()
    ends.callback(signal.signal, number, signal.signal(number, handler))
    return ends


def test_what_a_dead_child_raises_is_felt_at_the_end_once():
    """As torch's handler raises when a worker has died; several children may end in the block."""
    reached = []

    def raises(*_):
        raise RuntimeError("DataLoader worker")

    with _handling(signal.SIGCHLD, raises):
        with pytest.raises(RuntimeError, match="DataLoader worker"), held_back():
            signal.raise_signal(signal.SIGCHLD)
            signal.raise_signal(signal.SIGCHLD)
            reached.append("end")
        assert raises is signal.getsignal(signal.SIGCHLD)

    assert ["end"] == reached


def test_a_handler_that_is_set_in_the_block_stays():
    """Torch sets one at its first worker and calls the one that it found, also afterwards."""
    told = []

    with _handling(signal.SIGCHLD, lambda *_: told.append("before")):
        with held_back():
            found = signal.getsignal(signal.SIGCHLD)
            signal.signal(signal.SIGCHLD, lambda *at: (told.append("torch"), found(*at)))
            signal.raise_signal(signal.SIGCHLD)
            assert ["torch"] == told
        assert ["torch", "torch", "before"] == told
        signal.raise_signal(signal.SIGCHLD)

    assert ["torch", "torch", "before", "torch", "before"] == told
