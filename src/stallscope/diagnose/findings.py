"""How a rule says what it found: title, evidence, how sure, and what to do next.

What to do next about each cause: a setting, a line of code, and the notebook to open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.diagnose import thresholds
from stallscope.diagnose.exposure import UNATTRIBUTED
from stallscope.diagnose.result import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.diagnose.facts import Facts
    from stallscope.diagnose.result import Cause


_STEPS: Final = {
    "healthy": "look at the model and the device; 03_cached_baseline shows how little is left",
    "storage-latency": "read in larger pieces (tar shards), from nearer storage or from a "
    "cache, or wait for several at once with more workers; 02_fetch_vs_transform",
    "waits-unseen": "06_line_by_line shows which line waits",
    "storage-bandwidth": "read fewer bytes: smaller or better compressed files, a local copy or "
    "a cache; more workers do not help; 02_fetch_vs_transform",
    "decode": "store smaller images, decode at a smaller size (PIL's draft), or use a faster "
    "decoder; 02_fetch_vs_transform",
    "one-transform": "make {where} cheaper, apply it to less data, or to whole batches; "
    "06_line_by_line shows its lines, 05_transform_orders whether it can come later",
    "transforms": "crop or resize first, so that the rest works on less; 05_transform_orders",
    "collate": "make collate_fn cheaper: no Python loop over samples, tensors of one size; "
    "04_worker_flamegraphs",
    "sending": "send less: smaller types (uint8 images), fewer objects a batch, tensors in place "
    "of lists; 04_worker_flamegraphs",
    "too-few-workers": "raise num_workers{where}; 01_is_it_the_loader",
    "cpu-saturated": "there is no core left: do work once and store it, or on the device; "
    "03_cached_baseline shows what is to be had",
    "oversubscription": "one thread in each worker: torch.set_num_threads(1), "
    "cv2.setNumThreads(0), OMP_NUM_THREADS=1; 04_worker_flamegraphs",
    "main-process": "{where}; 01_is_it_the_loader",
    "too-little-prefetch": "raise prefetch_factor{where}; 01_is_it_the_loader",
    "slow-samples": "look at these samples; raise prefetch_factor, or in_order=False where the "
    "order does not matter; 02_fetch_vs_transform",
    "slow-worker": "look at what is different in that worker: its shard, worker_init_fn, its core; "
    "01_is_it_the_loader",
    "start-up": "persistent_workers=True; and less to do in worker_init_fn and at import; "
    "01_is_it_the_loader",
    "copy": "pin_memory=True and .to(device, non_blocking=True); 03_cached_baseline",
    "memory-pressure": "fewer workers, smaller prefetch_factor, or data that is mapped and not "
    "loaded; 01_is_it_the_loader",
    "shm": "a larger /dev/shm (docker --shm-size), or fewer batches on their way; "
    "01_is_it_the_loader",
    "lock": "let each worker open its own file or connection, and hold the lock for less; "
    "04_worker_flamegraphs (idle=True)",
    "inconclusive": "{where}",
}


def next_step(code: str, where: str = "", line: str = "") -> str:
    """What to do about a cause.

    Args:
        code: one of `diagnoses.CAUSES`, or "waits-unseen" for reading that was only concluded.
        where: what it is about: a stage's name, a setting; depends on the cause.
        line: of the user's code, as `function (file:line)`; empty where it is not known.
    """
    told = _STEPS[code].format(where=where)
    return f"{told}; look at {line}" if line else told


JUST: Final = 0.5
"""Confidence of a rule that is only just met."""
_MANY_STEPS: Final = 30
"""From so many steps on, a run is no longer called short."""


def clear(value: float, limit: float, sure: float) -> float:
    """How clearly a rule is met: `JUST` at its limit, 1 where nobody would doubt it.

    Args:
        value: what was measured.
        limit: where the rule begins to hold.
        sure: where it holds for sure; may lie below the limit.
    """
    way = (value - limit) / (sure - limit)
    return min(max(JUST + (1 - JUST) * way, 0.0), 1.0)


def trust(facts: Facts) -> float:
    """How far the measurement itself can be trusted (0 to 1), whatever it says.

    It is short, or something else had the cores, or it does not explain the stalls.
    """
    short = min(facts.steps / _MANY_STEPS, 1.0)
    disturbed = max(facts.others_share - thresholds.FOREIGN, 0.0)
    # Of a worker that hardly ever has a core, it cannot be told which stage would compute
    queued = (facts.use.queued_share or 0.0) if disturbed else 0.0
    calm = min(1 - disturbed / 2, thresholds.BEARABLE - queued)
    return max(min(0.5 + short / 2, calm, 1 - facts.exposure.of(UNATTRIBUTED)), 0.0)


def finding(  # noqa: PLR0913 - the fields of a finding
    cause: Cause,
    facts: Facts,
    what: str,
    *,
    severity: float,
    clearly: float,
    evidence: Mapping[str, float | None],
    where: str = "",
) -> Finding:
    """A finding of this cause.

    Args:
        cause: what it is.
        facts: what is known.
        what: words and numbers for the title.
        severity: share (0 to 1) of the loop's time that it costs.
        clearly: how clearly (0 to 1) its rule is met.
        evidence: numbers with their names; those that are not known are left out.
        where: a stage, or a line of the user's, for the next step.
    """
    return Finding(
        code=cause.code,
        title=cause.title.format(what=what),
        severity=min(max(severity, 0.0), 1.0),
        evidence={name: float(value) for name, value in evidence.items() if value is not None},
        confidence=min(clearly, trust(facts)),
        next_step=next_step(cause.code, where, facts.line_of(where)),
    )
