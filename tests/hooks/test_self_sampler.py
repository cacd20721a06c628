"""A process that samples its own stacks."""

from __future__ import annotations

import gc
import sys
import threading
import time

from support import busy_loaders

from stallscope.hooks import self_sampler
from stallscope.hooks.self_sampler import Request


def deep(depth: int, done: threading.Event) -> None:
    """Wait at the end of so many frames."""
    if depth:
        deep(depth - 1, done)
    else:
        done.wait()


def sampled(seconds=0.3, rate_hz=100.0, *, idle=False):
    """What this process shows of itself."""
    return self_sampler.sample(Request(0, rate_hz, seconds, idle), lambda: True)


def names(seen):
    """The functions of every stack, the outermost first."""
    return [
        [seen.frames[number][0].rpartition(".")[2] for number in stack]
        for stacks in seen.threads.values()
        for stack in stacks
    ]


def test_a_thread_that_works_is_seen():
    """With its frames in their order."""
    worker = threading.Thread(target=busy_loaders.spin, args=(0.3,))
    worker.start()
    seen = sampled()
    worker.join()

    stacks = [stack for stack in names(seen) if "spin" in stack]
    assert stacks
    assert all(stack.index("run") < stack.index("spin") for stack in stacks)


def test_a_thread_that_waits_is_seen_when_asked_for():
    """A hundred frames of it."""
    done = threading.Event()
    waiting = threading.Thread(target=deep, args=(100, done))
    waiting.start()
    seen, idle = sampled(), sampled(idle=True)
    done.set()
    waiting.join()

    assert not [stack for stack in names(seen) if "deep" in stack]
    assert 101 == max(stack.count("deep") for stack in names(idle))


def test_threads_that_come_and_go():
    """A stack is read whole or not at all."""
    ending = threading.Event()

    def short_lived():
        while not ending.is_set():
            thread = threading.Thread(target=busy_loaders.spin, args=(0.0005,))
            thread.start()
            thread.join()

    busy = [threading.Thread(target=short_lived) for _ in range(3)]
    for thread in busy:
        thread.start()
    seen = sampled(0.5, 1000.0)
    ending.set()
    for thread in busy:
        thread.join()

    assert seen.looks
    ours = [stack for stack in names(seen) if {"spin", "short_lived"} & set(stack)]
    assert ours
    assert all("_bootstrap" == stack[0] for stack in ours)


def test_no_garbage_is_looked_for_while_stacks_are_read(monkeypatch):
    """CPython's lock of all threads is held meanwhile: what garbage does could wait for them."""
    read, was_enabled = sys._current_frames, []

    def watched():
        was_enabled.append(gc.isenabled())
        return read()

    monkeypatch.setattr(sys, "_current_frames", watched)
    sampled(0.2)

    assert was_enabled
    assert not any(was_enabled)
    assert gc.isenabled()


def test_the_switch_interval_is_put_back():
    """It is the process's own."""
    before = sys.getswitchinterval()
    sampled(0.05)

    assert before == sys.getswitchinterval()


def test_a_request_is_answered_once(tmp_path):
    """Also when it lies there for longer."""
    end = self_sampler.serve_requests(tmp_path)
    self_sampler.request(tmp_path, Request(7, 100.0, 0.05))
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*-7.sampled")) and time.monotonic() < deadline:
        time.sleep(0.01)
    first = next(tmp_path.glob("*-7.sampled"))
    first.unlink()
    time.sleep(0.2)
    end()

    assert not first.exists()
