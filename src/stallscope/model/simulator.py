"""Prediction of a loop with another setting: its recorded batches, replayed by other workers.

The prediction is a pure function of the costs of batches and of a setting, batch by batch on a
virtual clock. Each worker makes its batches in turn, and sends a batch while it makes the next. The
loop receives batches in order (or as they arrive) and uses them.

Waiting overlaps, computing shares the cores. Workers that alternate between computing and waiting
meet on the cores by chance. Their slowdown follows the machine-repairman model with processor
sharing (a closed queueing network of a delay and a shared station), which depends only on the
means: Baskett, Chandy, Muntz and Palacios, "Open, closed, and mixed networks of queues", Journal of
the ACM 22, 1975. Intervals come from resampled batches.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stallscope.model.thresholds import HARDLY, MENTIONED, OTHERS, STALL_S, STALL_SHARE
from stallscope.stats import ENDS, SEED, Estimate, t_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stallscope.model.batch_times import LoaderCosts
    from stallscope.model.settings import Setting

    Floats = NDArray[np.float64]


_EVENTS: Final = 600
"""Batches of all draws together, as many as are replayed in the 10 ms of a prediction."""
_FEWEST_STEPS, _MOST_STEPS = 50, 120
"""Steps of a draw: more than are prefetched. Epochs below the upper limit are replayed whole, as
each starts with empty queues."""
_FEWEST_DRAWS, _MOST_DRAWS = 5, 12
_MOST_TIMES: Final = 8
"""Most workers in `enough_workers`, as a multiple of the current number."""
ERRORS: Final = {"same": 0.22, "inside": 0.15, "outside": 0.25, "unseen": 0.73}
"""Relative error of a batch's time: with the recorded number of workers, with another number within
the recorded conditions, beyond these, and with workers where none was recorded.

For five loaders on two cores, intervals from 0.22, 0.13, 0.06 and 0.73 covered 93% of the pairs of
a recording and a setting (`benchmarks/prediction.py`, which holds each loader out)."""
_LOOP_ERROR: Final = 0.5
"""Relative error of the loop's own work, as a part of that error: every recording holds it."""
MOST_ERROR: Final = 0.9
_LEAST_CORES: Final = 0.5
"""Least cores of the loop beside other processes."""
_THREADED: Final = 1.25
"""Least cores per worker for a note about the libraries' threads."""


@dataclass(frozen=True)
class LoopPrediction:
    """Prediction of a loop with a setting."""

    samples_per_s: Estimate
    """Long-run rate; the start of workers counts where they start in every epoch."""
    stall_share: Estimate
    """Share (0 to 1) of the loop's time in stalls, in the steady state."""
    first_batch_s: float
    """Seconds from starting the loader to its first batch."""
    memory_bytes: int | None
    """Memory of workers and prefetched batches; None where a batch's size is unknown."""
    outside: str = ""
    """Reason why the prediction goes beyond the recording; empty where it does not."""


@dataclass
class Replayed:
    """Replay, batch by batch; seconds from the start of the loop.

    Of each batch its worker, its begin and its end there, and the order of use; of each step the
    begin of the wait, and the begin and the end of the batch's use.
    """

    worker: list[int] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)
    finished: list[float] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    used_from: list[float] = field(default_factory=list)
    used_to: list[float] = field(default_factory=list)

    @property
    def waits(self) -> Floats:
        """Seconds of waiting, of each step."""
        waits: Floats = np.array(self.used_from) - np.array(self.asked)
        return waits


class _Steady(NamedTuple):
    """Steady state of one replay."""

    period_s: float
    stall_share: float
    first_s: float
    """Seconds to the first batch."""


def predict(costs: LoaderCosts, setting: Setting, error: float | None = None) -> LoopPrediction:
    """Predict a loop with a setting; the relative error of a batch's time is from `ERRORS`."""
    loop = LoopReplay(costs, setting)
    drawn = loop.draws()
    states = [loop.steady(*draw) for draw in drawn]
    periods, stalls, firsts = (np.array(values) for values in zip(*states, strict=True))
    between_s = loop.between_epochs_s(float(firsts.mean()), float(periods.mean()))
    # A replay longer than the recording is no more precise
    recorded = max(len(costs.samples), 1)
    widen = math.sqrt(max(loop.steps / recorded, 1.0))
    error = ERRORS[error_kind(costs, setting)] if error is None else error
    # Resampling a single batch shows no variation
    error = min(math.hypot(error, 1 / recorded), MOST_ERROR)
    slow, fast = (
        float((periods[0] + between_s) / (loop.period_if_off(*drawn[0], by) + between_s)) - 1
        for by in (1 + error, 1 - error)
    )
    own_bytes = setting.num_workers * (costs.worker_bytes or 0)
    batches = loop.ahead + 1
    rates = float(costs.samples.mean()) / (periods + between_s)
    return LoopPrediction(
        samples_per_s=_estimate(rates, widen).wider(slow, fast),
        stall_share=_estimate(stalls, widen, most=1.0),
        first_batch_s=float(firsts.mean()),
        memory_bytes=None if costs.batch_bytes is None else own_bytes + batches * costs.batch_bytes,
        outside=_outside(costs, setting),
    )


def error_kind(costs: LoaderCosts, setting: Setting) -> str:
    """Return the key of `ERRORS` for a prediction."""
    if setting.num_workers == costs.workers:
        return "same"
    if not costs.workers:
        return "unseen"
    return "outside" if _outside(costs, setting) else "inside"


def enough_workers(costs: LoaderCosts, now: Setting) -> int | None:
    """Return the fewest workers, above the current number, that remove the stalls; or None."""

    def is_enough(workers: int) -> bool:
        prediction = predict(costs, replace(now, num_workers=workers).normal())
        return prediction.stall_share.value < HARDLY

    numbers = range(now.num_workers + 1, _MOST_TIMES * now.num_workers + 1)
    place = bisect_left(numbers, True, key=is_enough)  # noqa: FBT003 - more workers stall no longer
    return numbers[place] if place < len(numbers) else None


def timeline(costs: LoaderCosts, setting: Setting, steps: int) -> dict[str, Any]:
    """Replay the recorded batches in their order, and return some steps for a picture.

    That is `made`: worker, begin and end of each batch; `used`: begin and end of each step;
    seconds.
    """
    loop = LoopReplay(costs, setting)
    length = min(max(loop.steps, 3 * steps), _MOST_STEPS)
    batch_s = np.resize(costs.batch_s, length).tolist()
    batch_s += batch_s[: loop.ahead]
    replayed = loop.replay(batch_s, np.resize(costs.use_s, length).tolist())
    first = max(length - steps, 0) // 2
    begin_s, end_s = replayed.asked[first], replayed.used_to[min(first + steps, length) - 1]
    finished = zip(replayed.worker, replayed.taken, replayed.finished, strict=True)
    used = zip(replayed.used_from, replayed.used_to, strict=True)
    return {
        "made": [
            (worker, begin - begin_s, end - begin_s)
            for worker, begin, end in finished
            if end > begin_s and begin < end_s
        ],
        "used": [
            (begin - begin_s, end - begin_s)
            for begin, end in used
            if begin >= begin_s and end <= end_s
        ],
    }


class LoopReplay:
    """Loop with a setting.

    What it replays are the seconds of each batch in a worker with a core for itself, with the
    batches that are prefetched during the last steps, and the loop's seconds for each step.

    Attributes:
        ahead: batches that are prefetched.
        epoch: batches of an epoch that is replayed whole; None for long epochs.
        steps: steps of a replay.
    """

    def __init__(self, costs: LoaderCosts, setting: Setting) -> None:
        self._costs, self._setting = costs, setting
        self.ahead = setting.num_workers * (setting.prefetch_factor or 0)
        short = costs.epoch_batches and costs.epoch_batches <= _MOST_STEPS and setting.num_workers
        self.epoch = costs.epoch_batches if short else None
        steps = min(max(len(costs.samples), _FEWEST_STEPS, 3 * self.ahead), _MOST_STEPS)
        self.steps = self.epoch * max(steps // self.epoch, 1) if self.epoch else steps
        # The start takes longer with more workers
        started = setting.num_workers / max(costs.workers, 1)
        self._start_s = costs.start_s * started + costs.first_s
        self._end_s = 0.0 if setting.persistent_workers else costs.end_s * started
        use_s = float(costs.use_s.mean())
        busy_s = costs.receive_s + costs.draw_s + use_s
        loop = (costs.draw_s + costs.use_cores * use_s) / busy_s if busy_s else 0.0
        active = range(setting.num_workers + 1)
        # Slowdowns by the number of active workers: of a batch while the loop waits, and while it
        # receives, draws or uses a batch; of the step; of the sampler
        self._paces = (
            _stretches(setting.num_workers, costs),
            _stretches(setting.num_workers, costs, loop),
            [_loop_stretch(number, costs, costs.use_cores) for number in active],
            [_loop_stretch(number, costs, 1.0) for number in active],
        )

    def draws(self) -> list[tuple[list[float], list[float]]]:
        """Resample batches and steps, in blocks of one per worker, as neighbours are alike."""
        workers = self._setting.num_workers
        number = min(max(_EVENTS // self.steps, _FEWEST_DRAWS), _MOST_DRAWS)
        stretch = max(workers, 2)
        rng = np.random.default_rng(SEED)
        places = np.arange(stretch)

        def drawn(values: Floats, length: int) -> list[list[float]]:
            size = number, -(-length // stretch)
            if workers == self._costs.workers and len(values) >= 2 * stretch:
                # Each place keeps its worker, as one may be slower than the others
                starts = stretch * rng.integers(len(values) // stretch, size=size)
            else:
                starts = rng.integers(len(values), size=size)
            chosen = (starts[:, :, None] + places) % len(values)
            blocks: list[list[float]] = values[chosen.reshape(number, -1)[:, :length]].tolist()
            return blocks

        batches = drawn(self._costs.batch_s, self.steps + self.ahead)
        uses = drawn(self._costs.use_s, self.steps)
        return list(zip(batches, uses, strict=True))

    def steady(self, batch_s: list[float], use_s: list[float]) -> _Steady:
        """Replay a draw; short epochs without the time between them."""
        if self.epoch:
            return self._whole_epochs(batch_s, use_s, self.epoch)
        workers = max(self._setting.num_workers, 1)
        replayed = self.replay(batch_s, use_s)
        skip = min(self.ahead + workers, len(replayed.order) // 2)
        # Whole rounds, as workers that began together send together
        rounds = (len(replayed.order) - skip) // workers
        skip = len(replayed.order) - rounds * workers if rounds else skip
        length_s = replayed.used_to[-1] - replayed.used_to[skip - 1]
        waits, first_s = replayed.waits[skip:], replayed.used_from[0]
        if self._setting.num_workers:
            first_s += self._start_s + self.ahead * self._costs.draw_s
        return _Steady(length_s / len(waits), _stalled_s(waits, length_s) / length_s, first_s)

    def _whole_epochs(self, batch_s: list[float], use_s: list[float], epoch: int) -> _Steady:
        drawn_s = min(self.ahead, epoch) * self._costs.draw_s
        waits, length_s, firsts_s = [], 0.0, []
        for begin in range(0, self.steps, epoch):
            part = slice(begin, begin + epoch)
            replayed = self.replay(batch_s[part], use_s[part])
            waits.append(replayed.waits)
            waits[-1][0] += drawn_s
            length_s += drawn_s + replayed.used_to[-1]
            firsts_s.append(replayed.used_from[0])
        stalled_s = _stalled_s(np.concatenate(waits), length_s)
        first_s = self._start_s + self.ahead * self._costs.draw_s + float(np.mean(firsts_s))
        return _Steady(length_s / self.steps, stalled_s / length_s, first_s)

    def between_epochs_s(self, first_s: float, period_s: float) -> float:
        """Return the seconds between two epochs, for each step of an epoch."""
        costs, lives_on = self._costs, self._setting.persistent_workers
        if not costs.epoch_batches or not self._setting.num_workers:
            return 0.0
        if self.epoch:  # the replay contains the refill of queues
            begun_s = 0.0 if lives_on else self._start_s
        elif lives_on:  # workers are running, with empty queues
            begun_s = float(costs.batch_s.mean()) + costs.send_s - period_s
        else:
            begun_s = first_s - period_s
        return (max(begun_s, 0.0) + self._end_s) / costs.epoch_batches

    def period_if_off(self, batch_s: list[float], use_s: list[float], by: float) -> float:
        """Return the seconds of a step if batches take `by` times their recorded time.

        The loop's own part has a smaller error. Other processes may leave all cores, or use as many
        as before. Batches may wait for a resource that all workers share, so that the wait grows
        with the workers.
        """
        costs = self._costs
        here = 1 + _LOOP_ERROR * (by - 1)
        left = max(costs.cores - costs.others_cores, _LEAST_CORES) if by > 1 else costs.cores
        shared = max(self._setting.num_workers, 1) / max(costs.workers, 1)
        if (shared > 1) != (by > 1):
            shared = 1.0
        whole_s = max(costs.compute_s + costs.wait_s, 1e-12)
        making = by * (costs.compute_s + shared * costs.wait_s) / whole_s
        changed = replace(
            costs,
            waiting_s=shared * costs.waiting_s,
            receive_s=here * costs.receive_s,
            draw_s=here * costs.draw_s,
            cores=left,
            others_cores=0.0,
        )
        scaled = [making * s for s in batch_s], [here * s for s in use_s]
        return LoopReplay(changed, self._setting).steady(*scaled).period_s

    def _here(self, batch_s: list[float], use_s: list[float]) -> Replayed:
        costs = self._costs
        # The loop neither sends what it makes, nor is confined as workers are
        _, slow = _stretches(1, replace(costs, send_s=0.0, worker_cores=math.inf, threads=1.0))
        made_s = np.array(batch_s) * slow + costs.draw_s * _loop_stretch(0, costs, 1.0)
        used_s = np.array(use_s) * _loop_stretch(0, costs, costs.use_cores)
        both = np.column_stack([made_s, used_s])
        ends = np.cumsum(both.ravel()).reshape(-1, 2)
        begins = (ends[:, 0] - both[:, 0]).tolist()
        finished, used = ends.T.tolist()
        return Replayed(
            [0] * len(finished), begins, finished, [*range(len(finished))], begins, finished, used
        )

    def replay(self, batch_s: list[float], use_s: list[float]) -> Replayed:  # noqa: C901, PLR0915 - an event loop, where each call costs time
        """Replay all steps event by event; without workers, the loop makes each batch when needed.

        All active workers progress at the same pace, so each batch has its end on a common clock of
        this pace. The state is a queue of these ends.
        """
        if not self._setting.num_workers:
            return self._here(batch_s, use_s)
        costs, (idle, using, slows, draws) = self._costs, self._paces
        workers, steps, whole = self._setting.num_workers, len(use_s), len(batch_s)
        in_order, ahead = self._setting.in_order, self.ahead
        replayed = Replayed([0] * whole, [0.0] * whole, [0.0] * whole)
        waiting: list[deque[int]] = [deque() for _ in range(workers)]
        tasks = [0] * workers  # batches on their way, of each worker
        at_work = [False] * workers
        sends_until = [0.0] * workers
        sent: list[float | None] = [None] * whole
        ready: list[tuple[float, int]] = []  # by arrival, where batches come out of order
        ends: list[tuple[float, int, int]] = []  # times of the common clock
        now, clock, active, asked, turn = 0.0, 0.0, 0, 0, 0
        place, busy_until = 0, -1.0  # number and end of the step; below zero: the loop waits

        def ask() -> None:
            """Give the next batch to a worker, as torch does."""
            nonlocal asked, turn, active
            if asked >= whole:
                return
            for _ in range(workers):
                worker, turn = turn, (turn + 1) % workers
                if in_order or tasks[worker] < ahead // workers:
                    break
            replayed.worker[asked] = worker
            tasks[worker] += 1
            if at_work[worker]:
                waiting[worker].append(asked)
            else:
                at_work[worker] = True
                active += 1
                replayed.taken[asked] = now
                heappush(ends, (clock + batch_s[asked], worker, asked))
            asked += 1

        for _ in range(ahead):
            ask()
        replayed.asked.append(0.0)
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
            if ends_at <= loop_at:  # a worker finishes a batch
                now = ends_at
                clock, worker, batch = heappop(ends)
                replayed.finished[batch] = now
                arrives = max(now, sends_until[worker]) + costs.send_s
                sends_until[worker] = sent[batch] = arrives
                if not in_order:
                    heappush(ready, (arrives, batch))
                if waiting[worker]:
                    following = waiting[worker].popleft()
                    replayed.taken[following] = now
                    heappush(ends, (clock + batch_s[following], worker, following))
                else:
                    at_work[worker] = False
                    active -= 1
                continue
            clock += (loop_at - now) / pace
            now = loop_at
            if busy_until >= 0:  # the loop finishes a step
                busy_until = -1.0
                replayed.used_to.append(now)
                place += 1
                if place == steps:
                    return replayed
                replayed.asked.append(now)
                continue
            batch = place if in_order else heappop(ready)[1]
            tasks[replayed.worker[batch]] -= 1
            ask()
            replayed.order.append(batch)
            replayed.used_from.append(now + costs.receive_s + costs.draw_s * draws[active])
            busy_until = replayed.used_from[-1] + use_s[place] * slows[active]


def _stalled_s(waits: Floats, length_s: float) -> float:
    limit_s = max(STALL_S, STALL_SHARE * length_s / len(waits))
    return float(waits[waits > limit_s].sum())


def _stretches(most: int, costs: LoaderCosts, loop: float = 0.0) -> list[float]:
    """Return the slowdown of a batch with 0, 1, ... `most` active workers.

    By its mean seconds of computing, and of waiting for anything but a core. The loop's own work
    wants `loop` cores, and gets a fair share of them, as other processes do.
    """
    wait_s, beside = costs.wait_s, costs.others_cores + loop
    compute_s = costs.compute_s + costs.send_s  # sending computes during the next batch
    whole_s = compute_s + wait_s
    if compute_s <= 0 or not most:
        return [1.0] * (most + 1)
    active = np.arange(1, most + 1)
    wanted = np.minimum(active * costs.threads * compute_s / whole_s, costs.worker_cores)
    fair = costs.cores * wanted / (wanted + beside)
    left = np.minimum(np.maximum(costs.cores - beside, fair), costs.worker_cores) / costs.threads
    if wait_s <= 0.001 * whole_s:
        return [1.0, *np.maximum(active / left, 1.0).tolist()]
    # Probability of each number of computing workers, up to a factor: log of successive ratios
    at_work = np.minimum(active, left[:, None])
    others = np.maximum(active[:, None] - active + 1, 1e-300)
    logs = np.cumsum(np.log(others * compute_s / wait_s / at_work), axis=1)
    logs = np.column_stack([np.zeros(most), logs])
    chances = np.exp(logs - logs.max(axis=1, keepdims=True))
    busy = (chances[:, 1:] * at_work).sum(axis=1) / chances.sum(axis=1)
    return [1.0, *np.maximum(active * compute_s / busy / whole_s, 1.0).tolist()]


def _loop_stretch(active: int, costs: LoaderCosts, wants: float) -> float:
    """Return the slowdown of the loop's work, which wants so many cores, by active workers."""
    whole_s = costs.compute_s + costs.wait_s
    if wants <= 0 or whole_s <= 0:
        return 1.0
    makers = min(active * costs.threads * costs.compute_s / whole_s, costs.worker_cores)
    crowded = max((makers + wants + costs.others_cores) / costs.cores, 1.0)
    computing = min(wants, 1.0)  # share of time; the rest is waiting
    return 1 + computing * (crowded - 1)


def _estimate(values: Floats, widen: float, most: float = math.inf) -> Estimate:
    middle = float(values.mean())
    low, high = np.percentile(values, ENDS)
    wider = widen * t_quantile(len(values) - 1) / t_quantile(1_000)
    low, high = middle - (middle - low) * wider, middle + (high - middle) * wider
    return Estimate(middle, max(float(low), 0.0), min(float(high), most))


def _outside(costs: LoaderCosts, setting: Setting) -> str:
    """Return the reason why a prediction goes beyond the recording, or an empty string."""
    workers, recorded = setting.num_workers, max(costs.workers, 1)
    waits = costs.wait_s / max(costs.wait_s + costs.compute_s, 1e-12)
    reasons = (
        (workers and not costs.workers, "no worker was recorded"),
        (
            workers != costs.workers and costs.others_cores >= OTHERS * costs.cores,
            f"other processes used {costs.others_cores:.1f} of {costs.cores:g} cores",
        ),
        (
            workers > recorded and costs.threads >= _THREADED,
            "the workers' libraries use threads, and more threads were not recorded",
        ),
        (
            workers > costs.cores and recorded <= costs.cores and waits < 1 - MENTIONED,
            f"more workers than the {costs.cores:g} cores, which was not recorded",
        ),
        (
            workers > recorded and waits > MENTIONED,
            f"{workers} workers may wait longer than the {recorded} that were recorded",
        ),
        (setting.threads is not None, "other threads in the workers were not recorded"),
        (setting.pin_memory, "pinning was not recorded"),
    )
    return next((why for applies, why in reasons if applies), "")
