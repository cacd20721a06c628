"""The loop itself: what it does besides waiting and training, copies, a device that is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.analyze.verdict import limits
from stallscope.analyze.verdict.exposure import MAIN, PIN
from stallscope.analyze.verdict.finding import clear, finding
from stallscope.diagnoses import COPY, MAIN_PROCESS
from stallscope.units import share

if TYPE_CHECKING:
    from stallscope.analyze.verdict.facts import Facts
    from stallscope.diagnoses import Finding

_REST: Final = ("step", "other")
"""What lies outside of all parts that have a name."""
_SAMPLER: Final = "the loader's own work in it (a sampler, bookkeeping)"


def no_worker(facts: Facts) -> Finding | None:
    """The main process makes the batches itself, so the device waits for each of them."""
    if facts.setup.num_workers or not facts.exposure.parts or not facts.setup.has_step:
        return None
    return finding(
        MAIN_PROCESS,
        facts,
        f"it makes the batches itself (num_workers=0), which takes {share(facts.stall_share)} of "
        "the loop's time",
        severity=facts.stall_share,
        clearly=clear(facts.stall_share, limits.HEALTHY, 0.2),
        evidence={"stall_share": facts.stall_share, "num_workers_count": 0},
        where=f"num_workers={max(int(facts.setup.cores) - 1, 1)} or so",
    )


def own_parts(facts: Facts) -> Finding | None:
    """Parts of the loop that are neither waiting for workers nor the model take long."""
    parts = {name: part for name, part in facts.own_parts.items() if name not in _REST}
    parts["code outside of the model"] = facts.own_parts.get("other", 0.0)
    if facts.model_share:  # the model is known, so the rest of the step is something else
        parts["code outside of the model"] += facts.own_parts.get("step", 0.0)
    if facts.setup.num_workers:
        parts[_SAMPLER] = facts.stall_share * facts.exposure.of(MAIN)
    whole, longest = sum(parts.values()), max(parts, key=lambda name: parts[name])
    if whole < limits.OWN_PART:
        return None
    return finding(
        MAIN_PROCESS,
        facts,
        f"{longest} takes {share(parts[longest])} of the loop's time",
        severity=whole,
        clearly=clear(whole, limits.OWN_PART, 0.35),
        evidence={
            "own_parts_share": whole,
            "model_share": facts.model_share,
            "stall_share": facts.stall_share,
            "loop_cpu_share": facts.use.loop_cpu,
        },
        where=f"make {longest} cheaper, rarer, or do it in a thread or beforehand",
    )


def computes_in_python(facts: Facts) -> Finding | None:
    """The step waits for the device for a part of its time, and computes in Python for another.

    Only where the model cannot be seen (no module within reach) and the device is not the CPU's
    own: a step that computes without a pause may be a model on the CPU.
    """
    cpu, setup = facts.use.loop_cpu, facts.setup
    if facts.model_share or cpu is None or setup.simulated or setup.on_gpu or not setup.has_step:
        return None
    if not setup.num_workers or facts.time is None:
        return None
    step = facts.own_parts.get("step", 0.0)
    wanted = cpu + (facts.use.loop_queued_share or 0.0)  # computes, or would if it had a core
    if not min(cpu, step) >= limits.OWN_PART or wanted > limits.ALL_COMPUTING * step:
        return None
    return finding(
        MAIN_PROCESS,
        facts,
        f"for {share(cpu)} of the loop's time it computes, and the step waits for the rest",
        severity=min(cpu, step),
        clearly=clear(cpu, limits.OWN_PART, 0.5),
        evidence={"loop_cpu_share": cpu, "step_share": step, "stall_share": facts.stall_share},
        where="put ss.stage('...') around logging and callbacks, and see which takes the time",
    )


def idle_device(facts: Facts) -> Finding | None:
    """Batches are there and the GPU is idle all the same: the host is too slow for it."""
    busy = facts.use.gpu_busy_share
    if not facts.setup.on_gpu or busy is None or busy >= limits.IDLE_DEVICE:
        return None
    if facts.stall_share >= limits.HEALTHY:
        return None
    return finding(
        MAIN_PROCESS,
        facts,
        f"no batch is missing, and the GPU is busy for {share(busy)} of the time only",
        severity=1 - busy,
        clearly=clear(busy, limits.IDLE_DEVICE, 0.2),
        evidence={"gpu_busy_share": busy, "stall_share": facts.stall_share},
        where="profile the step: .item(), logging, kernels that are too small",
    )


def copies(facts: Facts) -> Finding | None:
    """Copying batches to the device, or to pinned memory, takes a good part of the loop."""
    if facts.time is None:
        return None
    direct = facts.time.share(facts.time.h2d_s)
    pinning = facts.stall_share * facts.exposure.of(PIN)
    if direct + pinning < limits.OWN_PART:
        return None
    return finding(
        COPY,
        facts,
        f"{share(direct + pinning)} of the loop's time",
        severity=direct + pinning,
        clearly=clear(direct + pinning, limits.OWN_PART, 0.4),
        evidence={"copy_share": direct, "pin_share": pinning, "stall_share": facts.stall_share},
    )
