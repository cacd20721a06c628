"""Loops that run in turns over real workers: stopped workers, failures and cleanup."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from stallscope.bench import loops
from stallscope.bench.comparison import blocks_of, compared, rate
from stallscope.bench.loops import InTurns
from stallscope.bench.measurement import Measurement
from stallscope.errors import ArgumentError
from stallscope.loops.cached_loaders import going_on
from stallscope.loops.training_loop import TimedLoop, check_step_s
from stallscope.targets.target import Target

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are stopped on Linux")


class Computes(Dataset):
    """Samples that compute for `each_s` seconds."""

    def __init__(self, each_s=0.002):
        self.each_s = each_s

    def __len__(self):
        return 64

    def __getitem__(self, index):
        until_s = time.thread_time() + self.each_s
        while time.thread_time() < until_s:
            pass
        return torch.tensor(index)


def loop(dataset, step=None, workers=1):
    loader = going_on(DataLoader(dataset, 4, num_workers=workers))
    return TimedLoop.of(Target(loader, step))


def turns_of(measurement, *variants):
    turns = InTurns(measurement)
    for number, variant in enumerate(variants):
        turns.add(number, variant)
    return turns


def workers():
    """Return the states of the living workers of this process."""
    return [
        process.status() for process in psutil.Process().children() if "worker" in process.name()
    ]


def until(turns, blocks):
    """Return a chooser of variant 1 until there are this many blocks."""
    return lambda: [1] if len(turns.blocks) < blocks else []


def test_a_loop_that_computes_twice_as_long_is_half_as_fast():
    with Measurement("ladder", 20.0) as measurement:
        turns = turns_of(measurement, loop(Computes(0.004)), loop(Computes(0.002)))
        turns.run(lambda: [] if compared(turns.blocks, 1).is_settled else [1])
    gain = compared(turns.blocks, 1)

    assert "faster" == gain.says
    assert gain.low < 2.2
    assert rate(turns.blocks, 1).value > rate(turns.blocks, 0).value
    assert turns.blocks == blocks_of(turns.table())
    assert {0, 1} == {block.variant for block in turns.blocks}
    assert all(block.cpu_s > 0 for block in turns.blocks)


def test_the_workers_of_a_waiting_loop_are_stopped():
    seen = []
    step = lambda _: seen.append(sorted(workers()))  # noqa: E731 - the user's own
    with Measurement("ladder", 20.0) as measurement:
        turns = turns_of(measurement, loop(Computes(), step), loop(Computes(), step))
        turns.run(until(turns, 6))

    both = [states for states in seen if len(states) == 2]
    assert len(both) > 10
    assert all(psutil.STATUS_STOPPED in states for states in both)
    assert not all(states == [psutil.STATUS_STOPPED] * 2 for states in both)
    assert not workers()


def test_an_interrupt_leaves_no_stopped_worker():
    def step(_):
        if psutil.STATUS_STOPPED in workers():
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), Measurement("ladder", 20.0) as measurement:
        turns = turns_of(measurement, loop(Computes()), loop(Computes(), step))
        turns.run(until(turns, 50))

    assert not workers()


def test_a_worker_that_dies_while_stopped_fails_its_variant():
    """The other variant goes on."""
    killed = []

    def step(_):
        for child in psutil.Process().children():
            if child.status() == psutil.STATUS_STOPPED and not killed:
                killed.append(child.pid)
                child.kill()

    with Measurement("ladder", 20.0) as measurement:
        turns = turns_of(measurement, loop(Computes(), step), loop(Computes()))
        turns.run(until(turns, 8))

    assert killed
    assert 1 in turns.failed
    assert "exited unexpectedly" in turns.failed[1] or "killed" in turns.failed[1]


class Locks(Computes):
    """From its 40th sample on, a worker holds a file's lock while it makes one."""

    def __init__(self, path):
        super().__init__()
        self.path, self.made, self.file = path, 0, None

    def __getitem__(self, index):
        self.file = self.file or self.path.open("w")
        self.made += 1
        fcntl.flock(self.file, fcntl.LOCK_EX if self.made > 40 else fcntl.LOCK_UN)
        sample = super().__getitem__(index)
        fcntl.flock(self.file, fcntl.LOCK_UN)
        return sample


def test_a_loop_that_waits_for_stopped_workers_gets_its_own_turn(monkeypatch, tmp_path):
    monkeypatch.setattr(loops, "_USUAL_START_S", 0.5)
    with Measurement("ladder", 20.0) as measurement:
        turns = turns_of(measurement, *(loop(Locks(tmp_path / "lock")) for _ in range(2)))
        turns.run(until(turns, 6))

    assert not turns.failed
    assert any("wait for stopped ones" in note for note in measurement.notes)
    assert {0, 1} == {block.variant for block in turns.blocks}
    assert not workers()


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from torch.utils.data import _utils as torch_utils
from bench.test_loops import Computes, loop, psutil, turns_of, until, workers
from stallscope.bench.measurement import Measurement

torch_utils.worker.MP_STATUS_CHECK_INTERVAL = 0.2  # how often a worker looks for its parent

def step(_):
    states = workers()
    if psutil.STATUS_STOPPED in states:
        print(*[child.pid for child in psutil.Process().children()], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

with Measurement("ladder", 20.0) as measurement:
    turns = turns_of(measurement, loop(Computes()), loop(Computes(), step))
    turns.run(until(turns, 50))
"""


def test_a_killed_parent_leaves_no_stopped_worker():
    code = KILLED.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pids = list(map(int, done.stdout.split()))

    assert pids, done.stderr
    until_s = time.monotonic() + 10
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids))


def test_steps_longer_than_the_budget_are_refused():
    with pytest.raises(ArgumentError, match="seconds, not milliseconds"):
        check_step_s(50.0, 60.0)
    check_step_s(0.05, 3.0)
