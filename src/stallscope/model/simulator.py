"""What a loop would do with another setting: its recorded batches, replayed through other workers.

A pure function of what batches cost and of a setting. Batch by batch, on a clock of its own: each
worker makes its batches one after the other, so many are asked for ahead, a batch is sent beside
the next one's making, and the loop takes them in order (or not), receives and uses them.

Waiting overlaps, computing shares the cores. Workers that compute and wait in turn meet on the
cores by chance; how much longer a batch then takes, with so many at work, is the machine-repairman
model with processor sharing (a closed queueing network of a delay and a shared station), which
depends on nothing but the means: Baskett, Chandy, Muntz and Palacios, "Open, closed, and mixed
networks of queues", Journal of the ACM 22, 1975. Intervals are of resampled batches.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stallscope.model.thresholds import HARDLY, OTHERS, STALL_S, STALL_SHARE
from stallscope.stats import ENDS, t_quantile

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from stallscope.model.settings import Setting

    Floats = NDArray[np.float64]


_EVENTS: Final = 600
"""Batches of all draws together: what a prediction may take (10 ms) allows so many."""
_FEWEST_STEPS: Final = 50
"""Of a draw: it has to be longer than what is prefetched."""
_MOST_STEPS: Final = 120
"""Epochs that are no longer than this are replayed from begin to end: they fill up anew."""
_FEWEST_DRAWS: Final = 5
_MOST_DRAWS: Final = 12
_MOST_TIMES: Final = 8
"""So many times as many workers are looked at, for a loop that has too few."""
_SEED: Final = 20_240_229
ERRORS: Final = {"same": 0.22, "inside": 0.15, "outside": 0.25, "unseen": 0.73}
"""How far off what a batch takes may be: with as many workers as were recorded, with another number
of them within what was recorded, and beyond; and with workers where none was recorded.

Of five loaders on two cores, 0.22, 0.13, 0.06 and 0.73 had 93% of the pairs of a recording and a
setting in their interval (`benchmarks/prediction.py --report`, which holds each loader out)."""
_LOOP_ERROR: Final = 0.5
"""So much of that is what the loop itself takes may be off."""
MOST_ERROR: Final = 0.9
_LEAST_CORES: Final = 0.5
"""That are left to the loop, whatever others have."""
_THREADED: Final = 1.25
"""Cores that one worker wants from which on its libraries' threads are said."""
_NOTICED: Final = 0.1
"""Share of a batch's time that is waiting, from which on more workers may have to wait longer."""


@dataclass(frozen=True, eq=False)
class LoaderCosts:
    """What the batches of a loop cost, and what it had for them; all without waiting for a core."""

    stages: tuple[tuple[str, str], ...]
    """Name and kind of each stage that makes a batch."""
    computing_s: Floats
    """CPU time of each batch in each stage, shape (batches, stages)."""
    waiting_s: Floats
    """What it waited there for anything but a core, same shape."""
    samples: Floats
    """In each batch, shape (batches,)."""
    use_s: Floats
    """What the loop does with each batch: copy, step and the rest, shape (steps,)."""
    use_cores: float = 0.0
    """Cores that the loop's process wants meanwhile."""
    send_s: float = 0.0
    """From where a batch is made to where it is sent."""
    receive_s: float = 0.0
    """What receiving it takes the loop, which does nothing else meanwhile."""
    draw_s: float = 0.0
    """What the loop computes between two batches to know the samples of another: its sampler."""
    start_s: float = 0.0
    """Until a worker that is started is ready for its first batch."""
    first_s: float = 0.0
    """What the first batch of a worker takes longer than the others."""
    end_s: float = 0.0
    """Until the workers that were recorded have ended, after an epoch that they do not outlive."""
    cores: float = 1.0
    """That the processes of the loop may use."""
    others_cores: float = 0.0
    """That other processes had of them meanwhile; nobody knows what they will have."""
    worker_cores: float = math.inf
    """That all workers together may use, where they are confined to some."""
    threads: float = 1.0
    """Cores that one of those that make batches wants while it computes: libraries have threads."""
    workers: int = 0
    """With which it was recorded; 0: the main process made the batches."""
    slower_workers: Mapping[int, float] = field(default_factory=dict)
    """Workers, by their number, that take so many times as long as the others for a batch; what
    batches cost is what they cost the others."""
    epoch_batches: int | None = None
    """None where the loader has no length."""
    batch_bytes: int | None = None
    """Of one batch; None where it is not known."""
    worker_bytes: int | None = None
    """That each worker has for itself; None where it is not known."""

    @cached_property
    def batch_s(self) -> Floats:
        """What each batch takes a worker that has a core for itself."""
        whole: Floats = (self.computing_s + self.waiting_s).sum(axis=1)
        return whole

    @cached_property
    def compute_s(self) -> float:
        """Mean CPU time of a batch."""
        return float(self.computing_s.sum(axis=1).mean())

    @cached_property
    def wait_s(self) -> float:
        """Mean time that a batch waits for anything but a core."""
        return float(self.waiting_s.sum(axis=1).mean())

    def faster(self, factor: float, kinds: Collection[str] = (), stage: str = "") -> LoaderCosts:
        """The same with some stages so many times as fast; `inf`: they take no time.

        Args:
            factor: how many times.
            kinds: of the stages.
            stage: or the name of one.
        """
        chosen = np.array([kind in kinds or name == stage for name, kind in self.stages], bool)
        scale = np.where(chosen, 1 / factor, 1.0)
        return replace(self, computing_s=self.computing_s * scale, waiting_s=self.waiting_s * scale)

    def slower(self, factor: float) -> LoaderCosts:
        """The same where making a batch takes so many times as long."""
        return replace(
            self, computing_s=self.computing_s * factor, waiting_s=self.waiting_s * factor
        )

    def with_step(self, step_s: float) -> LoaderCosts:
        """The same with a step that takes so long, seconds, and leaves the cores alone."""
        return replace(self, use_s=np.full(1, step_s), use_cores=0.0)


class Estimate(NamedTuple):
    """A number with the ends of its interval."""

    value: float
    low: float
    high: float

    def wider(self, down: float, up: float) -> Estimate:
        """The same with what else may be off: shares of the value, the first one below zero."""
        low = self.value * math.hypot(1 - self.low / self.value, down)
        high = self.value * math.hypot(self.high / self.value - 1, up)
        return Estimate(self.value, max(self.value - low, 0.0), self.value + high)


@dataclass(frozen=True)
class LoopPrediction:
    """What a loop would do with a setting."""

    samples_per_s: Estimate
    """In the long run: start-up counts where workers are started at every epoch."""
    stall_share: Estimate
    """Share (0 to 1) of the loop's time, in the steady state, in stalls."""
    first_batch_s: float
    """From starting the loader to its first batch."""
    memory_bytes: int | None
    """Of the workers, and of the batches on their way; None where a batch's size is not known."""
    outside: str = ""
    """Why this is outside of what was recorded; empty where it is not."""


@dataclass
class Replayed:
    """One replay, batch by batch; times in seconds from where the loop begins."""

    worker: list[int] = field(default_factory=list)
    """That made each batch."""
    taken: list[float] = field(default_factory=list)
    """When its worker began with it."""
    made: list[float] = field(default_factory=list)
    """When it was made."""
    order: list[int] = field(default_factory=list)
    """Batches in the order in which the loop used them."""
    asked: list[float] = field(default_factory=list)
    """When the loop began to wait, for each step."""
    used_from: list[float] = field(default_factory=list)
    """When it began to use the batch."""
    used_to: list[float] = field(default_factory=list)
    """When it had used it."""


def predict(costs: LoaderCosts, setting: Setting, error: float | None = None) -> LoopPrediction:
    """Predict what a loop would do with a setting.

    Args:
        costs: what its batches cost.
        setting: how they are loaded.
        error: share (0 to 1) by which the model may be off; None: what `ERRORS` says.
    """
    paces, drawn = _Paces.of(costs, setting), _draws(costs, setting)
    draws = [_steady(costs, setting, one, paces) for one in drawn]
    periods, stalls, firsts = (np.array(values) for values in zip(*draws, strict=True))
    starts_s = _between_s(costs, setting, float(firsts.mean()), float(periods.mean()))
    samples = float(costs.samples.mean())
    # A replay may be longer than the recording, and knows no more than that
    widen = math.sqrt(max(_length(costs, setting) / max(len(costs.samples), 1), 1.0))
    outside = _outside(costs, setting)
    error = ERRORS[error_kind(costs, setting)] if error is None else error
    # Resampling one batch tells nothing, two of them little
    error = min(math.hypot(error, 1 / max(len(costs.samples), 1)), MOST_ERROR)
    off = [_steady(*_off(costs, setting, drawn[0], by)) for by in (1 + error, 1 - error)]
    slow, fast = (float((periods[0] + starts_s) / (one[0] + starts_s)) - 1 for one in off)
    return LoopPrediction(
        samples_per_s=_estimate(samples / (periods + starts_s), widen).wider(slow, fast),
        stall_share=_estimate(stalls, widen, most=1.0),
        first_batch_s=float(firsts.mean()),
        memory_bytes=_memory_bytes(costs, setting),
        outside=outside,
    )


def error_kind(costs: LoaderCosts, setting: Setting) -> str:
    """Which of the `ERRORS` a prediction has."""
    if setting.num_workers == costs.workers:
        return "same"
    if not costs.workers:
        return "unseen"
    return "outside" if _outside(costs, setting) else "inside"


def _off(
    costs: LoaderCosts, setting: Setting, draw: tuple[list[float], list[float]], by: float
) -> tuple[LoaderCosts, Setting, tuple[list[float], list[float]], _Paces]:
    """What to replay if making a batch takes so many times as long as it is said to.

    The loop's own part is off by less: it is recorded with every setting. Others may leave all
    cores, or take as much as they had, however much the loop wants. What batches wait for may be
    one thing that all workers share: then each waits as much longer as there are more of them.
    """
    batch_s, use_s = draw
    here = 1 + _LOOP_ERROR * (by - 1)
    left = max(costs.cores - costs.others_cores, _LEAST_CORES) if by > 1 else costs.cores
    shared = max(setting.num_workers, 1) / max(costs.workers, 1)
    if (shared > 1) != (by > 1):
        shared = 1.0
    whole_s = max(costs.compute_s + costs.wait_s, 1e-12)
    making = by * (costs.compute_s + shared * costs.wait_s) / whole_s
    found = replace(
        costs,
        waiting_s=shared * costs.waiting_s,
        receive_s=here * costs.receive_s,
        draw_s=here * costs.draw_s,
        cores=left,
        others_cores=0.0,
    )
    scaled = [making * one for one in batch_s], [here * one for one in use_s]
    return found, setting, scaled, _Paces.of(found, setting)


def enough_workers(costs: LoaderCosts, now: Setting) -> int | None:
    """The smallest number of more workers with which a loop hardly stalls; None: no number does.

    Args:
        costs: what its batches cost.
        now: the setting as it is.
    """

    def is_enough(many: int) -> bool:
        found = predict(costs, replace(now, num_workers=many).normal())
        return found.stall_share.value < HARDLY

    numbers = range(now.num_workers + 1, _MOST_TIMES * now.num_workers + 1)
    place = bisect_left(numbers, True, key=is_enough)  # noqa: FBT003 - more workers stall no longer
    return numbers[place] if place < len(numbers) else None


def _length(costs: LoaderCosts, setting: Setting) -> int:
    """Steps of a replay; of short epochs, of some that are whole."""
    known = min(max(len(costs.samples), _FEWEST_STEPS, 3 * _ahead(setting)), _MOST_STEPS)
    epoch = _whole_epoch(costs, setting)
    return epoch * max(known // epoch, 1) if epoch else known


def _whole_epoch(costs: LoaderCosts, setting: Setting) -> int | None:
    """Batches of an epoch, where those are replayed from begin to end; None where they are not."""
    short = costs.epoch_batches and setting.num_workers and costs.epoch_batches <= _MOST_STEPS
    return costs.epoch_batches if short else None


def _ahead(setting: Setting) -> int:
    return setting.num_workers * (setting.prefetch_factor or 0)


def _draws(costs: LoaderCosts, setting: Setting) -> list[tuple[list[float], list[float]]]:
    """Resampled batches and uses, in stretches as long as there are workers: those are alike."""
    steps = _length(costs, setting)
    number = min(max(_EVENTS // steps, _FEWEST_DRAWS), _MOST_DRAWS)
    stretch = max(setting.num_workers, 2)
    rng = np.random.default_rng(_SEED)
    places = np.arange(stretch)

    def drawn(values: Floats, length: int) -> list[list[float]]:
        size = number, -(-length // stretch)
        if setting.num_workers == costs.workers and len(values) >= 2 * stretch:
            # What one worker made is made by one again: it may be slower than the others
            starts = stretch * rng.integers(len(values) // stretch, size=size)
        else:
            starts = rng.integers(len(values), size=size)
        chosen = (starts[:, :, None] + places) % len(values)
        found: list[list[float]] = values[chosen.reshape(number, -1)[:, :length]].tolist()
        return found

    batch_s = drawn(costs.batch_s, steps + _ahead(setting))  # the last ones are not used any more
    return list(zip(batch_s, drawn(costs.use_s, steps), strict=True))


def _steady(
    costs: LoaderCosts, setting: Setting, draw: tuple[list[float], list[float]], paces: _Paces
) -> tuple[float, float, float]:
    """Seconds a step, share of stalls, and seconds to the first batch."""
    if epoch := _whole_epoch(costs, setting):
        return _epochs(costs, setting, draw, paces, epoch)
    made = replay(costs, setting, *draw, paces)
    begins, uses, ends = (np.array(one) for one in (made.asked, made.used_from, made.used_to))
    skip = min(max(_ahead(setting) + setting.num_workers, 1), len(ends) // 2)
    # Whole rounds: workers that began together send together
    rounds = (len(ends) - skip) // max(setting.num_workers, 1)
    skip = len(ends) - rounds * max(setting.num_workers, 1) if rounds else skip
    length_s = float(ends[-1] - ends[skip - 1])
    waits = (uses - begins)[skip:]
    stalled_s = _stalled_s(waits, length_s)
    if not setting.num_workers:  # making a batch here is a wait, as the kit has it
        return length_s / len(waits), stalled_s / length_s, float(uses[0])
    first_s = _first_s(costs, setting) + float(uses[0])
    return length_s / len(waits), stalled_s / length_s, first_s


def _epochs(
    costs: LoaderCosts,
    setting: Setting,
    draw: tuple[list[float], list[float]],
    paces: _Paces,
    epoch: int,
) -> tuple[float, float, float]:
    """As `_steady`, of whole epochs without what lies between them."""
    (batch_s, use_s), steps = draw, len(draw[1])
    waits, lengths_s, firsts_s = [], [], []
    drawn_s = min(_ahead(setting), epoch) * costs.draw_s
    for begin in range(0, steps, epoch):
        part = slice(begin, begin + epoch)
        made = replay(costs, setting, batch_s[part], use_s[part], paces)
        waits += [used - asked for used, asked in zip(made.used_from, made.asked, strict=True)]
        waits[-epoch] += drawn_s
        lengths_s.append(drawn_s + made.used_to[-1])
        firsts_s.append(made.used_from[0])
    length_s = sum(lengths_s)
    stalled_s = _stalled_s(np.array(waits), length_s)
    first_s = _first_s(costs, setting) + float(np.mean(firsts_s))
    return length_s / steps, stalled_s / length_s, first_s


def _stalled_s(waits: Floats, length_s: float) -> float:
    limit_s = max(STALL_S, STALL_SHARE * length_s / len(waits))
    return float(waits[waits > limit_s].sum())


def _first_s(costs: LoaderCosts, setting: Setting) -> float:
    """What the first batch after a start takes longer than one whose workers are there."""
    return _started_s(costs, setting) + _ahead(setting) * costs.draw_s


def _started_s(costs: LoaderCosts, setting: Setting) -> float:
    return costs.start_s * setting.num_workers / max(costs.workers, 1) + costs.first_s


def replay(
    costs: LoaderCosts,
    setting: Setting,
    batch_s: list[float],
    use_s: list[float],
    paces: _Paces | None = None,
) -> Replayed:
    """Replay batches with a setting, in virtual time.

    Args:
        costs: what the loop has for them.
        setting: how they are loaded.
        batch_s: what each takes a worker that has a core for itself, seconds; of as many more as
            are on their way when the last one is used.
        use_s: what the loop does with each, seconds.
        paces: of this setting, where they are known already.
    """
    if not setting.num_workers:
        return _replay_here(costs, batch_s, use_s)
    return _Clock(costs, setting, paces or _Paces.of(costs, setting)).run(batch_s, use_s)


def _replay_here(costs: LoaderCosts, batch_s: list[float], use_s: list[float]) -> Replayed:
    """Without workers, the loop makes each batch when it needs it."""
    cores = _Cores(costs.cores, costs.others_cores)
    _, slow = _stretches(1, costs.compute_s, costs.wait_s, cores)
    made_s = np.array(batch_s) * slow + costs.draw_s * _loop_stretch(0, costs, 1.0)
    used_s = np.array(use_s) * _loop_stretch(0, costs, costs.use_cores)
    both = np.column_stack([made_s, used_s])
    ends = np.cumsum(both.ravel()).reshape(-1, 2)
    begins = (ends[:, 0] - both[:, 0]).tolist()
    made, used = ends[:, 0].tolist(), ends[:, 1].tolist()
    numbers = list(range(len(made)))
    return Replayed([0] * len(made), begins, made, numbers, begins, made, used)


class _Cores(NamedTuple):
    """What those that make batches compute on."""

    cores: float
    beside: float = 0.0
    """Of them, what something else wants at the same time, and gets its fair share of."""
    most: float = math.inf
    """That all makers together may use."""
    threads: float = 1.0
    """Cores that one of them wants."""


class _Paces(NamedTuple):
    """How many times as long things take, by the number of workers that are at work."""

    idle: list[float]
    """A batch, while the loop waits."""
    using: list[float]
    """A batch, while the loop receives one, draws the samples of another, or uses one."""
    use: list[float]
    """What the loop does with a batch."""
    draw: list[float]
    """Drawing the samples of another."""

    @classmethod
    def of(cls, costs: LoaderCosts, setting: Setting) -> _Paces:
        """Those of a setting."""
        many = range(setting.num_workers + 1)
        compute_s = costs.compute_s + costs.send_s  # which computes beside the next one
        cores = _Cores(costs.cores, costs.others_cores, costs.worker_cores, costs.threads)
        use_s = float(costs.use_s.mean())
        busy_s = costs.receive_s + costs.draw_s + use_s
        loop = (costs.draw_s + costs.use_cores * use_s) / busy_s if busy_s else 0.0
        using = cores._replace(beside=cores.beside + loop)
        return cls(
            _stretches(setting.num_workers, compute_s, costs.wait_s, cores),
            _stretches(setting.num_workers, compute_s, costs.wait_s, using),
            [_loop_stretch(k, costs, costs.use_cores) for k in many],
            [_loop_stretch(k, costs, 1.0) for k in many],
        )


class _Clock:
    """One replay with workers.

    All workers that are at work progress at the same pace, so each batch has its end on a common
    clock that goes as fast as that pace: a queue of ends is all there is to keep.
    """

    def __init__(self, costs: LoaderCosts, setting: Setting, paces: _Paces) -> None:
        self._costs, self._setting, self._paces = costs, setting, paces

    def run(self, batch_s: list[float], use_s: list[float]) -> Replayed:  # noqa: C901, PLR0915 - an event loop: every call costs
        """Use all batches that have a use; see `replay`."""
        costs, setting, (idle, using, slows, draws) = self._costs, self._setting, self._paces
        many, steps, whole = setting.num_workers, len(use_s), len(batch_s)
        ahead = _ahead(setting)
        found = Replayed([0] * whole, [0.0] * whole, [0.0] * whole)
        waiting: list[deque[int]] = [deque() for _ in range(many)]
        tasks = [0] * many  # on their way, of each worker
        at_work = [False] * many
        sends_until = [0.0] * many
        sent: list[float | None] = [None] * whole
        ready: list[tuple[float, int]] = []  # in the order of their arrival, where none is kept
        ends: list[tuple[float, int, int]] = []  # on the common clock
        now, clock, active, asked, turn = 0.0, 0.0, 0, 0, 0
        place, busy_until = 0, -1.0  # of the step; below zero: the loop waits
        in_order = setting.in_order
        slower = [costs.slower_workers.get(number, 1.0) for number in range(many)]

        def ask() -> None:
            """Give the next batch to a worker, as torch does."""
            nonlocal asked, turn, active
            if asked >= whole:
                return
            for _ in range(many):
                worker, turn = turn, (turn + 1) % many
                if in_order or tasks[worker] < ahead // many:
                    break
            found.worker[asked] = worker
            tasks[worker] += 1
            if at_work[worker]:
                waiting[worker].append(asked)
            else:
                at_work[worker] = True
                active += 1
                found.taken[asked] = now
                heappush(ends, (clock + slower[worker] * batch_s[asked], worker, asked))
            asked += 1

        for _ in range(ahead):
            ask()
        found.asked.append(0.0)
        while True:
            pace = (idle if busy_until < 0 else using)[active]
            ends_at = now + (ends[0][0] - clock) * pace if ends else math.inf
            if busy_until >= 0:
                loop_at = busy_until
            elif in_order:
                arrives = sent[place]
                loop_at = math.inf if arrives is None else max(arrives, now)
            else:
                loop_at = max(ready[0][0], now) if ready else math.inf
            if ends_at <= loop_at:  # a worker has made a batch
                now = ends_at
                clock, worker, batch = heappop(ends)
                found.made[batch] = now
                arrives = max(now, sends_until[worker]) + costs.send_s
                sends_until[worker] = sent[batch] = arrives
                if not in_order:
                    heappush(ready, (arrives, batch))
                if waiting[worker]:
                    following = waiting[worker].popleft()
                    found.taken[following] = now
                    end = clock + slower[worker] * batch_s[following]
                    heappush(ends, (end, worker, following))
                else:
                    at_work[worker] = False
                    active -= 1
                continue
            clock += (loop_at - now) / pace
            now = loop_at
            if busy_until >= 0:  # the loop has used one
                busy_until = -1.0
                found.used_to.append(now)
                place += 1
                if place == steps:
                    return found
                found.asked.append(now)
                continue
            batch = place if in_order else heappop(ready)[1]
            tasks[found.worker[batch]] -= 1
            ask()
            found.order.append(batch)
            found.used_from.append(now + costs.receive_s + costs.draw_s * draws[active])
            busy_until = found.used_from[-1] + use_s[place] * slows[active]


def _stretches(most: int, compute_s: float, wait_s: float, cores: _Cores) -> list[float]:
    """How many times as long a batch takes with so many workers as with cores for all.

    Args:
        most: workers that make batches; the answer is that for 0, 1, ... of them.
        compute_s: what each batch computes, on average ...
        wait_s: ... and what it waits for anything but a core.
        cores: that they compute on.
    """
    whole_s = compute_s + wait_s
    if compute_s <= 0 or not most:
        return [1.0] * (most + 1)
    many = np.arange(1, most + 1)
    wanted = np.minimum(many * cores.threads * compute_s / whole_s, cores.most)
    fair = cores.cores * wanted / (wanted + cores.beside)
    left = np.minimum(np.maximum(cores.cores - cores.beside, fair), cores.most) / cores.threads
    if wait_s <= 0.001 * whole_s:
        return [1.0, *np.maximum(many / left, 1.0).tolist()]
    # The chance that so many compute or want to, up to a factor: log of its ratio to the one before
    at_work = np.minimum(many, left[:, None])
    others = np.maximum(many[:, None] - many + 1, 1e-300)
    logs = np.cumsum(np.log(others * compute_s / wait_s / at_work), axis=1)
    logs = np.column_stack([np.zeros(most), logs])
    chances = np.exp(logs - logs.max(axis=1, keepdims=True))
    busy = (chances[:, 1:] * at_work).sum(axis=1) / chances.sum(axis=1)
    return [1.0, *np.maximum(many * compute_s / busy / whole_s, 1.0).tolist()]


def _loop_stretch(active: int, costs: LoaderCosts, wants: float) -> float:
    """How many times as long something takes the loop while so many workers are at work.

    Args:
        active: workers.
        costs: what they compute.
        wants: cores that it wants meanwhile.
    """
    whole_s = costs.compute_s + costs.wait_s
    if wants <= 0 or whole_s <= 0:
        return 1.0
    makers = min(active * costs.threads * costs.compute_s / whole_s, costs.worker_cores)
    crowded = max((makers + wants + costs.others_cores) / costs.cores, 1.0)
    computing = min(wants, 1.0)  # of its time: the rest it waits anyhow
    return 1 + computing * (crowded - 1)


def _between_s(costs: LoaderCosts, setting: Setting, first_s: float, period_s: float) -> float:
    """What goes by from one epoch to the next, for each step of one, seconds."""
    if not costs.epoch_batches or not setting.num_workers:
        return 0.0
    ended_s = 0.0
    if not setting.persistent_workers:
        ended_s = costs.end_s * setting.num_workers / max(costs.workers, 1)
    if _whole_epoch(costs, setting):  # they fill up again as they are replayed
        begun_s = 0.0 if setting.persistent_workers else _started_s(costs, setting)
    elif setting.persistent_workers:  # they are there, and begin with nothing made ahead
        begun_s = float(costs.batch_s.mean()) + costs.send_s - period_s
    else:
        begun_s = first_s - period_s
    return (max(begun_s, 0.0) + ended_s) / costs.epoch_batches


def _estimate(values: Floats, widen: float, most: float = math.inf) -> Estimate:
    middle = float(values.mean())
    low, high = np.percentile(values, ENDS)
    wider = widen * t_quantile(len(values) - 1) / t_quantile(1_000)
    low, high = middle - (middle - low) * wider, middle + (high - middle) * wider
    return Estimate(middle, max(float(low), 0.0), min(float(high), most))


def _memory_bytes(costs: LoaderCosts, setting: Setting) -> int | None:
    """What workers have for themselves, and the batches that are on their way."""
    if costs.batch_bytes is None:
        return None
    own = setting.num_workers * (costs.worker_bytes or 0)
    return own + (_ahead(setting) + 1) * costs.batch_bytes


def _outside(costs: LoaderCosts, setting: Setting) -> str:
    """Why a prediction goes beyond what was recorded."""
    many, had = setting.num_workers, max(costs.workers, 1)
    waits = costs.wait_s / max(costs.wait_s + costs.compute_s, 1e-12)
    reasons = (
        (many and not costs.workers, "no worker was recorded"),
        (
            many != costs.workers and costs.others_cores >= OTHERS * costs.cores,
            f"other processes had {costs.others_cores:.1f} of {costs.cores:g} cores meanwhile",
        ),
        (
            many > had and costs.threads >= _THREADED,
            "a worker's libraries compute in threads: more of them at once were not recorded",
        ),
        (
            many > costs.cores and had <= costs.cores and waits < 1 - _NOTICED,
            f"more workers than the {costs.cores:g} cores, which was not recorded",
        ),
        (
            many > had and waits > _NOTICED,
            f"{many} workers wait at once: with {had} it was recorded that nobody waits longer",
        ),
        (setting.threads is not None, "other threads in the workers were not recorded"),
        (setting.pin_memory, "pinning was not recorded"),
    )
    return next((why for is_so, why in reasons if is_so), "")


def timeline(costs: LoaderCosts, setting: Setting, steps: int) -> dict[str, Any]:
    """The first steps of a replay of the recorded batches in their order, for a picture.

    Returns:
        `made`: worker, begin and end of each batch; `used`: begin and end of each step; seconds.
    """
    length = min(max(_length(costs, setting), 3 * steps), _MOST_STEPS)
    batch_s = np.resize(costs.batch_s, length).tolist()
    batch_s += batch_s[: _ahead(setting)]
    found = replay(costs, setting, batch_s, np.resize(costs.use_s, length).tolist())
    first = max(length - steps, 0) // 2
    begin_s, end_s = found.asked[first], found.used_to[min(first + steps, length) - 1]
    made = [
        (worker, begin - begin_s, end - begin_s)
        for worker, begin, end in zip(found.worker, found.taken, found.made, strict=True)
        if end > begin_s and begin < end_s
    ]
    pairs = zip(found.used_from, found.used_to, strict=True)
    used = [(begin - begin_s, end - begin_s) for begin, end in pairs]
    return {
        "made": made,
        "used": [one for one in used if one[0] >= 0 and one[1] <= end_s - begin_s],
    }
