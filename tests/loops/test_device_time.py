"""A device that works behind the host; `tests/gpu` tests its events."""

from itertools import pairwise
from time import perf_counter_ns

import pytest
import torch

import stallscope as ss
from stallscope.errors import UnsupportedError
from stallscope.hooks.device_time import Accelerator, SimulatedDevice, works_behind
from stallscope.loops.devices import device_of
from stallscope.targets.target import Target


class TestSimulatedDevice:
    def test_works_behind_the_host_until_the_host_waits(self):
        """Work runs back to back without a pause; a synchronisation waits for all of it."""
        device = SimulatedDevice(depth=10)
        for _ in range(5):
            device.launch(0.02)

        assert device.work[-1].end_ns > perf_counter_ns()
        assert all(work.end_ns == later.start_ns for work, later in pairwise(device.work))
        device.synchronize()
        assert perf_counter_ns() >= device.work[-1].end_ns

    def test_a_copy_takes_its_bytes_time_and_the_host_waits_for_pageable_memory(self):
        """The host waits 10 ms for 10 MB of pageable memory, but not 4 s for pinned memory."""
        device = SimulatedDevice(pageable_bytes_per_s=1e9, pinned_bytes_per_s=10e9)
        device.copy(10_000_000)
        assert perf_counter_ns() >= device.work[0].end_ns
        device.copy(40_000_000_000, pinned=True)
        assert perf_counter_ns() < device.work[1].end_ns

        assert [10_000_000, 4_000_000_000] == [end - start for start, end, _ in device.work]


class TestSimulatedStep:
    def test_runs_behind_on_request(self):
        step = ss.simulated_step(5.0, runs_behind=True)
        step(None)

        assert perf_counter_ns() < step.device.work[0].end_ns
        assert [5_000_000_000] == [end - start for start, end, _ in step.device.work]
        assert ss.simulated_step(0.05).device is None

    def test_its_device_is_found_inside_of_a_step_of_the_users(self):
        simulated = ss.simulated_step(0.001, runs_behind=True)

        def step(batch):
            simulated(batch)

        assert simulated.device is device_of(Target([], step)).behind
        assert device_of(Target([], ss.simulated_step(0.001))).behind is None


def test_only_an_accelerator_works_behind_the_host():
    assert [False, False, False, True, True] == [
        works_behind(where and torch.device(where))
        for where in (None, "cpu", "meta", "cuda", "hpu")
    ]


def test_a_device_without_events_is_refused_in_one_sentence():
    with pytest.raises(UnsupportedError, match="no events for hpu"):
        Accelerator(torch.device("hpu")).event()
