"""Which resource was used up, in one sentence; picture and table tell the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stallscope.analyze.saturation import CROWDED, OWN
from stallscope.resources import (
    CORE,
    DISK_BUSY,
    GPU,
    LOOP,
    MEMORY,
    NAMES,
    QUOTA,
    RECEIVED,
    SENT,
    SHM,
)
from stallscope.units import count, share

if TYPE_CHECKING:
    from stallscope.analyze.saturation import Saturation


def sentence(found: Saturation) -> str:
    """The answer: what was used up, or where else to look."""
    if found.stood is None:
        return "No training loop was recorded: nothing can be said of what it lacked"
    if not found.known:
        return "The steady state was too short to tell whether a resource was used up"
    machine = [use for use in found.used_up if use["resource"] not in OWN]
    own = [use for use in found.used_up if use["resource"] in OWN]
    if machine:
        return _of_machine(found, machine)
    if not found.stalls:
        return "No resource was used up, and the loop hardly stood still"
    return _of_own(found, own[0]) if own else _of_none(found)


def _of_none(found: Saturation) -> str:
    part = share(found.stood.share if found.stood else None)
    what = "Nothing that the loop needed" if found.full else "No resource"
    return (
        f"{what} was used up while the loop stood still ({part} of the time): look for a lock or a "
        "software limit"
    )


def _of_machine(found: Saturation, uses: list[dict[str, Any]]) -> str:
    use = uses[0]
    stood = found.stood.share if found.stood else 0.0
    if found.stalls:
        during = f"{share(use['stalled_share'])} of the stalls, which are {share(stood)} of the"
        told = f"{subject(use)} used up for {during} loop's time"
    else:
        told = f"{subject(use)} used up for {share(use['full_share'])} of the time"
    others = found.others_share or 0.0
    if use["resource"] == CORE and others >= CROWDED:
        told += f"; other processes had {share(others)} of the cores"
    more = dict.fromkeys(NAMES[one["resource"]] for one in uses[1:])
    told += f"; so was: {', '.join(more)}" if more else ""
    return told if found.stalls else f"{told}, though the loop hardly stood still"


def _of_own(found: Saturation, use: dict[str, Any]) -> str:
    cores = found.mean_share(CORE)
    free = "" if cores is None else f", while {share(1 - cores)} of the cores' time was free"
    if use["resource"] == LOOP:
        return f"The main process, which makes the batches, computed without a pause{free}"
    many = count(use["devices"], "worker")
    return f"The {many} computed without a pause{free}: more workers may help"


def subject(use: dict[str, Any]) -> str:
    """What was used up, as the begin of a sentence; a row of `USES`."""
    device = use["device"]
    told = {
        CORE: f"The {count(use['devices'], 'core')} at hand were",
        QUOTA: f"The container's CPU quota of {use['limit']:g} cores was",
        MEMORY: f"The memory of the {device} was",
        SHM: "/dev/shm was",  # noqa: S108 - a name
        DISK_BUSY: f"The disk {device} was",
        RECEIVED: f"The network link {device} (in) was",
        SENT: f"The network link {device} (out) was",
        GPU: f"GPU {device} was",
    }
    return told.get(use["resource"], f"{NAMES.get(str(use['resource']), 'Something')} was")
