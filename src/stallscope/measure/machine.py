"""Where a measurement was made: what a reader must know before comparing numbers."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from stallscope.measure.cgroup import cores_available


def machine() -> dict[str, Any]:
    """Processor cores that this process may use, versions, device. Names no host and no user."""
    return {
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": _version("torchvision"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def usable_cores() -> int:
    """Whole cores that this process may keep busy, at least one; see `cores_available`."""
    return max(1, int(cores_available()))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
