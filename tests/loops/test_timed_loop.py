"""How a start of a loop is timed."""

from __future__ import annotations

import time

import pytest
import torch

from stallscope.loops.devices import device_of
from stallscope.loops.timed_loop import Span, TimedLoop, TimedPass, run_timed_pass
from stallscope.targets.target import target


@pytest.mark.parametrize(("batches", "timed"), [(6, 0), (9, 4)])
def test_less_than_a_round_of_the_workers_is_no_rate(batches, timed):
    """After a warm-up of five batches, one that lay there: four workers make four at a time."""
    device = device_of(target([1]))
    loop = TimedLoop([torch.zeros(2)] * batches, device, batch_size=2, workers=4)
    lap = TimedPass()

    run_timed_pass(loop, lap, Span(1e-9, time.perf_counter_ns() + 10**10))

    assert [timed] * 3 == [len(part) for part in (lap.seconds, lap.step_s, lap.samples)]
    assert batches == lap.used
