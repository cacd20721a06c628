"""Numbers for the rules, taken once from a run, a ladder and stacks.

How long batches take is known to `model.batch_times`, what the stalls consist of to
`model.exposure`, when they come to `model.patterns`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from stallscope import stages
from stallscope.errors import StallscopeError
from stallscope.model import thresholds
from stallscope.model.attribution import covered_ns
from stallscope.model.batch_times import BatchTimes, MachineUse, Pace, making, use
from stallscope.model.costs import costs_of
from stallscope.model.exposure import WORK, Exposure, work_of_batch
from stallscope.model.loop_time import MODEL, LoopBreakdown, Starts, loop_breakdown, starts
from stallscope.model.reasons import slow_sample_limit
from stallscope.model.settings import Setting
from stallscope.model.simulator import enough_workers
from stallscope.model.thresholds import HARDLY, MOSTLY, OTHERS
from stallscope.run.resources import LONG_LOOK_S, MemoryGrowth, find_saturated, memory_growth
from stallscope.stats import stall_interval
from stallscope.units import seconds
from stallscope.verbs.diagnose.own_code import OwnCode, lock_share, own_code
from stallscope.verbs.ladder.result import AS_IT_IS, WHOLE

if TYPE_CHECKING:
    from stallscope.loops.cached_values import BatchBytes
    from stallscope.model.exposure import StagePart
    from stallscope.run.result import Run
    from stallscope.verbs.diagnose.setup import Setup
    from stallscope.verbs.flame.result import Flame
    from stallscope.verbs.ladder.result import Ladder


_USUAL_THREADS: Final = 3
"""Threads of every worker of torch: one makes batches, one sends, one hands out memory."""
_NOTED_THREADS: Final = 0.1
"""Cores that a worker's other threads keep busy, below which they explain no waiting."""
_OF_BATCHES: Final = frozenset({stages.COLLATE.name, stages.SEND.name})
_BATCH: Final = ("rank", "epoch", "batch")
_SAMPLE: Final = ("rank", "pid", "epoch", "batch", "sample")
MAKES_SMALLER: Final = re.compile(r"resiz|crop|max_?size|thumbnail|rescale", re.IGNORECASE)
"""Names of transforms after which there is less to work on."""
_OF_IMAGES: Final = re.compile(
    r"resiz|thumbnail|centercrop|colou?r|rgb|hue|brightness|gray|flip|affine|"
    r"perspective|pil(low)?\b|image|blur|clahe",
    re.IGNORECASE,
)
"""Names of transforms that only images have."""


@dataclass(frozen=True)
class Spikes:
    """Samples that take far longer than the usual one (the limit is that of the patterns)."""

    count: int = 0
    one_in: float = float("inf")
    """Samples per slow sample."""
    share: float = 0.0
    """Share (0 to 1) of all samples' time that they take beyond the usual one."""
    typical_s: float = 0.0
    """Median of them, seconds."""
    usual_s: float = 0.0
    """Median of all samples, seconds."""


@dataclass(frozen=True)
class Gain:
    """Speedup of the loop with everything cached, as a ladder measured it."""

    factor: float
    low: float | None
    """Lower end of the interval; None where there is none."""
    high: float | None

    @property
    def is_none(self) -> bool:
        """True: the loop is not significantly faster."""
        return self.low is not None and self.low <= 1

    @property
    def is_little(self) -> bool:
        """True: the loop is hardly faster, and its interval leaves no room for more."""
        most = 1 / (1 - 2 * HARDLY)  # what stalls give that may be those of a healthy loop
        return self.factor < 1 + HARDLY and (self.high is None or self.high < most)

    def is_above(self, share: float) -> bool:
        """Return whether the loop is faster by more than this share, for sure."""
        return self.low is not None and self.low >= 1 + share


@dataclass(frozen=True, eq=False)
class Facts:
    """Numbers that the rules judge; shares are from 0 to 1."""

    setup: Setup
    time: LoopBreakdown | None = None
    """Parts of the loop's time; None where no wait was recorded."""
    stall_low: float = 0.0
    """Lower end of the interval of the share of the loop's time that is stalls."""
    stall_high: float = 1.0
    """Upper end of the same interval."""
    exposure: Exposure = field(default_factory=Exposure)
    """Parts of the stalls; none of them waits where `threads_compute`."""
    making: BatchTimes | None = None
    """None where no batch was seen on its way."""
    use: MachineUse = field(default_factory=MachineUse)
    enough_workers: int | None = None
    """Workers with which the loop hardly stalls, replayed from the run; None where these keep up,
    where they have all cores, or where no number of them does."""
    keeps_batches: bool = False
    """True: the training process releases none of its batches."""
    starts: Starts = field(default_factory=Starts)
    saturated: tuple[dict[str, Any], ...] = ()
    """Rows of `run.resources.USES`: what was saturated while the loop stalled."""
    others_share: float = 0.0
    """Share of the cores that other processes had; 0 where that is not known."""
    patterns: dict[str, float] = field(default_factory=dict)
    """Share of all stalled time that each pattern of waits explains."""
    titles: dict[str, str] = field(default_factory=dict)
    own_parts: dict[str, float] = field(default_factory=dict)
    """Share of the loop's time in each of its parts that are neither waiting nor model."""
    model_share: float = 0.0
    """The same of `forward`, `backward` and the optimizer."""
    validation_share: float = 0.0
    """The same of loops over another loader that come now and then."""
    device_busy_share: float | None = None
    """Share of the loop's time in which a device behind the host had work; None where the host is
    the device, or it is not known."""
    device_copy_share: float | None = None
    """The same of copies."""
    stage_s: dict[str, float] = field(default_factory=dict)
    """Median time of each stage, a sample or a batch; seconds."""
    calls: dict[str, float] = field(default_factory=dict)
    """Mean calls of each stage that reads or decodes, per sample with any."""
    first_transform: str | None = None
    """The transform that most samples begin with; None without one."""
    whole_batches: frozenset[str] = _OF_BATCHES
    """Stages that work on a whole batch at once: their times are a batch's."""
    threads_compute: bool = False
    """True: who makes batches waits for own threads, as of a video codec, or processes."""
    has_helpers: bool = False
    """True: processes that the dataset started itself compute for most of its waiting."""
    stalled_by_worker: dict[int, float] = field(default_factory=dict)
    """Share of the stalls that waited for a batch of each worker."""
    spikes: Spikes = field(default_factory=Spikes)
    fetch_s: float | None = None
    """Median time of fetching a sample, seconds."""
    fetched_bytes_per_s: float | None = None
    """Bytes of the files that were read over the time of the loop; None where sizes are unknown."""
    extra_threads_share: float | None = None
    """Share of a worker's CPU time that threads beside its main one took."""
    waiting_s: float = 0.0
    """Mean wait of a worker per batch, without waiting for a core, seconds."""
    computed_s: float = 0.0
    """Mean CPU time of a worker per batch, seconds."""
    alone_s: float | None = None
    """Median time for a batch of one worker alone, seconds; None where that was not tried."""
    alone_waiting_s: float | None = None
    """`waiting_s` of one worker alone."""
    alone_computed_s: float | None = None
    """`computed_s` of one worker alone."""
    lock_frames: float | None = None
    """Share of the workers' samples that wait at a lock; None where none were taken."""
    memory_growth: MemoryGrowth | None = None
    """None where the workers' memory does not grow, or is not known."""
    megapixels: float | None = None
    """Median size of the images that were opened; None where none was seen."""
    gain: Gain | None = None
    """Speedup that a ladder measured; None without a ladder."""
    batch: BatchBytes | None = None
    """Size of a batch; None where no batch was measured."""
    flame: Flame | None = None
    loop_code: OwnCode | None = None
    """Function in which the training process computes beside its model; None where not sampled or
    not certain."""

    @property
    def stall_share(self) -> float:
        """Share of its time in which the loop stalls."""
        return self.time.stall_share if self.time else 0.0

    @property
    def epoch_s(self) -> float | None:
        """Length of an epoch at this pace, seconds; None where it has no length."""
        batches, time = self.setup.epoch_batches, self.time
        return batches * time.total_s / time.steps if batches and time and time.steps else None

    @property
    def growth_lasts(self) -> bool:
        """True: memory grows for long or beyond an epoch, or is full very soon.

        A buffer fills in seconds or in an epoch, and stays. A heap settles as late
        (`images-in-memory` of the real questions: 40 MB/s for ten seconds, then nothing), and
        where it takes up what the main process has freed, its pages are copied without an object.
        """
        growth, epoch_s = self.memory_growth, self.epoch_s
        if growth is None or (growth.copied and not self.setup.holds_objects):
            return False
        if growth.copied or not growth.may_settle:
            return True
        return growth.looked_s >= min(epoch_s or LONG_LOOK_S, LONG_LOOK_S)

    @property
    def begin_share(self) -> float:
        """Share of the steady state's time in which epochs begin, where that is a finding.

        Workers that live on begin the later ones there.
        """
        return self.stall_share * self.exposure.of("start") if self.starts.slow_share else 0.0

    @property
    def epoch_factor(self) -> float:
        """Factor from a share of the steady state to a share of an epoch: 1 without begins."""
        return (1 - self.starts.slow_share) / (1 - self.begin_share or 1.0)

    @property
    def steps(self) -> int:
        """Steps of the steady state."""
        return self.time.steps if self.time else 0

    @property
    def pace(self) -> Pace:
        """Speed of making batches against that of using them."""
        return Pace(self.making, self.use, self.setup.num_workers, self.setup.cores)

    @property
    def computes_too_much(self) -> bool:
        """True: the workers' CPU time per batch is too long for the step, whoever else computes.

        CPU time is what it is however long a worker waits for its core; a core that is shared by
        two threads makes it longer, too, but not by so much.
        """
        step_s = self.pace.free_use_s * max(self.setup.num_workers, 1)
        return self.computed_s > thresholds.SLOWED * step_s > 0

    @property
    def is_shared(self) -> bool | None:
        """True: several workers slow each other down; None where not tried."""
        if self.alone_waiting_s is None or self.making is None:
            return None
        more_s = self.waiting_s - self.alone_waiting_s
        is_noted = more_s >= thresholds.MENTIONED * self.making.usual_s
        return is_noted and self.waiting_s >= thresholds.SHARED * self.alone_waiting_s

    @property
    def needless_share(self) -> float:
        """Share of its time that the loop would save if it made the batches itself.

        It would make each for as long as a worker does, and not wait for its sending and receiving.
        Below 0 where workers pay; 0 where a ladder has found nothing to be gained.
        """
        handover = self.making.handover if self.making else None
        costs_nothing = self.gain is not None and self.gain.factor < 1 + thresholds.PASSING
        if handover is None or not handover.period_s or costs_nothing:
            return 0.0
        return (handover.received_s - self.pace.own_batch_s) / handover.period_s

    @property
    def has_needless_workers(self) -> bool:
        """True: the loop would be noticeably faster if it made the batches itself."""
        return self.needless_share >= thresholds.PASSING

    @property
    def holds_scaled_bytes(self) -> bool:
        """True: most of a batch is floats that uint8 would hold."""
        return self.batch is not None and self.batch.floats >= MOSTLY * self.batch.all > 0

    @property
    def release_share(self) -> float:
        """Share of its time in which the loop lets go of batches that workers sent it.

        It does so in its own code, whenever the last name of a batch is gone.
        """
        if self.batch is None or not self.setup.num_workers or self.making is None:
            return 0.0
        return min(self.batch.release_s / self.making.period_s, self.own_parts.get("other", 0.0))

    @property
    def loop_code_share(self) -> float:
        """Share of the loop's time in `loop_code`; 0 where nothing is known of it."""
        if self.loop_code is None:
            return 0.0
        wanted = (self.use.loop_cpu or 0.0) + (self.use.loop_queued_share or 0.0)
        return self.loop_code.share * min(wanted, 1.0)

    @property
    def loop_line(self) -> str:
        """The function in which the training process computes beside its model; '' for none."""
        is_much = self.loop_code_share >= thresholds.OWN_PART
        return self.loop_code.place if self.loop_code and is_much else ""

    @property
    def lost_share(self) -> float:
        """Share of the loop's time that the loader costs: stalls, or what a ladder gained."""
        gained = 1 - 1 / self.gain.factor if self.gain and not self.gain.is_none else 0.0
        return max(self.stall_share, gained)

    @property
    def is_slowed(self) -> bool:
        """True: the workers significantly slow the step, though it hardly waits for them."""
        return self.stall_share < HARDLY and self.gain is not None and self.gain.is_above(HARDLY)

    @property
    def threads_per_core(self) -> float:
        """Threads of all workers beside torch's own, for each core."""
        workers, threads = self.setup.num_workers, self.use.threads or 0.0
        return workers * max(threads - _USUAL_THREADS, 0) / self.setup.cores

    @property
    def has_small_samples(self) -> bool:
        """True: handling samples one by one takes longer than making them."""
        return 0 < self.spikes.usual_s < thresholds.SMALL_SAMPLE_S

    @property
    def has_images(self) -> bool:
        """True: samples are images: some were opened, or a transform is one of images."""
        names = (part.stage for part in self.exposure.parts)
        return self.megapixels is not None or any(map(_OF_IMAGES.search, names))

    @property
    def largest(self) -> StagePart | None:
        """The longest stage of the work on samples and batches.

        Collecting garbage is none: it follows from the objects that another stage makes.
        """
        work = (part for part in self.exposure.parts if part.group in WORK)
        return next((part for part in work if part.stage != stages.GARBAGE.name), None)

    @property
    def slow_stage(self) -> str:
        """The stage in which slow samples are most of all work; '' where they are less."""
        largest = self.largest if self.spikes.share >= thresholds.MOSTLY else None
        return largest.stage if largest else ""

    def each(self, stage: str) -> str:
        """Say what a stage takes: ", 2.8 ms per sample" (or batch); '' where it is not known."""
        unit = "batch" if stage in self.whole_batches else "sample"
        return f", {seconds(self.stage_s[stage])} per {unit}" if stage in self.stage_s else ""

    def own_code(self, stage: str) -> OwnCode | None:
        """Find the user's function that a stage's time goes into; None where it is not known."""
        return own_code(self.flame, stage) if self.flame and stage in self.stage_s else None

    @property
    def runs_often(self) -> tuple[str, float] | None:
        """The longest stage that runs many times for each sample, and how often; None: none."""
        often = (pair for pair in self.calls.items() if pair[1] >= thresholds.MANY_CALLS)
        return max(often, key=lambda pair: self.stage_s.get(pair[0], 0.0), default=None)


def facts(run: Run, setup: Setup) -> Facts:
    """Take everything that the rules ask for from a run, as far as the run knows it."""
    steps, stalls = run.steps(), run.stalls()
    time = loop_breakdown(steps, stalls, run.side_spans)
    low, high = stall_interval(steps, stalls, max(setup.num_workers, 1))
    used = use(run, setup.num_workers)
    batches = making(run, run.settings.num_workers or setup.num_workers)
    waits = run.patterns().filter(pl.col("chance").is_not_null())
    part_s = pl.col("stall_s").sum() / stalls["stall_s"].sum()
    by_worker = stalls.drop_nulls("worker").group_by("worker").agg(part_s)
    named = waits.unique("pattern", keep="first", maintain_order=True)
    own = _parts_of_step(run, time)
    # In somebody's own script backward passes are seen, forward ones lie in the rest of the step
    is_seen = stages.BACKWARD.name not in own or stages.FORWARD.name in own
    model = MODEL if is_seen else (*MODEL, stages.STEP.name)
    # Where workers end belongs to their starting anew
    not_own = {*model, stages.END_OF_EPOCH.name}
    beside = run.side_spans.filter(pl.col("stage").cast(pl.String) == stages.ANOTHER_LOADER.name)
    visited = steps.join(beside, on=_BATCH, how="semi").height
    # Loops over another loader that come after few of the steps serve no step
    few = 0 < visited < MOSTLY * steps.height
    validation = own.get(stages.ANOTHER_LOADER.name, 0.0) if few else 0.0
    if validation:  # what that waits for is to be asked of its own loader
        not_own.add(stages.ANOTHER_LOADER.name)
    pixels: Any = run.samples().select(pl.col("width").cast(pl.Int64) * pl.col("height"))
    pixels = pixels.to_series().median()
    resources = find_saturated(run)
    others = resources.others_share or 0.0
    (own_s, waited_s), extra = work_of_batch(run, used), _extra_threads(run, used, batches)
    # What waited for a core cannot be seen to wait
    wanted_s = waited_s * (1 - others)
    helped_s = used.helper_cores * batches.period_s if batches else 0.0
    has_helpers = 0 < MOSTLY * wanted_s <= helped_s
    threads_compute = has_helpers or _is_for_threads(wanted_s, extra, used, batches)
    fetch_s, bytes_per_s = _fetch_speed(run)
    collected = Facts(
        setup=setup,
        time=time,
        stall_low=low,
        stall_high=high,
        threads_compute=threads_compute,
        has_helpers=has_helpers,
        making=batches,
        use=used,
        starts=starts(
            run,
            setup.num_workers,
            persistent=setup.persistent,
            epoch_batches=setup.epoch_batches,
        ),
        saturated=tuple(resources.saturated),
        others_share=others,
        patterns=dict(waits.group_by("pattern").agg(pl.col("share").sum()).iter_rows()),
        titles=dict(named.select("pattern", "title").iter_rows()),
        own_parts={name: part for name, part in own.items() if name not in not_own},
        validation_share=validation,
        device_busy_share=_device_share(run, time),
        device_copy_share=_device_share(run, time, stages.H2D.kind),
        model_share=sum(own.get(name, 0.0) for name in model),
        stage_s=dict(run.stages().reverse().select("stage", "p50_s").iter_rows()),
        stalled_by_worker=dict(by_worker.iter_rows()),
        spikes=spikes(run),
        fetch_s=fetch_s,
        fetched_bytes_per_s=bytes_per_s,
        memory_growth=memory_growth(run, setup.num_workers),
        megapixels=pixels and pixels / 1e6,
        extra_threads_share=extra,
        waiting_s=waited_s,
        computed_s=own_s,
        exposure=run.exposure.computing() if threads_compute else run.exposure,
        **_of_spans(run),
    )
    return replace(collected, enough_workers=_enough_workers(run, collected))


def with_stacks(facts: Facts, flame: Flame) -> Facts:
    """Add what stacks of the workers say.

    Where others have the cores, what seems to wait may only want one: it does where its line is
    none to wait in.
    """
    if not flame.circumstances.idle:
        return replace(facts, flame=flame)
    own = own_code(flame, stages.GETITEM.name)
    is_wanting = facts.others_share >= OTHERS and own is not None and not own.call.waits
    parts = facts.exposure.computing("getitem") if is_wanting else facts.exposure
    return replace(facts, flame=flame, lock_frames=lock_share(flame), exposure=parts)


def gain_of(ladder: Ladder) -> Gain | None:
    """Return what a ladder says that the loader costs; None where it does not go all the way."""
    if AS_IT_IS.name not in ladder.rates or next(reversed(ladder.rates)) not in WHOLE:
        return None
    row = ladder.headroom().row(0, named=True)
    return Gain(row["factor"], row["factor_low"], row["factor_high"])


def spikes(run: Run) -> Spikes:
    """Find the samples of the steady state that stand out, of all and of their own batch.

    Where all samples of a batch are slow together, it is the batch that is.
    """
    samples = run.samples().drop_nulls("total_s")
    took_s = samples["total_s"].to_numpy()
    if took_s.size < thresholds.FEWEST_SAMPLES:
        return Spikes()
    median_s, limit_s = slow_sample_limit(took_s)
    together = pl.col("total_s").median().over(_BATCH)
    is_outside = pl.col("total_s") > thresholds.STANDS_OUT * together
    is_outside |= pl.len().over(_BATCH) < thresholds.SEVERAL
    slow = samples.filter(pl.col("total_s") > limit_s, is_outside)["total_s"].to_numpy()
    if not slow.size:
        return Spikes(usual_s=median_s)
    part = float((slow - median_s).sum() / took_s.sum())
    typical_s = float(np.median(slow))
    return Spikes(int(slow.size), took_s.size / slow.size, part, typical_s, median_s)


def _fetch_speed(run: Run) -> tuple[float | None, float | None]:
    """Return `fetch_s` and `fetched_bytes_per_s`."""
    samples = run.samples()
    fetched = samples.filter(pl.col("fetch_s") > 0)
    if fetched.is_empty():
        return None, None
    sized = fetched.drop_nulls("bytes")
    steps, recorded = run.steps(), samples.select(_BATCH).n_unique()
    length_s = steps.select((pl.col("end_ns").max() - pl.col("start_ns").min()) / 1e9).item()
    rate = None
    if sized.height >= thresholds.FEWEST_SAMPLES and length_s:
        of_each = max(steps.height / max(recorded, 1), 1.0)  # not every batch is recorded
        rate = float(sized["bytes"].sum()) * of_each / length_s
    return float(np.median(fetched["fetch_s"].to_numpy())), rate


def _enough_workers(run: Run, facts: Facts) -> int | None:
    """Find how many more workers would do, if any; whatever others have of the cores now."""
    setup = facts.setup
    if not 0 < setup.num_workers < int(setup.cores) or facts.pace.free_load <= thresholds.KEEPS_UP:
        return None
    now = Setting(setup.num_workers, setup.prefetch_factor, setup.persistent).normal()
    try:
        costs = costs_of(run, now, epoch_batches=None, batch_bytes=None, cores=setup.cores)
    except StallscopeError:
        return None
    return enough_workers(replace(costs, cores=setup.cores), now)


def _parts_of_step(run: Run, time: LoopBreakdown | None) -> dict[str, float]:
    """Return shares of the loop's time in its parts, the model's too.

    Beside a device that works behind the host, those count in which it has nothing to do. Inside
    of a step it is not known when that is: there nothing is claimed.
    """
    if time is None:
        return {}
    in_loop = pl.col("kind").is_in(["step", "other"])
    rows = run.stages().filter(pl.col("busy_share").is_null() & in_loop).select("stage", "busy_s")
    shares = {stage: time.share(busy_s) for stage, busy_s in rows.iter_rows()}
    if run.device is None:
        return shares
    parts = run.side_spans.filter(pl.col("worker").is_null(), in_loop)
    parts = parts.join(run.steps().select(_BATCH).unique(), on=_BATCH, how="semi")
    busy_ns = pl.Series(covered_ns(parts, run.device_work))
    idle_s = (pl.col("end_ns") - pl.col("start_ns") - busy_ns) / 1e9
    idle = parts.select(pl.col("stage").cast(pl.String), idle_s=idle_s)
    sums = dict(idle.group_by("stage").agg(pl.col("idle_s").sum()).iter_rows())
    return {
        name: part if name in MODEL else time.share(sums.get(name, 0.0))
        for name, part in shares.items()
    }


def _device_share(run: Run, time: LoopBreakdown | None, kind: str | None = None) -> float | None:
    """Return the share of the loop's time in which its device had work, or work of a kind."""
    ends_ns, work = run.steps()["end_ns"].drop_nulls().to_numpy(), run.device_work
    if time is None or not ends_ns.size or work.is_empty() or work["kind"].null_count():
        return None
    these = work if kind is None else work.filter(pl.col("kind") == kind)
    first_ns, last_ns = int(ends_ns.min()), int(ends_ns.max())
    inside_ns = these["end_ns"].clip(first_ns, last_ns) - these["start_ns"].clip(first_ns, last_ns)
    return float(inside_ns.sum()) / max(last_ns - first_ns, 1)


def _of_spans(run: Run) -> dict[str, Any]:
    """Read what only the workers' spans say: `calls`, `first_transform`, `whole_batches`.

    A decoder that reads on is one call; a stage works on whole batches where it lies outside of all
    samples for most of its time.
    """
    kind = pl.col("kind").cast(pl.String)
    spans = run.work.with_columns(pl.col("stage").cast(pl.String), reads=kind.is_in(_READ_KINDS))
    length = pl.col("end_ns") - pl.col("start_ns")
    outside = length.filter(pl.col("sample").is_null()).sum() / length.sum()
    whole = spans.group_by("stage").agg(outside=outside).filter(pl.col("outside") > MOSTLY)
    inside = spans.drop_nulls("sample").sort(*_SAMPLE, "start_ns")
    before, after = pl.col("stage").shift(1).over(_SAMPLE), pl.col("stage").shift(-1).over(_SAMPLE)
    is_back = pl.col("stage").shift(2).over(_SAMPLE) == pl.col("stage")
    goes_on = pl.col("reads").shift(1).over(_SAMPLE) & (is_back | (before == after))
    begins = inside.filter("reads", ~goes_on.fill_null(value=False))
    calls = begins.group_by(*_SAMPLE, "stage").len().group_by("stage").agg(pl.col("len").mean())
    changed = inside.filter(kind == "transform").sort("start_ns").group_by(_SAMPLE)
    first = changed.agg(pl.col("stage").first())["stage"].value_counts(sort=True)
    return {
        "calls": dict(calls.iter_rows()),
        "first_transform": first["stage"].first() if first.height else None,
        "whole_batches": _OF_BATCHES | frozenset(whole["stage"]),
    }


_READ_KINDS: Final = ("fetch", "decode")


def _extra_threads(run: Run, used: MachineUse, batches: BatchTimes | None) -> float | None:
    """Return the share of a worker's CPU time that its main thread and sending do not explain."""
    rows = run.stages().filter(
        pl.col("kind").is_in(stages.WORK_KINDS), pl.col("cpu_share").is_not_null()
    )
    busy_s = float(rows["busy_s"].sum())
    if not busy_s or batches is None or not used.worker_cpu:
        return None
    computed = float((rows["busy_s"] * rows["cpu_share"]).sum()) / busy_s * batches.busy_share
    sends_s = float(run.stages().filter(pl.col("kind") == "send")["p50_s"].sum())
    sends = sends_s / (batches.period_s * batches.workers) if batches.period_s else 0.0
    return max(1 - (computed + sends) / used.worker_cpu, 0.0)


def _is_for_threads(
    wanted_s: float, extra: float | None, used: MachineUse, batches: BatchTimes | None
) -> bool:
    """Return whether threads beside a worker's main one compute for most of what that one waits.

    A codec decodes in threads of its own while Python waits for it, as it does for storage.
    """
    if not extra or batches is None or not used.worker_cpu or not batches.period_s:
        return False
    if used.threads is not None and used.threads <= _USUAL_THREADS:
        return False  # what they compute is torch's handing over
    wanted = wanted_s / (batches.workers * batches.period_s)
    return extra * used.worker_cpu >= max(MOSTLY * wanted, _NOTED_THREADS)
