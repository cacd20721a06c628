"""Workers as a whole: too few, one that is slow, too little ahead, slow samples, their start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stallscope.diagnose import thresholds
from stallscope.diagnose.exposure import DECODE, FETCH, GETITEM_, TRANSFORM, WORK
from stallscope.diagnose.findings import clear, finding
from stallscope.diagnose.result import (
    SLOW_SAMPLES,
    SLOW_WORKER,
    START_UP,
    TOO_FEW_WORKERS,
    TOO_LITTLE_PREFETCH,
)
from stallscope.units import count, seconds, share

if TYPE_CHECKING:
    from stallscope.diagnose.facts import Facts
    from stallscope.diagnose.result import Finding


_SLOW_WORKER: Final = "slow_worker"
_SLOW_SAMPLES: Final = "slow_samples"


def too_few(facts: Facts) -> Finding | None:
    """Workers compute without a pause, cores are free, and more workers would be enough."""
    setup, making, use = facts.setup, facts.making, facts.use
    own = use.own_cores(setup.num_workers)
    if not setup.num_workers or making is None or own is None or use.worker_cpu is None:
        return None
    if setup.num_workers >= int(setup.cores) or facts.free_load <= thresholds.KEEPS_UP:
        return None
    wanted = wanted_workers(facts)
    if wanted is None:
        return None
    free = max(1 - own / setup.cores, 0.0)
    return finding(
        TOO_FEW_WORKERS,
        facts,
        f"{count(setup.num_workers, 'worker')} of {setup.cores:g} cores, each busy "
        f"{share(making.busy_share)} of the time; {wanted} would keep up",
        severity=facts.stall_share,
        clearly=clear(free, 0.1, 0.35),
        evidence={
            "stall_share": facts.stall_share,
            "load_factor": making.load,
            "worker_busy_share": making.busy_share,
            "cores_free_share": free,
            "workers_wanted_count": wanted,
        },
        where=f" from {setup.num_workers} to {wanted}",
    )


def wanted_workers(facts: Facts) -> int | None:
    """How many workers would keep up; None where the cores would not."""
    making, setup = facts.making, facts.setup
    if making is None or not making.use_s or facts.cpu_load > thresholds.FAST_ENOUGH:
        return None
    wanted = int(np.ceil(making.batch_s * facts.queue_free / (making.use_s * thresholds.KEEPS_UP)))
    return wanted if wanted > setup.num_workers else None


def slow_worker(facts: Facts) -> Finding | None:
    """One worker takes much longer than the others, and the loop waits for it."""
    making, by_worker = facts.making, facts.making.by_worker_s if facts.making else {}
    if making is None or len(by_worker) < 2:  # noqa: PLR2004 - one and the others
        return None
    slow = max(sorted(by_worker), key=lambda one: by_worker[one])
    rest_s = float(np.median([took for one, took in by_worker.items() if one != slow]))
    ratio = by_worker[slow] / rest_s if rest_s else 1.0
    part = max(facts.patterns.get(_SLOW_WORKER, 0.0), facts.stalled_by_worker.get(slow, 0.0))
    if ratio < thresholds.SLOWER_WORKER or part < thresholds.WAITS_FOR_IT:
        return None
    if by_worker[slow] * facts.queue_free <= thresholds.KEEPS_UP * making.workers * making.use_s:
        return None  # it is slower than the others, and still quick enough
    return finding(
        SLOW_WORKER,
        facts,
        f"worker {slow} takes {seconds(by_worker[slow])} for a batch, the others "
        f"{seconds(rest_s)}; {share(part)} of the stalls wait for it",
        severity=facts.stall_share * part,
        clearly=min(
            clear(ratio, thresholds.SLOWER_WORKER, 1.7), clear(part, thresholds.WAITS_FOR_IT, 0.9)
        ),
        evidence={
            "stall_share": facts.stall_share,
            "slow_worker_stall_share": part,
            "slow_worker_batch_s": by_worker[slow],
            "others_batch_s": rest_s,
        },
    )


def slow_samples(facts: Facts) -> Finding | None:
    """Single samples that take far longer than the others hold up the loop."""
    spikes, followed = facts.spikes, facts.patterns.get(_SLOW_SAMPLES, 0.0)
    # Or, where the pattern is not sure: their part of the samples' part of the stalls
    part = max(followed, spikes.share * facts.exposure.of(FETCH, DECODE, TRANSFORM, GETITEM_))
    without = facts.free_load * (1 - spikes.share)
    if spikes.count < thresholds.FEWEST_SPIKES or part < thresholds.LEADS or without > 1.0:
        return None
    if spikes.share <= 1 - facts.queue_free:  # samples in which a worker had to wait for a core
        return None
    told = facts.titles.get(_SLOW_SAMPLES, "").partition(":")[2]
    named = f":{told}" if told else ""
    return finding(
        SLOW_SAMPLES,
        facts,
        f"one in {spikes.one_in:.0f} takes {seconds(spikes.typical_s)}, the usual one "
        f"{seconds(spikes.usual_s)}{named}",
        severity=facts.stall_share * part,
        clearly=clear(part, thresholds.LEADS, 0.5),
        evidence={
            "stall_share": facts.stall_share,
            "slow_samples_stall_share": part,
            "slow_samples_work_share": spikes.share,
            "slow_sample_s": spikes.typical_s,
            "usual_sample_s": spikes.usual_s,
        },
    )


def too_little_prefetch(facts: Facts) -> Finding | None:
    """On average the workers keep up; the stalls are where batches took longer than usual."""
    making, setup = facts.making, facts.setup
    if making is None or not setup.num_workers or facts.free_load > thresholds.KEEPS_UP:
        return None
    if facts.exposure.of(*WORK) < thresholds.LEADS:  # the batches were made in time
        return None
    ahead = setup.prefetch_factor
    many = count(ahead * setup.num_workers, "batch", "es") if ahead else ""
    batches = f"{many} ahead" if many else "what is ahead"
    more = 2 * ahead if ahead else None
    return finding(
        TOO_LITTLE_PREFETCH,
        facts,
        f"they need {share(facts.free_load)} of the time that the step leaves them, {batches} "
        "is not enough for the slow ones",
        severity=facts.stall_share,
        clearly=clear(facts.free_load, thresholds.KEEPS_UP, 0.7),
        evidence={
            "stall_share": facts.stall_share,
            "load_factor": making.load,
            "batch_mean_s": making.batch_s,
            "batch_median_s": making.usual_s,
            "prefetch_factor_count": ahead,
        },
        where=f" from {ahead} to {more} or more" if more else "",
    )


def start_up(facts: Facts) -> Finding | None:
    """Every epoch begins with starting workers, and that takes a good part of it."""
    starts = facts.starts
    if starts.share < thresholds.STARTS:
        return None
    seen = clear(starts.share, thresholds.STARTS, 0.3)
    return finding(
        START_UP,
        facts,
        f"{seconds(starts.extra_s)} before an epoch of {seconds(starts.epoch_s)}",
        severity=starts.share,
        clearly=seen
        if starts.epochs > 1 or starts.share > thresholds.DOMINATES
        else min(seen, 0.8),
        evidence={
            "start_share": starts.share,
            "start_s": starts.extra_s,
            "epoch_s": starts.epoch_s,
            "epochs_seen_count": starts.epochs,
        },
    )
