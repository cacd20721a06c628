"""What computes the steps, behind one small protocol: another accelerator is one more file here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stallscope.measure.devices.cpu import Cpu
from stallscope.measure.devices.cuda import Cuda
from stallscope.measure.devices.simulated import Simulated
from stallscope.measure.simulated import SimulatedStep
from stallscope.measure.snapshot import modules_of

if TYPE_CHECKING:
    from stallscope.measure.devices.protocol import Device


def device_of(step: Any, device: Any = None) -> Device:
    """What a step computes on.

    Args:
        step: uses one batch; where its modules are says what it computes on.
        device: where the user says that batches go.
    """
    if isinstance(step, SimulatedStep):
        return Simulated(step)
    where = torch.device(device) if device is not None else _of_modules(step)
    if where is not None and where.type == "cuda":
        return Cuda(where, moves=device is not None)
    return Cpu(device)


def _of_modules(step: Any) -> torch.device | None:
    """Where the first parameter of the step's modules is."""
    parameters = (one for module in modules_of(step) for one in module.parameters())
    return next((parameter.device for parameter in parameters), None)
