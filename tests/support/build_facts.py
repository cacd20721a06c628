"""Facts for the rules of the verdict, from plain numbers: a loop that starves."""

from dataclasses import replace
from typing import Any

from stallscope.loops.cached_values import BatchBytes
from stallscope.model.batch_times import BatchTimes, HandoverTimes, MachineUse, Quartiles
from stallscope.model.exposure import Exposure, StagePart, longest_first
from stallscope.model.loop_time import LoopBreakdown, Starts
from stallscope.run.resources import MemoryGrowth
from stallscope.stages import FETCH, MEMORY, SHM
from stallscope.verbs.diagnose.facts import Facts, Spikes
from stallscope.verbs.diagnose.setup import Setup

COPIES = MemoryGrowth(
    workers=2,
    grown_bytes=200e6,
    bytes_per_s=40e6,
    share_per_min=0.5,
    copied_share=0.95,
    end_bytes=9e9,
    left_s=None,
)
"""Two workers that copy what they share."""
STEP_S = 0.1
WORKERS = 2

Work = dict[tuple[str, str], float | tuple[float, float]]
"""Shares of the stalls by stage and group, and their waiting shares."""


def taking(median_s: float, spread: float = 0.1) -> Quartiles:
    """Times of a worker whose quartiles lie so far from the median, as a share of it."""
    return Quartiles((1 - spread) * median_s, median_s, (1 + spread) * median_s)


def known(
    *, stalled: float = 0.5, work: Work | None = None, load: float = 2.0, **fields: Any
) -> Facts:
    """Make the facts of a loop whose two workers compute all the time on two cores.

    Args:
        stalled: share of the loop's time.
        work: what the stalls consist of; without, half decoding and half one transform.
        load: what the workers need over what the step leaves them.
        fields: of `Facts`; `setup`, `use` and `making` as the fields that are to differ.
    """
    steps, period_s = 100, STEP_S / (1 - stalled)
    setup = replace(
        Setup(WORKERS, cores=2.0, prefetch_factor=2, epoch_batches=1000, simulated=True),
        **fields.pop("setup", {}),
    )
    workers = max(setup.num_workers, 1)
    batch_s = load * workers * STEP_S
    making = BatchTimes(batch_s, batch_s, STEP_S, period_s, workers)
    busy = MachineUse(
        worker_cpu=0.98, loop_cpu=0.02, queued_share=0.02, loop_queued_share=0.0, threads=4
    )
    parts = parts_of(work or {("decode", "decode"): 0.5, ("Blur", "transform"): 0.5})
    facts = Facts(
        setup=setup,
        time=LoopBreakdown(
            steps, 1, steps, stalled * steps * period_s, 0, 0, steps * STEP_S, 0, 1.0
        ),
        stall_low=stalled * 0.9,
        stall_high=stalled * 1.1,
        exposure=Exposure(parts),
        making=replace(making, **fields.pop("making", {})),
        use=replace(busy, **fields.pop("use", {})),
        stage_s={part.stage: 0.01 for part in parts},
        own_parts={"step": 1 - stalled},
        waiting_s=batch_s * sum(part.share * part.waiting for part in parts),
    )
    return replace(facts, **fields)


def parts_of(work: Work) -> tuple[StagePart, ...]:
    """Return the parts of the stalls, the longest first."""
    pairs = {
        key: share if isinstance(share, tuple) else (share, 0.0) for key, share in work.items()
    }
    parts = [StagePart(*key, share, waiting) for key, (share, waiting) in pairs.items()]
    return longest_first(parts)


WAITS_IN_FETCH: Work = {(FETCH.name, "fetch"): (0.9, 1.0), ("Blur", "transform"): 0.1}
"""Work that mostly waits for storage."""
IDLE: dict[str, Any] = {"worker_cpu": 0.1, "queued_share": 0.01}
"""Use of the cores by workers that mostly wait."""
SPIKES = Spikes(count=8, one_in=50, share=0.5, typical_s=0.3, usual_s=0.01)
"""Sample times: one sample in fifty takes thirty times as long."""

CONVERTS: Work = {
    ("ToTensor", "transform"): 0.35,
    ("Normalize", "transform"): 0.35,
    ("Flip", "transform"): 0.1,
    ("decode", "decode"): 0.2,
}
SCALED = BatchBytes(100_000_000, 96_000_000, 24_000_000)
"""A batch of floats, nearly all of which uint8 would hold."""
CALM: dict[str, Any] = {"stalled": 0.01, "load": 0.4}


def sent_for(received_s: float, made_s: float = 0.01) -> dict[str, HandoverTimes]:
    """Times of a batch in steps of 100 ms; fields of `BatchTimes`."""
    return {"handover": HandoverTimes(made_s, received_s, 0.1)}


TINY: dict[str, Any] = {"stalled": 0.05, "load": 0.05, "making": sent_for(0.03)}
"""Batches of 10 ms, which take 30 ms to be sent and received, in steps of 100 ms."""
LARGE: dict[str, Any] = {"stalled": 0.1, "load": 0.5, "own_parts": {"step": 0.5, "other": 0.4}}
SPINNING: dict[str, Any] = {
    "stalled": 0.03,
    "load": 0.4,
    "use": {"threads": 67.0},
    "extra_threads_share": 0.8,
}
EVEN = {
    ("fetch", "fetch"): 0.26,
    ("decode", "decode"): 0.25,
    ("Blur", "transform"): 0.24,
    ("collate", "collate"): 0.25,
}
LOCKED = {("Lookup", "transform"): (0.9, 0.5), ("fetch", "fetch"): 0.1}
USED_UP = {"mean_share": 0.97, "saturated": True}
SENDS = {("send", "sending"): 0.9, ("Blur", "transform"): 0.1}

CASES = {
    "healthy": known(stalled=0.01, load=0.5),
    "storage-latency": known(work=WAITS_IN_FETCH, use=IDLE, alone_waiting_s=0.36),
    "storage-bandwidth": known(
        work=WAITS_IN_FETCH, use=IDLE, alone_waiting_s=0.18, lock_frames=0.0
    ),
    "decode": known(work={("decode", "decode"): 0.7, ("Blur", "transform"): 0.3}),
    "one-transform": known(work={("Blur", "transform"): 0.7, ("decode", "decode"): 0.3}),
    "transforms": known(work={(name, "transform"): 0.2 for name in "ABCDE"}),
    "collate": known(work={("collate", "collate"): 0.7, ("Blur", "transform"): 0.3}),
    "sending": known(work=SENDS, load=0.4, use=IDLE),
    "too-few-workers": known(setup={"num_workers": 1, "cores": 8.0}, enough_workers=3),
    "idle-workers": known(setup={"num_workers": 4}, making={"workers": 2}),
    "repeated-work": known(setup={"streams": True}, computed_s=0.38, alone_computed_s=0.2),
    "few-cores": known(use={"worker_cpu": 0.5, "queued_share": 0.5, "worker_cores": 1.0}),
    "cpu-saturated": known(work=EVEN),
    "oversubscription": known(use={"threads": 17}, extra_threads_share=0.9),
    "main-process": known(setup={"num_workers": 0}, use={"worker_cpu": None}),
    "too-little-prefetch": known(load=0.6, use=IDLE),
    "slow-samples": known(load=1.2, patterns={"slow_samples": 0.9}, spikes=SPIKES),
    "slow-worker": known(
        making={"by_worker": {0: taking(0.9), 1: taking(0.3)}}, stalled_by_worker={0: 0.9, 1: 0.1}
    ),
    "start-up": known(stalled=0.1, load=0.5, starts=Starts(2.0, 2.0, 3, again=True)),
    "copy": known(stalled=0.3, work={("pin", "pin"): 0.9, ("send", "sending"): 0.1}, load=0.4),
    "memory-pressure": known(saturated=({"resource": MEMORY, **USED_UP},)),
    "memory-growth": known(
        stalled=0.01,
        load=0.5,
        memory_growth=COPIES,
    ),
    "shm": known(saturated=({"resource": SHM, **USED_UP},)),
    "lock": known(work=LOCKED, use={"worker_cpu": 0.5}, alone_waiting_s=0.0, lock_frames=0.7),
    "inconclusive": known(work={("unattributed", "unattributed"): 0.4, ("A", "transform"): 0.6}),
}
"""Numbers in which each cause is the right verdict."""
