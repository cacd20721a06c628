"""Everything that can be sampled on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.measure.resources.gpu import gpus
from stallscope.measure.resources.portable import Portable
from stallscope.measure.resources.processes import Processes
from stallscope.measure.resources.readings import Missing
from stallscope.measure.resources.system import Cores, Disks, Memory, Network, Quota, SharedMemory
from stallscope.resources import (
    CORE,
    DISK_BUSY,
    DISK_OPERATIONS,
    DISK_READ,
    DISK_WRITE,
    LOOP,
    MEMORY,
    NAMES,
    QUEUED,
    QUOTA,
    RECEIVED,
    SENT,
    SHM,
    WORKER,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.measure.resources.readings import Source
    from stallscope.probe.logplace import LogPlace


def sources(place: LogPlace) -> list[Source | Missing]:
    """Every source of this machine, or what is missing in its place.

    Args:
        place: where the workers' logs are.
    """
    if not Path("/proc/stat").exists():
        return [Portable(place), Missing((QUOTA, QUEUED, SHM, DISK_BUSY)), gpus(place)]
    makers: list[tuple[tuple[str, ...], Callable[[], Source]]] = [
        ((CORE,), Cores),
        ((QUOTA,), Quota),
        ((LOOP, WORKER, QUEUED), lambda: Processes(place)),
        ((MEMORY,), Memory),
        ((SHM,), SharedMemory),
        ((DISK_BUSY, DISK_READ, DISK_WRITE, DISK_OPERATIONS), Disks),
        ((RECEIVED, SENT), Network),
    ]
    return [_made(resources, make) for resources, make in makers] + [gpus(place)]


def _made(resources: tuple[str, ...], make: Callable[[], Source]) -> Source | Missing:
    try:
        return make()
    except LookupError:
        return Missing(resources)
    except (OSError, ValueError) as error:
        named = ", ".join(NAMES[resource] for resource in resources)
        return Missing(resources, f"not sampled: {named} ({error})")
