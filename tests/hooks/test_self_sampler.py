"""A process that samples its own stacks."""

import threading

from support import busy_loaders

from stallscope.hooks import self_sampler
from stallscope.hooks.self_sampler import Request


def deep(depth: int, done: threading.Event) -> None:
    if depth:
        deep(depth - 1, done)
    else:
        done.wait()


def sampled(seconds=0.3, rate_hz=100.0, *, idle=False):
    return self_sampler.sample(Request(0, rate_hz, seconds, idle), lambda: True)


def names(seen):
    """Return the functions of every stack, the outermost first."""
    return [
        [seen.frames[number][0].rpartition(".")[2] for number in stack]
        for stacks in seen.threads.values()
        for stack in stacks
    ]


def test_a_thread_that_works_is_seen():
    worker = threading.Thread(target=busy_loaders.spin, args=(0.3,))
    worker.start()
    seen = sampled()
    worker.join()

    stacks = [stack for stack in names(seen) if "spin" in stack]
    assert stacks
    assert all(stack.index("run") < stack.index("spin") for stack in stacks)


def test_a_thread_that_waits_is_seen_when_asked_for():
    done = threading.Event()
    waiting = threading.Thread(target=deep, args=(100, done))
    waiting.start()
    seen, idle = sampled(), sampled(idle=True)
    done.set()
    waiting.join()

    assert not [stack for stack in names(seen) if "deep" in stack]
    assert 101 == max(stack.count("deep") for stack in names(idle))
