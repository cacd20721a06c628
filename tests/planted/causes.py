"""Each cause, planted into a healthy loop."""

import math
from dataclasses import replace
from typing import Final

from planted import loader
from planted.recipe import MEAN_BYTES, Op, Recipe, Sending, SlowSamples
from planted.sound import NAMES, Given, Two, few, missing_s, with_work
from stallscope.errors import UnsupportedError
from stallscope.units import seconds

# --- storage that is slow to answer, or gives too few bytes a second ------------------------------


_BESIDE_BYTES: Final = 0.2
"""Share of the workers' time that is not waiting for bytes."""


def storage_latency(base: Recipe, conditions: Given) -> Two:
    """Every sample waits as long for storage, whatever its size: a sleep where it is read."""
    more_s = missing_s(base, conditions.strength) / base.batch
    return Two(base, replace(base, read_s=base.read_s + more_s))


def storage_bandwidth(base: Recipe, conditions: Given) -> Two:
    """All workers together get so many bytes a second; more of them would get no more.

    Photographs are read, and each then waits until its bytes would have come through a pipe that
    all workers share.
    """
    healthy = replace(with_work(base, _BESIDE_BYTES, conditions.draw), reads_files=True)
    bytes_per_s = base.batch * MEAN_BYTES / (conditions.strength * base.step_s)
    return Two(healthy, replace(healthy, bytes_per_s=bytes_per_s))


# --- what takes long in making a batch and sending it ---------------------------------------------


_LITTLE: Final = 0.15
"""Share of the workers' time that everything but the cause takes, where that is measured."""


def decode(base: Recipe, conditions: Given) -> Two:
    """Photographs are decoded in the workers; without the cause, they were decoded beforehand.

    Batches are as large as it takes on this machine, by what decoding one photograph takes.
    """
    decode_s = loader.decode_s()
    wanted_s = base.workers * (conditions.strength - _LITTLE)
    batch = max(round(wanted_s * base.step_s / decode_s), 1)
    scaled = replace(base, batch=batch, step_s=batch * decode_s / wanted_s, reads_files=True)
    healthy = with_work(scaled, _LITTLE, conditions.draw)
    return Two(healthy, replace(healthy, decodes=True))


def one_transform(base: Recipe, conditions: Given) -> Two:
    """One transform, or the dataset's own code, computes for longer than all else together."""
    more_s = missing_s(base, conditions.strength) / base.batch
    chosen = conditions.draw.randrange(len(base.ops) + 1)
    if chosen == len(base.ops):
        return Two(base, replace(base, parse_s=base.parse_s + more_s))
    ops = [
        replace(op, cpu_s=op.cpu_s + (more_s if place == chosen else 0.0))
        for place, op in enumerate(base.ops)
    ]
    return Two(base, replace(base, ops=tuple(ops)))


def transforms(base: Recipe, conditions: Given) -> Two:
    """Five transforms, each of which takes about as long as the others."""
    whole_s = missing_s(base, conditions.strength) / base.batch + sum(op.cpu_s for op in base.ops)
    parts = [conditions.draw.uniform(0.9, 1.1) for _ in NAMES]
    names = conditions.draw.sample(NAMES, len(NAMES))
    ops = [Op(name, whole_s * part / sum(parts)) for name, part in zip(names, parts, strict=True)]
    return Two(base, replace(base, ops=tuple(ops)))


def collate(base: Recipe, conditions: Given) -> Two:
    """Making one batch out of its samples computes for longer than making the samples."""
    return Two(base, replace(base, collate_s=base.collate_s + missing_s(base, conditions.strength)))


def sending(base: Recipe, conditions: Given) -> Two:
    """Batches of many megabytes that take next to nothing to make.

    They go through shared memory as a list of tensors, or through the pipe as numpy arrays; taken
    away, as one small tensor, as a list of small ones still costs a message for each. The step is
    as long as the machine asks for: the loader's own time for a batch, by the strength.
    """
    kinds: tuple[Sending, ...] = ("list", "arrays")
    kind, megabytes = conditions.draw.choice(kinds), conditions.draw.uniform(12, 32)
    workers = min(max(base.workers, 2), 4)
    values = int(megabytes * 1e6 / 4 / base.batch)
    empty = replace(base, workers=workers, ops=(), read_s=0.0, parse_s=0.0, collate_s=0.0)
    took_s = loader.batch_s(replace(empty, sending=kind, values=values))
    scaled = replace(empty, step_s=took_s / conditions.strength)
    healthy = with_work(scaled, _LITTLE, conditions.draw)
    return Two(healthy, replace(healthy, sending=kind, values=values))


def lock(base: Recipe, conditions: Given) -> Two:
    """A transform that holds a lock of all workers: however many there are, one is in it.

    It waits where the cores would not do for all workers at once.
    """
    computes = conditions.strength / conditions.cores <= 0.5 and conditions.draw.random() < 0.5
    workers = max(round(conditions.strength / 0.4), 2)
    healthy = replace(
        few(base, conditions.draw, workers, _LITTLE),
        lock_s=conditions.strength * base.step_s / base.batch,
        lock_computes=computes,
        is_locked=False,
    )
    return Two(healthy, replace(healthy, is_locked=True))


# --- too few workers, too few cores, too many threads ---------------------------------------------


_HEALTHY: Final = 0.5
"""Share of the workers' time, or of the cores', that a healthy loader takes."""
_READ: Final = 0.35
_MOST_THREADS: Final = 64
_IDLE: Final = 1.6
"""Up to this strength, twice the workers are enough."""
_SPARE_CORES: Final = 0.7
"""Share of the cores that a healthy loop uses at most."""
_SPARE: Final = 0.67
"""Share of the step that the loader may take without the cause, where that is measured."""


def too_few_workers(base: Recipe, conditions: Given) -> Two:
    """One worker where it takes several, and cores with nothing to do.

    Its work is of all sorts; on a small machine more of it waits, so that the cores would do.
    """
    workers = max(conditions.cores // 8, 1)
    load = conditions.strength  # of the few workers' time
    computes = min(1 - _READ, 0.6 * conditions.cores / (load * workers))
    few = with_work(replace(base, workers=workers), load, conditions.draw, read=1 - computes)
    return Two(replace(few, workers=math.ceil(workers * load / _HEALTHY)), few)


def idle_workers(base: Recipe, conditions: Given) -> Two:
    """A stream of which only one worker, or two of four, have a shard."""
    shards = conditions.draw.randint(1, 2)
    crowded = replace(base, workers=2 * shards if conditions.strength <= _IDLE else 4 * shards)
    # What a shard's worker takes waits, so that it has a core wherever the loop runs
    lone = with_work(
        replace(crowded, workers=shards), conditions.strength, conditions.draw, read=0.75
    )
    return Two(
        replace(lone, workers=crowded.workers, shards=crowded.workers),
        replace(lone, workers=crowded.workers, shards=shards),
    )


def few_cores(base: Recipe, conditions: Given) -> Two:
    """All workers confined to one core, where they would have several.

    On two cores it cannot be planted as strongly as the others: both would be too few.

    Raises:
        UnsupportedError: there is one core only.
    """
    if conditions.cores == 1:
        raise UnsupportedError("this machine has one core: workers cannot be kept from others")
    strength = min(conditions.strength, _SPARE_CORES * conditions.cores)
    whole_s = strength * base.step_s / 0.9
    busy = with_work(base, whole_s / (base.workers * base.step_s), conditions.draw, read=0.1)
    return Two(busy, replace(busy, worker_cores=1))


def cpu_saturated(base: Recipe, conditions: Given) -> Two:
    """Work of all sorts that computes, in as many workers as there are cores, or in twice as many.

    In the first case the step computes, too, so that it also takes longer than it would alone.
    Without the cause the same work takes half of what the step leaves of the cores.
    """
    computes = conditions.draw.random() < 0.5
    step_cores = 1.0 if computes else 0.0
    names = conditions.draw.sample(NAMES, 3)
    workers = conditions.cores if computes else 2 * conditions.cores
    busy = replace(base, workers=workers, busy_step=computes)
    left_s = max(conditions.cores - step_cores, 0.1) * base.step_s
    whole_s = (conditions.strength * conditions.cores - step_cores) * base.step_s
    return Two(_even(busy, names, _HEALTHY * left_s), _even(busy, names, whole_s))


def _even(recipe: Recipe, names: list[str], whole_s: float) -> Recipe:
    """A loop with this CPU time for each batch, spread over all kinds of work."""
    each_s = whole_s / recipe.batch
    return replace(
        recipe,
        read_s=0.0,
        parse_s=0.3 * each_s,
        ops=tuple(Op(name, 0.13 * each_s) for name in names),
        collate_s=0.31 * whole_s,
    )


def oversubscription(base: Recipe, conditions: Given) -> Two:
    """A transform that computes in parallel, with threads for eight times the cores a worker.

    The step is as long as the machine asks for: the loader's own time for a batch, by the strength.

    Raises:
        UnsupportedError: on this machine so many threads hardly cost anything.
    """
    threads = min(8 * conditions.cores, _MOST_THREADS)
    loop = replace(
        with_work(replace(base, workers=min(base.workers, 4)), 0.0, conditions.draw),
        regions=conditions.draw.randint(20, 40),
    )
    alone_s = loader.batch_s(loop)
    together_s = loader.batch_s(replace(loop, threads=threads))
    if together_s * _SPARE < conditions.strength * alone_s:
        raise UnsupportedError(
            f"here a batch takes {seconds(alone_s)} with 1 thread a worker and "
            f"{seconds(together_s)} with {threads}: that is no loop that is "
            f"{conditions.strength:g} times as slow; take a smaller strength, or a quieter machine"
        )
    healthy = with_work(
        replace(loop, step_s=together_s / conditions.strength), 0.05, conditions.draw
    )
    return Two(healthy, replace(healthy, threads=threads))


# --- what the main process does itself, while its workers wait for it -----------------------------


def main_process(base: Recipe, conditions: Given) -> Two:
    """No worker at all, logging at every step, or a sampler that computes; drawn from the seed."""
    return conditions.draw.choice((no_workers, logging, slow_sampler))(base, conditions)


def no_workers(base: Recipe, conditions: Given) -> Two:
    """The main process makes the batches itself, which its workers could do meanwhile."""
    load = (conditions.strength - 1) / base.workers
    healthy = with_work(base, load, conditions.draw)
    return Two(healthy, replace(healthy, workers=0))


def logging(base: Recipe, conditions: Given) -> Two:
    """After each step the main process computes, in a part that is named "logging"."""
    return Two(base, replace(base, logging_s=(conditions.strength - 1) * base.step_s))


def slow_sampler(base: Recipe, conditions: Given) -> Two:
    """Drawing a batch's indices computes in the main process, before the loop gets its batch."""
    return Two(base, replace(base, sampler_s=(conditions.strength - 1) * base.step_s))


# --- fast enough on average, where one thing that is late holds up the others ---------------------


_MOST_WORKERS: Final = 4
"""Most workers that a late batch can hold up; more of them make enough ahead."""
_AHEAD: Final = 16
_WIDEST: Final = 1.6
"""Beyond this spread, most of the time is in a few batches, which nothing made ahead can hide."""


def too_little_prefetch(base: Recipe, conditions: Given) -> Two:
    """Batches take very different times, and hardly any is made ahead.

    Whole batches do: no single sample stands out in its own. This cannot be planted as strongly as
    the others: it ends at about 1.6 times the step.
    """
    load = conditions.draw.uniform(0.55, 0.6)
    steady = replace(few(base, conditions.draw, _MOST_WORKERS, load, read=0.9), prefetch=1)
    little = replace(steady, spread=min(2 * conditions.strength - 1.8, _WIDEST))
    return Two(replace(little, prefetch=_AHEAD), little)


def slow_samples(base: Recipe, conditions: Given) -> Two:
    """One sample in some tens takes so long that the loop waits for it, whatever else is ready."""
    healthy = _few(base, conditions, conditions.draw.uniform(0.2, 0.3))
    batches = conditions.draw.randint(6, 10)
    ahead = healthy.workers * healthy.prefetch
    slow = SlowSamples(
        every=base.batch * batches,
        extra_s=((conditions.strength - 1) * batches + ahead) * base.step_s,
        computes=conditions.draw.random() < 0.5,
    )
    return Two(healthy, replace(healthy, slow=slow))


def slow_worker(base: Recipe, conditions: Given) -> Two:
    """The first worker waits for each of its samples; batches come in turn, so all wait for it."""
    workers = conditions.draw.randint(3, _MOST_WORKERS)  # most of what they do is to wait
    healthy = few(base, conditions.draw, workers, conditions.draw.uniform(0.15, 0.3))
    more_s = missing_s(healthy, conditions.strength) / healthy.batch
    return Two(healthy, replace(healthy, slow_worker_s=more_s))


def start_up(base: Recipe, conditions: Given) -> Two:
    """Workers that take long to start, and start at every short epoch."""
    epoch = conditions.draw.randint(14, 20)
    spoilt = replace(
        _few(base, conditions, 0.15),
        epoch=epoch,
        init_s=(conditions.strength - 1) * epoch * base.step_s,
    )
    return Two(replace(spoilt, persistent=True), spoilt)


def _few(base: Recipe, conditions: Given, load: float, read: float = _READ) -> Recipe:
    return few(base, conditions.draw, min(max(base.workers, 2), _MOST_WORKERS), load, read)
