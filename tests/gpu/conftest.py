"""The same tests on every device that works behind the host: the simulated one, and CUDA.

`pytest -m gpu tests/gpu` runs those that need a GPU; without one they are skipped with the reason.
The simulated ones run everywhere; both use the protocol of `hooks.device_time`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.gpu_clock import GpuLike

from stallscope.hooks.device_time import Accelerator


@dataclass
class Worker:
    """A device and a function that gives it work."""

    device: Accelerator | GpuLike
    launch: Callable[[float], None]
    """Launch work of about this many seconds without waiting for it."""
    is_real: bool

    @property
    def where(self) -> str | None:
        """Device for the batches; None: the loop moves no batches."""
        return "cuda" if self.is_real else None

    def step(self, seconds: float, *, synchronises: bool = False) -> Callable[[Any], None]:
        def step(_: Any) -> None:
            self.launch(seconds)
            if synchronises:
                self.device.synchronize()

        step.device = self.device  # type: ignore[attr-defined]
        return step


def _simulated() -> Worker:
    rates = {"pageable_bytes_per_s": 2e9, "pinned_bytes_per_s": 8e9}
    device = GpuLike(drift=2e-3, depth=64, **rates)
    return Worker(device, device.launch, is_real=False)


def _cuda() -> Worker:
    where = torch.device("cuda", 0)
    torch.ones(1, device=where)
    cycles = _cycles_per_s()
    return Worker(Accelerator(where), lambda s: torch.cuda._sleep(int(s * cycles)), is_real=True)


def _cycles_per_s() -> float:
    """Measure the cycles that `torch.cuda._sleep` counts in a second."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    begin.record()
    torch.cuda._sleep(50_000_000)
    end.record()
    torch.cuda.synchronize()
    return 50_000_000 / (begin.elapsed_time(end) / 1e3)


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def worker(request: pytest.FixtureRequest) -> Worker:
    device_worker = {"simulated": _simulated, "cuda": _cuda}[request.param]()
    yield device_worker
    device_worker.device.synchronize()


@pytest.fixture
def nap() -> Callable[[float], None]:
    return time.sleep
