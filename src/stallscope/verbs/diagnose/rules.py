"""The engine of the verdict: the numbers of a loop by their names, and the conditions of causes.

`causes` says which numbers show a cause, from which limit on and what it costs; here stand all
numbers, and what has to hold beside the limits. Conditions about the work on samples are in `work`;
which of the findings is the verdict is up to `verdict`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from stallscope import stages
from stallscope.model import thresholds
from stallscope.model.batch_times import compare_workers
from stallscope.model.exposure import READING, WORK
from stallscope.model.thresholds import HARDLY, KEEPS_UP, OTHERS, OWN_PART, SLOW_WORKER
from stallscope.units import count, seconds, share, size, times
from stallscope.verbs.diagnose import causes
from stallscope.verbs.diagnose.causes import WAITING, Limit
from stallscope.verbs.diagnose.own_code import OTHER
from stallscope.verbs.diagnose.result import Finding, number_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.verbs.diagnose.causes import Cause
    from stallscope.verbs.diagnose.facts import Facts
    from stallscope.verbs.diagnose.own_code import OwnCode

    Numbers = dict[str, float | None]
    Words = dict[str, str]

JUST: Final = 0.5
"""Confidence of a rule that is only just met."""
AT_ONCE: Final = (
    "take all samples of a batch by one index: __getitems__(indices) in the dataset, or "
    "sampler=BatchSampler(...) with batch_size=None"
)
"""Remedy for samples so small that most time goes into handling them one by one."""
IN_WORKERS: Final = (
    "move it to the workers (the dataset or collate_fn); or compute a whole batch at once; log and "
    "compute metrics less often, only every few steps"
)
"""Remedy for a training process that computes beside its model."""
_SAMPLERS: Final = (
    "draw indices beforehand or with arrays, not one by one in each step; move other work of the "
    "sampler or wrapper to the dataset or collate_fn, which the workers run"
)
_OUTSIDE: Final = "code outside of the model"


def trust(facts: Facts) -> float:
    """Return how far the measurement itself can be trusted (0 to 1), whatever it says.

    It is short, or something else had the cores, or it does not explain the stalls.
    """
    short = min(facts.steps / thresholds.MANY_STEPS, 1.0)
    disturbed = max(facts.others_share - OTHERS, 0.0)
    # Of a worker that hardly ever has a core, it cannot be told what it waits for
    is_sure = not disturbed or facts.computes_too_much
    queued = 0.0 if is_sure else facts.use.queued_share or 0.0
    calm = min(1 - disturbed / 2, thresholds.BEARABLE - queued)
    return max(min(0.5 + short / 2, calm, 1 - facts.exposure.of("unattributed")), 0.0)


def finding(
    cause: Cause,
    facts: Facts,
    extra: Numbers | None = None,
    code: OwnCode | None = None,
    /,
    **words: str,
) -> Finding:
    """Make a finding of a row.

    Args:
        cause: the row.
        facts: source of the numbers.
        extra: numbers of this finding, beside those of the facts.
        code: function of the user's that the finding is about; None: that of the `stage`.
        words: words of its title and advice; `stage`, or `line` itself, says which function of the
            user's the next step names, and gives `each`, `place`, `does` and `remedy`.
    """
    setup, gain, stage = facts.setup, facts.gain, words.get("stage", "")
    own, values = code or facts.own_code(stage), numbers(facts) | (extra or {})
    line, beside = words.get("line") or (own.place if own else ""), own.beside if own else ""
    usual = {
        "carries": "; each batch carries the dataset's state" if setup.sends_state else "",
        "rarer": "snapshot_every_n_steps=100; " if setup.sends_state else "",
        "workers": count(setup.num_workers, "worker"),
        "num_workers": str(setup.num_workers),
        "cores": f"{setup.cores:g}",
        "first": _first(facts),
        "less": " (uint8, cropped)" if facts.has_images else "",
        "at_once": f"; {AT_ONCE}" if facts.has_small_samples else "",
        "floats": floats(facts),
        "each": facts.each(stage),
        "place": own.place if own else stage,
        "where": "",
        "does": own.does if own else "",
        "remedy": own.call.remedy if own else "",
    }
    texts = {name: number_text(name, value) for name, value in values.items()} | usual | words
    names_floats = bool(texts["floats"]) and "{floats}" in cause.title
    advice = (causes.AS_UINT8 if names_floats else cause.advice).format(**texts)
    evidence = {
        "stall_share": facts.stall_share if facts.time else None,
        **{name: values[name] for name in cause.evidence},
        "headroom_factor": gain.factor if gain else None,
        "headroom_factor_low": gain.low if gain else None,
        "headroom_factor_high": gain.high if gain else None,
    }
    clear = [limit.clear(values[limit.number] or 0.0) for limit in cause.limits]
    return Finding(
        code=cause.code,
        title=cause.title.format(**texts),
        severity=min(max(values[cause.costs] or 0.0, 0.0), 1.0),
        evidence={name: float(value) for name, value in evidence.items() if value is not None},
        confidence=min([*clear, trust(facts)]),
        next_step="; ".join(filter(None, [advice, line and f"look at {line}", beside])),
    )


def _first(facts: Facts) -> str:
    """Say what helps before anything else: a cache that lives on, fewer calls; '' for nothing."""
    first, setting = "", facts.setup.keep_alive
    if facts.setup.cache and setting and facts.starts.again:
        lost = f"what {facts.setup.cache} keeps is lost when the workers end with the epoch"
        first = f"{setting}: {lost}; or fill it beforehand; "
    if facts.runs_often and facts.exposure.of("fetch", "decode") >= thresholds.NOTED:
        stage, calls = facts.runs_often
        less = "leave out unused columns, rows or frames; store the rest of a sample in one file"
        who = "4_worker_flamegraphs shows the caller"
        first += f"{stage} runs {calls:.0f} times for each sample: {less}; {who}; "
    return first


def floats(facts: Facts) -> str:
    """Say how many bytes uint8 would save; '' where it would not."""
    if facts.batch is None or not facts.holds_scaled_bytes:
        return ""
    as_floats, as_uint8 = size(facts.batch.floats), size(facts.batch.as_uint8)
    return f"; {as_floats} a batch are floats that {as_uint8} of uint8 would hold"


def findings(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each row whose limits and condition are met."""
    waits = facts.stall_share >= HARDLY or facts.is_slowed
    for cause, words in _rows(facts):
        is_asked = words is not None and (waits or not cause.waits)
        if is_asked and all(limit.is_met(numbers(facts)[limit.number]) for limit in cause.limits):
            yield finding(cause, facts, **words or {})
    spaces = {stages.MEMORY: causes.MEMORY_PRESSURE, stages.SHM: causes.SHM}
    for row in facts.saturated if waits else ():
        if row["resource"] in spaces:
            yield finding(spaces[row["resource"]], facts, {"used_share": row["mean_share"]})


@lru_cache(maxsize=1)
def numbers(facts: Facts) -> Numbers:
    """Take all numbers by the names that `causes` has for them; None where one is not known."""
    setup, use, making, pace = facts.setup, facts.use, facts.making, facts.pace
    begin, growth, gain = facts.starts, facts.memory_growth, facts.gain
    exposure, stalls, cores = facts.exposure, facts.stall_share, use.own_cores(setup.num_workers)
    free = None if cores is None else max(setup.cores * (1 - facts.others_share) - cores, 0.0)
    copies, pinning = facts.device_copy_share, stalls * exposure.of("pin")
    if copies is None and facts.time is not None:
        copies = facts.time.share(facts.time.h2d_s)
    # What slow samples hold of the stalls: by the pattern, or by their part of the work
    slow = facts.spikes.share * exposure.of("fetch", "decode", "transform", "getitem")
    slow = max(facts.patterns.get("slow_samples", 0.0), slow)
    # Of a process that never pauses, only what stacks name is computed beside its model
    computing = facts.loop_code_share if _never_pauses(facts) else use.loop_cpu or 0.0
    low_enough = Limit("stall_share_high", HARDLY, HARDLY / 2).clear(facts.stall_high)
    by_events = facts.device_busy_share if setup.on_gpu or setup.simulated else None
    by_driver = use.gpu_busy_share if setup.on_gpu else None
    busy = min((part for part in (by_driver, by_events) if part is not None), default=1.0)
    step = facts.own_parts.get("step", 0.0)
    values: Numbers = {
        # the loop
        "nothing": 0.0,
        "stall_share": stalls,
        "stalls_share": stalls - facts.begin_share,
        "lost_share": facts.lost_share,
        "stall_share_low": facts.stall_low,
        "stall_share_high": facts.stall_high,
        "unattributed_share": exposure.of("unattributed") if facts.time else None,
        "other_processes_share": facts.others_share,
        "steps_count": facts.steps,
        "healthy_trust": max(low_enough, 0.9 if gain and gain.is_little else 0.6),
        "ladder_trust": 0.6 if gain and gain.is_none else 1.0,
        # work on samples and batches
        "work_share": stalls * exposure.of(*WORK),
        "samples_share": stalls * exposure.of(*WAITING),
        "reading_share": stalls * exposure.of(*READING),
        "waiting_share": exposure.waiting(*WAITING),
        "reading_waits_share": exposure.waiting(*READING),
        **{f"{group}_exposed_share": exposure.of(group) for group in WORK},
        "sending_exposed_share": exposure.of("sending"),
        **{
            f"{group}_share": stalls * exposure.of(group)
            for group in ("decode", "collate", "sending")
        },
        "read_bytes_per_s": facts.fetched_bytes_per_s,
        "disk_busy_share": use.disk_busy_share,
        "storage_trust": 0.8 if facts.is_shared is None else 1.0,
        "unseen_trust": thresholds.UNSEEN,
        "lock_trust": thresholds.UNSEEN if facts.lock_frames is None else 1.0,
        "lock_frames_share": facts.lock_frames,
        "file_lock_share": use.file_lock_share,
        # batches and workers
        "num_workers_count": setup.num_workers,
        "prefetch_factor_count": setup.prefetch_factor,
        "workers_wanted_count": facts.enough_workers,
        **_named(making, active_workers_count="workers", worker_busy_share="busy_share"),
        **_named(making, load_factor="load", batch_s="usual_s"),
        **_named(making, batch_mean_s="batch_s", batch_median_s="usual_s"),
        "free_load_share": pace.free_load if making else None,
        "batch_alone_s": facts.alone_s,
        "batch_cpu_s": facts.computed_s,
        "batch_alone_cpu_s": facts.alone_computed_s,
        "repeated_share": _over(facts.computed_s, facts.alone_computed_s, setup.num_workers),
        "batch_make_s": pace.own_batch_s,
        **_named(making.handover if making else None, batch_receive_s="received_s"),
        "needless_share": facts.needless_share,
        "handover_share": max(facts.needless_share, stalls * exposure.of("sending")),
        **_named(facts.batch, batch_bytes="all", batch_release_s="release_s"),
        "release_share": facts.release_share,
        "released_share": facts.release_share + stalls * exposure.of("sending", "collate"),
        "slow_sample_s": facts.spikes.typical_s,
        "usual_sample_s": facts.spikes.usual_s,
        "slow_samples_work_share": facts.spikes.share,
        "slow_samples_stall_share": slow,
        "slow_samples_share": stalls * slow,
        # the main process and its device
        "loop_cpu_share": use.loop_cpu,
        "step_share": step,
        "model_share": facts.model_share,
        "own_parts_share": sum(_parts_of_loop(facts).values()),
        "computing_share": min(computing, step),
        "device_busy_share": facts.device_busy_share,
        "gpu_busy_share": by_driver,
        "busy_share": busy,
        "idle_share": 1 - busy,
        "copy_share": copies,
        "pin_share": pinning,
        "copies_share": None if copies is None else copies + pinning,
        # cores and memory
        "cores_used_share": _over(cores, setup.cores),
        "cores_free_share": _over(free, setup.cores),
        "cpu_load": None if cores is None else pace.cpu_load,
        "cpu_load_factor": pace.cpu_load if setup.has_step and pace.cpu_load < math.inf else None,
        "queued_share": use.queued_share,
        "worker_cores_count": use.worker_cores,
        "worker_threads_count": use.threads,
        "threads_per_core_count": facts.threads_per_core,
        "extra_threads_cpu_share": facts.extra_threads_share,
        "threads_trust": _least_threads(facts).clear(facts.extra_threads_share or 0.0),
        "space_trust": 0.7,
        **_named(growth, growth_bytes_per_s="bytes_per_s", growth_bytes="grown_bytes"),
        **_named(growth, copied_share="copied_share", full_in_s="left_s"),
        "growth_ratio": _over(growth.grown_bytes, growth.least_bytes) if growth else None,
        # the begin of epochs
        "start_share": begin.share,
        "start_s": begin.extra_s,
        "first_sample_s": begin.first_s,
        "epoch_s": begin.epoch_s,
        "epochs_seen_count": begin.epochs,
        "taken_before_count": begin.before,
        "start_trust": 1.0 if begin.epochs > 1 or begin.share > thresholds.MOSTLY else 0.8,
    }
    return values | _of_slow_worker(facts)


def _named(record: object, **fields: str) -> Numbers:
    """Take fields of a record by the names of numbers; None where there is no record."""
    return {name: getattr(record, field, None) for name, field in fields.items()}


def _over(value: float | None, *divisors: float | None) -> float | None:
    """Divide a number by others; None where one of them is none."""
    for divisor in divisors:
        value = value / divisor if value is not None and divisor else None
    return value


def _of_slow_worker(facts: Facts) -> Numbers:
    """Compare the slowest worker with the others; without a ratio where it is none to blame."""
    making, speeds = facts.making, compare_workers(facts.making.by_worker) if facts.making else []
    names = ("slow_worker_stall_share", "slow_worker_batch_s", "others_batch_s")
    if making is None or not speeds:
        return dict.fromkeys((*names, "slow_worker_share", "slow_worker", "slow_worker_ratio"))
    slow, own_s, rest_s, _ = speeds[0]
    part = max(facts.patterns.get("slow_worker", 0.0), facts.stalled_by_worker.get(slow, 0.0))
    # A worker that shares its core with another process is slower, though nothing is wrong with it
    least = SLOW_WORKER * (1 + min(facts.others_share * facts.setup.cores, 1.0))
    enough_s = KEEPS_UP * making.workers * making.use_s / facts.pace.queue_free
    # Its stalls would not end if it were as fast as the others, who take their time, too
    extra = part * max(1 - rest_s / own_s, 0.0)
    is_late = own_s > enough_s and (rest_s <= enough_s or extra >= thresholds.MOSTLY)
    return {
        **dict(zip(names, (part, own_s, rest_s), strict=True)),
        "slow_worker": slow,
        "slow_worker_ratio": (speeds[0].slowness(least) or None) if is_late else None,
        "slow_worker_share": facts.stall_share * extra,
    }


def _never_pauses(facts: Facts) -> bool:
    """Return whether the training process computes, or wants a core, for all of its step."""
    wanted = (facts.use.loop_cpu or 0.0) + (facts.use.loop_queued_share or 0.0)
    return wanted > thresholds.SATURATED * facts.own_parts.get("step", 0.0)


def _least_threads(facts: Facts) -> Limit:
    """Return from which share of the CPU time on extra threads matter."""
    is_crowd = facts.threads_per_core >= thresholds.CROWDS_OF_THREADS
    return Limit("", thresholds.EXTRA_THREADS / (2 if is_crowd else 1), 0.5)


def _parts_of_loop(facts: Facts) -> dict[str, float]:
    """Return what the loop does that is neither waiting for workers nor the model, by name."""
    rest = ("step", "other")  # what lies outside of all parts that have a name
    parts = {name: part for name, part in facts.own_parts.items() if name not in rest}
    parts[_OUTSIDE] = facts.own_parts.get("other", 0.0) - facts.release_share
    if facts.model_share:  # the model is known, so the rest of the step is something else
        parts[_OUTSIDE] += facts.own_parts.get("step", 0.0)
    if facts.setup.num_workers:
        parts[_sampler(facts)] = facts.stall_share * facts.exposure.of("main")
    return parts


def _sampler(facts: Facts) -> str:
    return f"the loader's own work in it ({facts.setup.sampler or 'a sampler'}, bookkeeping)"


# ---- conditions: the words of a row where it holds, None where it does not ----


def _rows(facts: Facts) -> Iterator[tuple[Cause, Words | None]]:
    """Yield each row of causes that are no work on samples, with its words; None: it is not met."""
    setup, growth, values = facts.setup, facts.memory_growth, numbers(facts)
    drawn_by = setup.sampler or setup.drawn_by
    begin = {
        "keep_alive": setup.keep_alive and f"{setup.keep_alive}; ",
        "drawn_by": drawn_by and f", by {drawn_by}",
        "sampler": setup.sampler and f", in {setup.sampler}",
    }
    yield begin_of(facts), begin if facts.starts.slow_share else None
    yield causes.NO_WORKER, _no_worker(facts)
    yield causes.MAIN_PROCESS, _own_parts(facts)
    yield causes.COMPUTES, _computes(facts)
    yield causes.IDLE_DEVICE, _idle_device(facts)
    yield causes.COPY, {"pin": "" if setup.pinned else "pin_memory=True and "}
    yield causes.OVERSUBSCRIPTION, _oversubscription(facts)
    # Workers' batches are new; others may be those of a dataset in memory
    yield causes.KEPT_BATCHES, {} if facts.keeps_batches and setup.num_workers else None
    copied = growth is not None and growth.copied
    yield causes.MEMORY_COPIES if copied else causes.MEMORY_GROWS, _growth(facts)
    worker = values["slow_worker"]
    yield causes.SLOW_WORKER, None if worker is None else {"worker": f"{worker:.0f}"}
    yield causes.SLOW_SAMPLES, _slow_samples(facts)
    idle = setup.num_workers - (values["active_workers_count"] or setup.num_workers)
    yield causes.IDLE_WORKERS, {} if idle > 0 else None
    yield causes.REPEATED_WORK, {} if setup.streams and setup.num_workers > 1 else None
    yield causes.FEW_CORES, _few_cores(facts)
    # Of batches that take more CPU time than all cores have in a step, more workers would only
    # turn the stalls into a slower step
    too_few = facts.enough_workers is not None and facts.pace.cpu_load <= 1
    yield causes.TOO_FEW_WORKERS, {} if too_few and setup.num_workers else None
    yield causes.SLOWS_THE_STEP if facts.is_slowed else causes.CPU_SATURATED, _full(facts)
    yield causes.TOO_LITTLE_PREFETCH, _too_little_prefetch(facts)
    # Both say more than that sending takes long
    handed_over = facts.has_needless_workers
    yield causes.NEEDLESS_WORKERS, {} if handed_over else None
    lets_go = facts.batch is not None and not handed_over
    yield (
        causes.RELEASES,
        {"less": " (uint8 images)" if facts.has_images else ""} if lets_go else None,
    )


def begin_of(facts: Facts) -> Cause:
    """Say what the begin of an epoch is: a new iterator, a stream's, drawing, or workers."""
    begin = facts.starts
    if begin.batches and begin.batches <= thresholds.HARDLY_AN_EPOCH and not begin.ended:
        return causes.NEW_ITERATORS
    # Workers that live on make new iterators first
    if facts.setup.streams and (begin.is_drawing or begin.is_filling):
        return causes.START_OF_STREAM
    return causes.SLOW_DRAWS if begin.is_drawing else causes.START_UP


def late_begin(facts: Facts) -> Finding | None:
    """Find a loop that takes many batches before its first step gets one."""
    begin = facts.starts
    if begin.before < thresholds.TAKEN_BEFORE:
        return None
    took: Numbers = {"start_s": begin.before_s}
    return finding(causes.LATE_BEGIN, facts, took, taken=count(begin.before, "batch"))


def _no_worker(facts: Facts) -> Words | None:
    """Hold where the main process makes the batches itself, so that the device waits for each."""
    setup, largest, epoch_s = facts.setup, facts.largest, facts.epoch_s or math.inf
    is_here = not setup.num_workers and not facts.has_helpers
    if not is_here or not facts.exposure.parts or not setup.has_step:
        return None
    own = facts.own_code(largest.stage) if largest else None
    most = f"; most of it in {largest.stage}" if largest else ""
    helps = f"num_workers={max(int(setup.cores) - 1, 1)} or so"
    if epoch_s <= thresholds.SHORT_EPOCH_S:
        helps += f" with persistent_workers=True, as an epoch takes {seconds(epoch_s)}"
    return {
        "most": f"{most}, in {own.place}: {own.does}" if own else most,
        "helps": f"{f'{AT_ONCE}; ' if facts.has_small_samples else ''}{helps}"
        f"{f'; {own.call.remedy}' if own else ''}",
        "stage": largest.stage if own and largest else "",
    }


def _own_parts(facts: Facts) -> Words:
    """Name the longest part of the loop that is neither waiting for workers nor the model."""
    parts = _parts_of_loop(facts)
    longest = max(sorted(parts), key=lambda name: parts[name])
    helps = f"make {longest} cheaper or rarer; or do it beforehand, or in a thread"
    helps = _SAMPLERS if longest == _sampler(facts) else helps
    return {"longest": longest, "longest_share": share(parts[longest]), **_code(facts, helps)}


def _computes(facts: Facts) -> Words | None:
    """Hold where a step waits for its device for some of its time, and computes in Python else.

    Only where the model cannot be seen (no module within reach) and the device is not the CPU's
    own: a step that computes without a pause may be a model on the CPU, unless stacks show what it
    calls instead.
    """
    setup, step = facts.setup, facts.own_parts.get("step", 0.0)
    if facts.model_share or setup.simulated or setup.on_gpu or not setup.has_step:
        return None
    code, is_all = facts.loop_code if facts.loop_line else None, _never_pauses(facts)
    is_named = code is not None and code.call is not OTHER
    if not setup.num_workers or facts.time is None or step < OWN_PART or (is_all and not is_named):
        return None
    helps = "put ss.stage('...') around logging and callbacks, to see which takes the time"
    return {
        "computing": share(min(facts.use.loop_cpu or 0.0, step)),
        "outside": "" if is_all else " outside the model",
        **_code(facts, helps),
    }


def _idle_device(facts: Facts) -> Words | None:
    """Hold where batches are there and the device is idle: the host is too slow for it."""
    helps = "look for .item(), logging and kernels that are too small: b_when_data_is_not_it"
    words = {"device": "GPU" if facts.setup.on_gpu else "device", **_code(facts, helps)}
    return words if facts.stall_share < HARDLY else None


def _code(facts: Facts, helps: str) -> Words:
    """Say in which function the training process computes, and what helps there."""
    own, line, code = facts.loop_code, facts.loop_line, ""
    if own is not None and line:
        code = f"; {share(own.share)} of what it computes is in {line}: {own.does}"
        helps = helps if helps is _SAMPLERS else IN_WORKERS
        helps = helps if own.call is OTHER else f"{own.call.remedy}; {helps}"
    return {"code": code, "helps": helps, "line": line}


def _oversubscription(facts: Facts) -> Words | None:
    """Hold where threads beside the workers' own take a good part of their CPU time."""
    is_much = _least_threads(facts).is_met(facts.extra_threads_share)
    is_much &= facts.lost_share >= thresholds.NOTABLE
    return {} if facts.setup.num_workers and facts.use.threads is not None and is_much else None


def _full(facts: Facts) -> Words | None:
    """Hold where this loop saturates the cores, and nothing else is in its way before them."""
    values, setup = numbers(facts), facts.setup
    used, load = values["cores_used_share"] or 0.0, values["cpu_load_factor"]
    if used + facts.others_share < thresholds.CORES_SHORT or used < facts.others_share:
        return None
    need, largest = f"use {used * setup.cores:.1f} of {setup.cores:g} cores", facts.largest
    if load is not None:
        need = f"need {times(load)} what {setup.cores:g} cores give in a step"
    part = f"; the largest part is {largest.stage} ({share(largest.share)})" if largest else ""
    others = f"; other processes had {share(facts.others_share)} of them"
    return {
        "need": need,
        "largest": part,
        "others": others if facts.others_share >= OTHERS else "",
        "part": f" ({largest.stage})" if largest else "",
    }


def _few_cores(facts: Facts) -> Words | None:
    """Hold where workers may run on fewer cores than there are, while the others are free."""
    theirs, used = facts.use.worker_cores, numbers(facts)["cores_used_share"]
    most = min(int(facts.setup.cores), facts.setup.num_workers)
    is_confined = theirs is not None and theirs < most
    return {} if is_confined and used is not None and used < thresholds.CORES_SHORT else None


def _growth(facts: Facts) -> Words | None:
    """Hold where memory grows; workers that end with their epoch before give it back."""
    growth, epoch_s = facts.memory_growth, facts.epoch_s
    if growth is None or not growth.matters or not facts.growth_lasts:
        return None
    ends_before = growth.left_s and epoch_s and epoch_s < growth.left_s
    return None if ends_before and not facts.setup.persistent else {"rate": growth.rate()}


def _slow_samples(facts: Facts) -> Words | None:
    """Hold where the others are quick enough, and the slow ones did not wait for a core."""
    spikes = facts.spikes
    without = facts.pace.free_load * (1 - spikes.share)
    waited = spikes.share <= 1 - facts.pace.queue_free
    if spikes.count < thresholds.SEVERAL or without > 1.0 or waited:
        return None
    which = facts.titles.get("slow_samples", "").partition(":")[2]
    own = facts.own_code(facts.slow_stage)
    unordered = "if order does not matter, in_order=False lets batches that are ready pass; "
    return {
        "one_in": f"{spikes.one_in:.0f}",
        "which": which and f":{which}",
        "where": f"; most of it in {own.place}: {own.does}" if own else "",
        "remedy": f"; {own.call.remedy}" if own and own.call is not OTHER else "",
        "unordered": unordered if facts.setup.in_order else "",
        "line": own.place if own else "",
    }


def _too_little_prefetch(facts: Facts) -> Words | None:
    """Hold where the cores keep up, too, and the stalls are work on batches that took longer."""
    setup, ahead = facts.setup, facts.setup.prefetch_factor
    if not setup.num_workers or facts.pace.cpu_load > KEEPS_UP:
        return None
    if facts.exposure.of(*WORK) < thresholds.LEADS:  # the batches were made in time
        return None
    queue = ahead * setup.num_workers if ahead else 0
    if queue and setup.epoch_batches and queue >= setup.epoch_batches:
        return None  # a whole epoch is asked for at its beginning: there is no more to prefetch
    factor = f" from {ahead} to {2 * ahead} or more" if ahead else ""
    return {"queue": f" of {queue}" if queue else "", "more": factor}
