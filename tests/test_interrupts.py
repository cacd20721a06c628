"""Interrupts that are held back."""

import signal
import threading

import pytest

from stallscope.interrupts import held_back


def test_an_interrupt_is_felt_at_the_end_of_the_block():
    reached = []

    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        with held_back():
            reached.append("end")

    assert ["end"] == reached
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


def test_ignored_interrupts_stay_ignored():
    """A program that is started in the block, such as a spawned worker, still ignores them."""
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
