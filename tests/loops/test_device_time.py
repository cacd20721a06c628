"""A device that works behind the host: what its events say of it, against the truth.

Each test runs on the simulated device; those of `tests/gpu` ask a real one the same.
"""

import time
from itertools import pairwise
from statistics import median
from time import perf_counter_ns

import pytest
import torch
from support.gpu_clock import GpuLike

import stallscope as ss
from stallscope.errors import UnsupportedError
from stallscope.hooks.device_time import (
    Accelerator,
    Edge,
    EventClock,
    works_behind,
)
from stallscope.loops.devices import device_of
from stallscope.targets.target import Target

NEAR_NS = 100_000
"""The host stands for some microseconds between an event and the work; more by far is wrong."""


class Read:
    """What a clock says, its drift taken out as a run does it."""

    def __init__(self, device):
        self.edges = []
        self.clock = EventClock(device, lambda *edge: self.edges.append(edge))

    def ends(self):
        """The edges with their times on the host's clock."""
        self.clock.end()
        begin, (_, end, astray) = self.edges[0][1], self.edges[-1]
        return [
            (Edge(edge), at + astray * (at - begin) / (end - begin)) for edge, at, _ in self.edges
        ]


def steps_on(device, *, many=40, host_s=0.002, step_s=0.004, synchronises=False):
    """Steps after waits, watched: what the clock read."""
    read = Read(device)
    for _ in range(many):
        time.sleep(host_s)
        read.clock.edge(Edge.STEP)
        device.launch(step_s)
        if synchronises:
            device.synchronize()
        read.clock.edge(Edge.NOTHING)
    return read.ends()


def spans(edges):
    """When the device was at steps, as the clock has it."""
    return [(at, end) for (edge, at), (_, end) in pairwise(edges) if edge == Edge.STEP]


class TestEventClock:
    @pytest.mark.parametrize("drift", [0.0, 2e-3, -2e-3])
    @pytest.mark.parametrize("host_s", [0.0005, 0.006])
    def test_says_on_the_hosts_clock_when_the_device_worked(self, drift, host_s):
        """Also where the device's clock goes wrong by 2 ms a second, ahead of the host or not."""
        device = GpuLike(drift=drift)

        found = spans(steps_on(device, host_s=host_s))

        pairs = list(zip(found, device.work, strict=True))
        ends_ns = [abs(end - work.end_ns) for (_, end), work in pairs]
        lengths = [(end - start) / (work.end_ns - work.start_ns) for (start, end), work in pairs]
        assert median(ends_ns) < NEAR_NS
        assert median(lengths) == pytest.approx(1.0, abs=0.05)

    def test_never_waits_for_the_device_inside_of_a_window(self):
        """Between its two ends no synchronisation and no more events than are under way."""
        device = GpuLike(depth=3)
        read = Read(device)
        before = device.synchronisations, device.events

        for _ in range(200):
            read.clock.edge(Edge.STEP)
            device.launch(0.0002)
            read.clock.edge(Edge.NOTHING)

        assert before[0] == device.synchronisations
        assert device.events - before[1] < 64
        read.ends()


class TestSimulatedDevice:
    def test_works_behind_the_host_until_that_waits(self):
        """One piece follows the other without a pause; a synchronisation waits for all."""
        device = GpuLike(depth=10)
        for _ in range(5):
            device.launch(0.02)

        assert device.work[-1].end_ns > perf_counter_ns()
        assert all(work.end_ns == later.start_ns for work, later in pairwise(device.work))
        device.synchronize()
        assert perf_counter_ns() >= device.work[-1].end_ns
        assert 1 == device.synchronisations

    def test_a_copy_takes_its_bytes_time_and_the_host_waits_for_pageable_memory(self):
        """10 MB at 1 GB/s are 10 ms, and 40 GB at 10 GB/s are 4 s, which nobody waits for."""
        device = GpuLike(pageable_bytes_per_s=1e9, pinned_bytes_per_s=10e9)
        device.copy(10_000_000)
        assert perf_counter_ns() >= device.work[0].end_ns
        device.copy(40_000_000_000, pinned=True)
        assert perf_counter_ns() < device.work[1].end_ns

        assert [10_000_000, 4_000_000_000] == [end - start for start, end, _ in device.work]


class TestSimulatedStep:
    def test_runs_behind_on_wish(self):
        """`runs_behind=True` gives the work to a device; else the host waits."""
        step = ss.simulated_step(5.0, runs_behind=True)
        step(None)

        assert perf_counter_ns() < step.device.work[0].end_ns
        assert [5_000_000_000] == [end - start for start, end, _ in step.device.work]
        assert ss.simulated_step(0.05).device is None

    def test_its_device_is_found_inside_of_a_step_of_the_users(self):
        """Also through a closure, as a model would be."""
        simulated = ss.simulated_step(0.001, runs_behind=True)

        def step(batch):
            simulated(batch)

        assert simulated.device is device_of(Target([], step)).behind
        assert device_of(Target([], ss.simulated_step(0.001))).behind is None


def test_only_an_accelerator_works_behind_the_host():
    """The processor and torch's device without data are where the host is."""
    assert [False, False, False, True, True] == [
        works_behind(where and torch.device(where))
        for where in (None, "cpu", "meta", "cuda", "hpu")
    ]


def test_a_device_without_events_is_refused_in_one_sentence():
    """Nothing is claimed of it."""
    with pytest.raises(UnsupportedError, match="no events for hpu"):
        Accelerator(torch.device("hpu")).event()
