"""GPUs through NVML, where its Python package (nvidia-ml-py) is installed; it is never needed.

Functions and fields: docs.nvidia.com/deploy/nvml-api. "Busy" is NVML's `utilization.gpu`: the share
of a period (1/6 s to 1 s) in which a kernel of any process ran.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from stallscope.measure.resources.readings import Missing
from stallscope.resources import GPU, GPU_MEMORY

if TYPE_CHECKING:
    from stallscope.measure.resources.readings import Readings, Source
    from stallscope.probe.logplace import LogPlace

_FIRST_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the first namespace of process ids (PROC_PID_INIT_INO in Linux); only in there are
NVML's process ids ours."""


class Gpus:
    """The GPUs that this process may use.

    Args:
        nvml: the module `pynvml`.
        place: where the workers' logs are.
    """

    seldom = True

    def __init__(self, nvml: Any, place: LogPlace) -> None:
        self._nvml, self._place = nvml, place
        self._pid = os.getpid()
        self.notes: list[str] = []
        nvml.nvmlInit()
        self._gpus = {str(number): gpu for number, gpu in self._visible()}
        total = {n: float(nvml.nvmlDeviceGetMemoryInfo(g).total) for n, g in self._gpus.items()}
        self.limits: Readings = {GPU: dict.fromkeys(self._gpus, 1.0), GPU_MEMORY: total}

    def _visible(self) -> list[tuple[int, Any]]:
        """Number and handle of each; CUDA_VISIBLE_DEVICES holds numbers, or the ids of GPUs."""
        nvml = self._nvml
        all_ = {n: nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())}
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        if wanted is None:
            return list(all_.items())
        names = [name.strip() for name in wanted.split(",") if name.strip()]
        return [
            (number, gpu)
            for number, gpu in all_.items()
            if str(number) in names
            or any(_text(nvml.nvmlDeviceGetUUID(gpu)).startswith(n) for n in names)
        ]

    def read(self) -> Readings:
        """Share of the time in which a kernel ran, and bytes in use."""
        nvml = self._nvml
        try:
            busy = {
                n: nvml.nvmlDeviceGetUtilizationRates(g).gpu / 100 for n, g in self._gpus.items()
            }
            used = {n: float(nvml.nvmlDeviceGetMemoryInfo(g).used) for n, g in self._gpus.items()}
            for number, gpu in self._gpus.items():
                self._look_for_others(number, gpu)
        except nvml.NVMLError as error:
            raise OSError(str(error)) from error
        return {GPU: busy, GPU_MEMORY: used}

    def _look_for_others(self, number: str, gpu: Any) -> None:
        note = f"GPU {number} is used by another process, too"
        if note in self.notes or not _ids_are_ours():
            return
        running = {str(one.pid) for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
        if running - self._place.workers() - {str(self._pid)}:
            self.notes.append(note)

    def close(self) -> None:
        """End NVML; a forked child leaves it to its parent."""
        with suppress(self._nvml.NVMLError):
            if os.getpid() == self._pid:
                self._nvml.nvmlShutdown()


def gpus(place: LogPlace) -> Source | Missing:
    """The GPUs, or why they are not sampled; a machine without a CUDA device has nothing to say."""
    both = (GPU, GPU_MEMORY)
    if not torch.cuda.is_available():
        return Missing(both)
    try:
        import pynvml
    except ImportError:
        return Missing(both, "the GPU was not sampled: there is no NVML (pip install nvidia-ml-py)")
    try:
        return Gpus(pynvml, place)
    except Exception as error:  # noqa: BLE001 - of a package that is not ours; nothing depends on it
        return Missing(both, f"the GPU was not sampled: NVML says {error!r}")


def _ids_are_ours() -> bool:
    """Whether NVML's process ids mean the same here; in most containers they do not."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return os.name == "nt"


def _text(name: str | bytes) -> str:
    """Older versions of the package give bytes."""
    return name.decode() if isinstance(name, bytes) else name
