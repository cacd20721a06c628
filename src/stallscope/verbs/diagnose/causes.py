"""Table of causes: the title of each, what to do about it, and the numbers that show it.

A new cause is a row here, its condition in `rules` or `work`, and its place in `verdict`. Rows with
the same code are variants of one cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stallscope.model import thresholds
from stallscope.model.exposure import READING
from stallscope.model.thresholds import HARDLY, KEEPS_UP, NOTED, OWN_PART

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.model.exposure import Group


WAITING: Final[tuple[Group, ...]] = (*READING, "transform", "collate", "decode")
"""Groups of work that may wait for something that is no core."""


class Limit(NamedTuple):
    """Limit from which on a rule holds."""

    number: str
    """A key of `rules.numbers`."""
    at: float
    """Value from which on the rule holds."""
    sure: float
    """Value at which the rule is certain; below the limit where small numbers count."""
    is_needed: bool = True
    """True: the rule needs this limit; False: the limit only lowers the confidence."""

    @classmethod
    def trust(cls, number: str) -> Limit:
        """Return a limit on how sure (0 to 1) a rule can be."""
        return cls(number, 0.5, 1.0, is_needed=False)

    def is_met(self, value: float | None) -> bool:
        """Return whether the rule holds; never where the number is not known."""
        if value is None or not self.is_needed:
            return value is not None
        return value >= self.at if self.sure > self.at else value < self.at

    def clear(self, value: float) -> float:
        """Return how clearly the rule holds: 0.5 at the limit, 1 where it is certain."""
        return min(max(0.5 + 0.5 * (value - self.at) / (self.sure - self.at), 0.0), 1.0)


class Cause(NamedTuple):
    """Fault of a loader, or of the loop around it."""

    code: str
    """Name for programs, in kebab-case."""
    title: str
    """A sentence with names of numbers and words in braces."""
    advice: str
    """Next steps, separated by "; ": a setting, a line of code, a notebook; with the same names."""
    shows: str = ""
    """Sign of the cause, for the handbook."""
    helped: str = ""
    """Change that a maintainer confirmed, or that helped a user; general advice if unsourced."""
    asked: str = ""
    """Sources: `owner #number` is an issue on GitHub."""
    limits: tuple[Limit, ...] = ()
    """Limits to meet; the least clear of them sets the confidence."""
    evidence: tuple[str, ...] = ()
    """Numbers to show, beside the share of stalls and the speedup of a ladder."""
    costs: str = "stalls_share"
    """Number that is the cost: a share (0 to 1) of the loop's time."""
    waits: bool = True
    """True: the cause needs a loop that waits for batches."""
    kind: str = ""
    """Kind of stage that gives the colour; empty: the colour of stalls."""
    groups: tuple[Group, ...] = ()
    """Groups of work that the cause is about; none for causes of another kind."""
    tested: bool = True
    """True: the rule was tried on loaders with this cause."""


HEALTHY: Final = Cause(
    "healthy",
    "The loop {hardly} for data: it stalls {stall_share} of the time{code}",
    "look at the model and the device{helps}; b_when_data_is_not_it shows how to speed up a step",
    "stalls below 10% of the loop's time",
    "nothing at the loader: training stayed as fast when loading got ten times as fast",
    "DALI #892",
    limits=(Limit.trust("healthy_trust"),),
    evidence=("stall_share_low", "stall_share_high", "device_busy_share"),
    costs="nothing",
    kind="step",
)
STORAGE_LATENCY: Final = Cause(
    "storage-latency",
    "Storage is slow to answer: workers wait for reads {waits} of the stall time{each}{alone}",
    "{first}read larger pieces (tar shards), from nearer storage or from a cache; start more "
    "workers, so that more reads overlap; a_storage",
    "reading waits and hardly computes; one worker alone waits as long for a sample",
    "tar shards read in order (2.0 times at 4 workers), a local copy, more workers at once",
    "rf-detr #1396, colabtools #1691, ultralytics #8316",
    limits=(Limit("reading_waits_share", NOTED, 0.6), Limit.trust("storage_trust")),
    evidence=(
        *("waiting_share", "fetch_exposed_share", "batch_s", "batch_alone_s"),
        *("read_bytes_per_s", "disk_busy_share"),
    ),
    costs="reading_share",
    kind="fetch",
)
STORAGE_BANDWIDTH: Final = STORAGE_LATENCY._replace(
    code="storage-bandwidth",
    title="Storage bandwidth is exhausted: workers wait for reads {waits} of the stall time{each}"
    "{alone}",
    advice="{first}read fewer bytes: smaller or better compressed files, a local copy or a cache; "
    "more workers do not help; a_storage",
    shows="reading waits longer the more workers there are, and bytes per second stay",
    helped="fewer bytes: smaller files, better compression, a local copy",
    asked="",
)
OWN_CODE_WAITS: Final = STORAGE_LATENCY._replace(
    title="The dataset's own code waits without using the CPU: {waits} of the stall time{each}, in "
    "{place}: {does}",
    advice="{first}{remedy}; 4_worker_flamegraphs shows its lines",
    limits=(Limit("reading_waits_share", NOTED, 0.6),),
    evidence=(*STORAGE_LATENCY.evidence[:4], "disk_busy_share"),
)
"""Variant where stacks show the line that waits."""
WAITS_UNSEEN: Final = OWN_CODE_WAITS._replace(
    title="__getitem__ waits without using the CPU: {waits} of the stall time{each} (a file opened "
    "earlier, the network, a lock or a sleep)",
    advice="{first}4_worker_flamegraphs shows which line waits",
    limits=(*OWN_CODE_WAITS.limits, Limit.trust("unseen_trust")),
)
"""Variant where no read was recorded, so that storage is only inferred."""
LOCK: Final = Cause(
    "lock",
    "The workers wait for each other: {waiting_share} of the stall time is waiting in {place}{how}",
    "{first}open a file or connection of its own in each worker; hold the lock for less time; "
    "4_worker_flamegraphs (idle=True) shows the lines",
    "workers wait for a lock, of a file or of several processes",
    "a lock for each file instead of one for the folder",
    "returnn #1548",
    limits=(
        Limit("waiting_share", thresholds.WAITS_FOR_EACH_OTHER, 0.45),
        Limit.trust("lock_trust"),
    ),
    evidence=(*STORAGE_LATENCY.evidence[:4], "lock_frames_share", "file_lock_share"),
    costs="samples_share",
)
LOCK_OF_DATABASE: Final = LOCK._replace(
    advice="{first}{remedy}; 4_worker_flamegraphs (idle=True) shows the lines",
    limits=(*LOCK.limits, Limit.trust("unseen_trust")),
    evidence=STORAGE_LATENCY.evidence[:4],
)
"""Variant for a database that the workers slow down for each other."""
_LADDER: Final = Limit.trust("ladder_trust")
_GROUP: Final = (NOTED, thresholds.MOSTLY + 0.15)
"""Limits of a group of work: a finding from `NOTED` on, certain where it clearly dominates."""
DECODE: Final = Cause(
    "decode",
    "Decoding is the bottleneck: {decode_exposed_share} of the stall time{each}{where}",
    "{first}store smaller images, or only the crops that are used; decode at a smaller size (PIL's "
    "draft), or with a faster decoder; 2_fetch_vs_transform",
    "decoding holds most of the work; or decoding and resizing of large images together",
    "images stored at the size that is used, decoding at a smaller size, a faster decoder",
    limits=(Limit("decode_exposed_share", *_GROUP), _LADDER),
    evidence=("decode_exposed_share",),
    costs="decode_share",
    kind="decode",
    groups=("decode",),
)
DECODE_OTHER: Final = DECODE._replace(advice="{first}{remedy}; 2_fetch_vs_transform")
"""Variant without images of PIL: a video, a sound, a volume."""
LARGE_IMAGES: Final = DECODE._replace(
    title="Images are stored larger than they are used: decoding takes {decode_exposed_share} of "
    "the stall time{each}, and {resize}",
    advice="{first}resize them once and store the result; for JPEG, decode at a smaller size "
    "(PIL's draft); 2_fetch_vs_transform",
)
"""Variant with a resize right after decoding."""
ONE_TRANSFORM: Final = Cause(
    "one-transform",
    "{stage} is the bottleneck: {transform_exposed_share} of the stall time{each}{does}",
    "{first}compute once, beforehand, what is always the same; apply {stage} to less data{less}, "
    "to fewer samples, or to whole batches on the device; 4_worker_flamegraphs shows its lines; "
    "5_transform_orders shows whether it can come later",
    "one op, or a function of the dataset's own code, holds most of the work",
    "NumPy arrays instead of DataFrame.iloc (7x faster); a file loaded once, not per sample; "
    "filters, filtered pairs, resampled slices kept instead of recomputed",
    "braindecode #89, torchgeo #1754, #1253, wav2aug #5, schnetpack #458, ivadomed #276",
    limits=(
        Limit("transform_exposed_share", *_GROUP),
        Limit("one_of_transforms_share", thresholds.ONE_OF_MANY, 0.75),
        _LADDER,
    ),
    evidence=("transform_exposed_share", "all_transforms_exposed_share"),
    costs="transform_share",
    kind="transform",
    groups=("transform", *READING),
)
OWN_TRANSFORM: Final = ONE_TRANSFORM._replace(
    advice="{first}{remedy}; 4_worker_flamegraphs shows its lines"
)
"""Variant where stacks show the calls of the user's transform."""
OWN_CODE: Final = OWN_TRANSFORM._replace(
    title="{place} is the bottleneck: {own} of the stall time{each}{does}"
)
"""Variant for work in `__getitem__` itself."""
CALLING_CODE: Final = OWN_CODE._replace(
    limits=(Limit("transform_exposed_share", *_GROUP), _LADDER),
    title="{place} is the bottleneck: {own} of the stall time; {stage} runs {runs} times for each "
    "sample",
)
"""Variant for a function that runs several stages many times, none of which leads."""
UNHOOKED_CODE: Final = OWN_TRANSFORM._replace(
    title="{place} is the bottleneck: {own} of what the loader computes in processes and threads "
    "of its own{does}",
    limits=(),
    evidence=("unattributed_share", "other_processes_share"),
    costs="stalls_share",
)
"""Variant for loaders of other libraries, of which only stacks are seen."""
GARBAGE: Final = OWN_TRANSFORM._replace(
    title="Python's garbage collector is the bottleneck: {transform_exposed_share} of the stall "
    "time{each}{does}"
)
"""Variant for a worker that collects garbage, by itself or on request."""
AS_UINT8: Final = (
    "{first}return uint8 from the dataset and convert it to float in the step, on the device; "
    "scale and normalise there, so that the model sees the same values; 4_worker_flamegraphs"
)
"""Advice of rows whose title names `{floats}`, where there are any."""
CONVERSION: Final = ONE_TRANSFORM._replace(
    title="Converting to floats is the bottleneck: {stages} {transform_exposed_share} of the stall "
    "time{floats}",
    limits=(ONE_TRANSFORM.limits[0], _LADDER),
)
"""Variant for batches of floats that uint8 would hold."""
TRANSFORMS: Final = Cause(
    "transforms",
    "Transforms are the bottleneck: {all_transforms_exposed_share} of the stall time ({longest})",
    "{remedy}apply the slowest one to fewer samples, or to whole batches on the device; "
    "5_transform_orders",
    "many ops, none of which holds most of it",
    "crop or resize first; work done once and stored",
    limits=(Limit("all_transforms_exposed_share", *_GROUP), _LADDER),
    evidence=("all_transforms_exposed_share", "longest_transform_exposed_share"),
    costs="transforms_share",
    kind="transform",
    groups=("transform", *READING),
)
WORK_AND_OWN_CODE: Final = TRANSFORMS._replace(
    title="The work on each sample is the bottleneck: {all_transforms_exposed_share} of the stall "
    "time ({longest})",
    advice="in {place}: {remedy}; 5_transform_orders shows which transforms can come later or "
    "work on less; 4_worker_flamegraphs shows the lines",
)
"""Variant where stacks name own code of the user's among the work."""
COLLATE: Final = Cause(
    "collate",
    "Collating is the bottleneck: {collate_exposed_share} of the stall time{each}{where}{floats}",
    "make collate_fn cheaper: {remedy}; 4_worker_flamegraphs",
    "making a batch out of its samples takes longer than making them",
    "np.stack before torch.tensor (1.97 s to 0.063 s); text tokenised beforehand; images as uint8, "
    "converted on the device (a quarter of the bytes)",
    "gluonts #1732, pytorch #39842, #57467, ModernBERT #236, modern-yolonas #42",
    limits=(Limit("collate_exposed_share", *_GROUP), _LADDER),
    evidence=("collate_exposed_share",),
    costs="collate_share",
    kind="collate",
    groups=("collate",),
)
SENDING: Final = Cause(
    "sending",
    "Sending batches to the main process is the bottleneck: {sending_exposed_share} of the stall "
    "time{each}{floats}{carries}",
    "{rarer}send less: smaller types{less}, fewer objects per batch, tensors instead of lists; "
    "4_worker_flamegraphs",
    "the batch is made and still on its way; workers pause",
    "one tensor instead of hundreds in objects; the file_system sharing strategy; "
    "num_workers=0 where a batch is faster to make than to send",
    "pytorch #123439, #154318, lightning #17410",
    limits=(Limit("sending_exposed_share", *_GROUP), _LADDER),
    evidence=("sending_exposed_share",),
    costs="sending_share",
    kind="send",
    groups=("sending",),
)
RELEASES: Final = SENDING._replace(
    title="Sending batches is the bottleneck: freeing the shared memory of one ({batch_bytes}) "
    "takes the loop {batch_release_s}, {release_share} of its time{floats}",
    limits=(Limit("release_share", OWN_PART, 0.35),),
    evidence=("release_share",),
    costs="released_share",
    waits=False,
)
NEEDLESS_WORKERS: Final = SENDING._replace(
    title="Sending costs more than the workers save: receiving a batch takes the loop "
    "{batch_receive_s}, and making it takes {batch_make_s}{carries}",
    advice="{rarer}num_workers=0{at_once}; to keep the workers, send less: fewer objects per "
    "batch, tensors instead of lists",
    limits=(Limit("needless_share", thresholds.PASSING, 0.2), _LADDER),
    evidence=("num_workers_count", "batch_make_s", "batch_receive_s"),
    costs="handover_share",
    waits=False,
)
"""Variant where a batch is faster to make than to send."""
TOO_FEW_WORKERS: Final = Cause(
    "too-few-workers",
    "Too few workers, while cores are idle: {workers} on {cores} cores, each busy "
    "{worker_busy_share} of the time; {workers_wanted_count} would be enough",
    "raise num_workers from {num_workers} to {workers_wanted_count}; 3_cached_baseline",
    "workers never pause while cores are idle",
    "more workers: 3 to 13 iterations per second",
    "geti #5958",
    limits=(Limit("cores_free_share", 0.1, 0.35),),
    evidence=("load_factor", "worker_busy_share", "cores_free_share", "workers_wanted_count"),
)
IDLE_WORKERS: Final = Cause(
    "idle-workers",
    "Some workers have nothing to do: {active_workers_count} of {workers} make all batches, busy "
    "{worker_busy_share} of the time",
    "make at least as many shards as workers, or let workers share a shard; or start fewer "
    "workers; 3_cached_baseline",
    "fewer workers make batches than were started",
    "at least as many shards as workers",
    limits=(Limit("load_factor", KEEPS_UP, 1.2),),
    evidence=("load_factor", "active_workers_count"),
)
REPEATED_WORK: Final = Cause(
    "repeated-work",
    "Every worker does the work of all: each of {num_workers} computes {batch_cpu_s} per batch, "
    "one worker alone {batch_alone_cpu_s}",
    "divide the samples among the workers at the start of __iter__, before anything is read; give "
    "each worker its own shards or files, or use itertools.islice with get_worker_info(); "
    "3_cached_baseline",
    "in a stream: each additional worker makes every batch take longer",
    "samples divided among the workers before they are read",
    "pytorch/data #454, #487, metaseq #746",
    limits=(Limit("repeated_share", thresholds.REPEATED, 0.95),),
    evidence=("batch_cpu_s", "batch_alone_cpu_s"),
    costs="work_share",
)
FEW_CORES: Final = Cause(
    "few-cores",
    "The workers are confined to too few cores: each may run on {worker_cores_count} of {cores}, "
    "and waits for a core {queued_share} of the time",
    "call os.sched_setaffinity(0, range(os.cpu_count())) in worker_init_fn; look for what confines "
    "the workers: an import, taskset, OMP_PROC_BIND, KMP_AFFINITY",
    "workers may run on only some of the cores, and wait for those",
    "the affinity set back in worker_init_fn",
    limits=(Limit("queued_share", thresholds.NOTED, 0.3),),
    evidence=("queued_share", "worker_cores_count"),
)
CPU_SATURATED: Final = Cause(
    "cpu-saturated",
    "The CPU is saturated: workers and loop {need}{largest}{others}",
    "precompute and store work, or move it to the device, the largest part first{part}; "
    "3_cached_baseline shows the possible speedup",
    "all cores are busy, and no part of the work leads",
    "work done once and stored, or on the device; the largest part first",
    limits=(Limit("cpu_load", KEEPS_UP, 1.2),),
    evidence=("cpu_load_factor", "cores_used_share", "queued_share"),
    costs="lost_share",
)
SLOWS_THE_STEP: Final = CPU_SATURATED._replace(
    title="The workers take CPU time from the training step: workers and loop {need}{largest}"
    "{others}"
)
"""Variant where the loop hardly waits, but its step is slower beside the workers."""
OVERSUBSCRIPTION: Final = Cause(
    "oversubscription",
    "The workers run too many threads: {worker_threads_count} in each of {workers} on {cores} "
    "cores, with {extra_threads_cpu_share} of the workers' CPU time",
    "run one thread in each worker: torch.set_num_threads(1), cv2.setNumThreads(0), "
    "OMP_NUM_THREADS=1; 4_worker_flamegraphs",
    "many more threads than cores take much of the workers' CPU time",
    "cv2.setNumThreads(0): the kernel's share of the CPU went from 23% to 4%",
    "mmdetection #6867",
    limits=(
        Limit("threads_per_core_count", thresholds.MANY_THREADS, 4.0),
        Limit.trust("threads_trust"),
    ),
    evidence=("worker_threads_count", "threads_per_core_count", "extra_threads_cpu_share"),
    costs="lost_share",
    waits=False,
)
MAIN_PROCESS: Final = Cause(
    "main-process",
    "The main process is the bottleneck: {longest} takes {longest_share} of the loop's time{code}",
    "{helps}; 3_cached_baseline",
    "the loop itself computes: loading without workers, logging, a sampler",
    "workers; logging less often; indices drawn beforehand; masks drawn by the workers, not in "
    "the step (1.5x to 2x faster)",
    "olmoearth_pretrain #467, fastai #2516, sentence-transformers #3611",
    limits=(Limit("own_parts_share", OWN_PART, 0.35),),
    evidence=("own_parts_share", "model_share", "loop_cpu_share"),
    costs="own_parts_share",
    waits=False,
)
NO_WORKER: Final = MAIN_PROCESS._replace(
    title="The main process is the bottleneck: it loads the batches itself (num_workers=0), which "
    "takes {stall_share} of the loop's time{most}",
    limits=(Limit("stall_share", HARDLY, 0.2),),
    evidence=("num_workers_count",),
    costs="stalls_share",
    waits=True,
)
COMPUTES: Final = MAIN_PROCESS._replace(
    title="The main process is the bottleneck: it computes for {computing} of each step{outside}"
    "{code}",
    limits=(Limit("loop_cpu_share", OWN_PART, 0.5),),
    evidence=("loop_cpu_share", "step_share"),
    costs="computing_share",
)
IDLE_DEVICE: Final = MAIN_PROCESS._replace(
    title="The main process is the bottleneck: batches are ready, but the {device} is busy only "
    "{busy_share} of the time{code}",
    limits=(Limit("busy_share", thresholds.MOSTLY, 0.2),),
    evidence=("gpu_busy_share", "device_busy_share"),
    costs="idle_share",
)
TOO_LITTLE_PREFETCH: Final = Cause(
    "too-little-prefetch",
    "Prefetch is too shallow: workers keep up on average ({free_load_share} load), but a slow "
    "batch empties the queue{queue}",
    "raise prefetch_factor{more}; 3_cached_baseline",
    "workers keep up on average, and single batches come late",
    "a larger prefetch_factor",
    limits=(Limit("free_load_share", KEEPS_UP, 0.7),),
    evidence=("load_factor", "batch_mean_s", "batch_median_s", "prefetch_factor_count"),
)
SLOW_SAMPLES: Final = Cause(
    "slow-samples",
    "A few slow samples hold up the others: one in {one_in} takes {slow_sample_s}, the usual one "
    "{usual_sample_s}{which}{where}",
    "look at these samples{remedy}; {unordered}do rare work (opening the next shard) ahead, in a "
    "thread, or in smaller pieces; raise prefetch_factor, which hides short delays; "
    "2_fetch_vs_transform",
    "single samples take many times as long as the usual one",
    "in_order=False, where the order does not matter; inspect these samples",
    "pytorch #141833, #105203",
    limits=(Limit("slow_samples_stall_share", thresholds.LEADS, 0.5),),
    evidence=(
        *("slow_samples_stall_share", "slow_samples_work_share"),
        *("slow_sample_s", "usual_sample_s"),
    ),
    costs="slow_samples_share",
)
SLOW_WORKER: Final = Cause(
    "slow-worker",
    "One worker holds up the others: worker {worker} takes {slow_worker_batch_s} per batch, the "
    "others {others_batch_s}; {slow_worker_stall_share} of the stalls wait for it",
    "compare worker {worker} with the others: its shard, worker_init_fn, its core; "
    "3_cached_baseline",
    "one worker's batches take longer than the others', and the loop waits for those",
    "its shard, its file or its core inspected",
    limits=(
        Limit("slow_worker_ratio", 1.0, 1.2),
        Limit("slow_worker_stall_share", thresholds.ALONE, 0.9),
    ),
    evidence=("slow_worker_stall_share", "slow_worker_batch_s", "others_batch_s"),
    costs="slow_worker_share",
)
START_UP: Final = Cause(
    "start-up",
    "Workers start slowly at every epoch: {start_s} before an epoch of {epoch_s}",
    "{keep_alive}do less in worker_init_fn and at import; 3_cached_baseline",
    "every epoch begins with a wait for new workers",
    "persistent_workers=True; less work at import and in worker_init_fn; one iterator instead of "
    "next(iter(loader)) in each step (2x to 3x faster)",
    "continuous-thought-machines #19, pvnet #436",
    limits=(Limit("start_share", thresholds.HARDLY, 0.3), Limit.trust("start_trust")),
    evidence=("start_share", "start_s", "first_sample_s", "epoch_s", "epochs_seen_count"),
    costs="start_share",
    waits=False,
)
START_OF_STREAM: Final = START_UP._replace(
    title="The stream gives its first samples late at every epoch: {start_s} before an epoch of "
    "{epoch_s}",
    advice="do less in __iter__ before its first sample (fill a shuffle buffer, if there is one, "
    "while yielding); {keep_alive}keep in the dataset what is the same in each epoch; "
    "3_cached_baseline",
)
"""Variant where the first batches of the workers take long, not their start."""
SLOW_DRAWS: Final = START_UP._replace(
    title="Drawing indices is slow at every epoch: {start_s} in the main process, before an "
    "epoch of {epoch_s}{drawn_by}",
    advice="draw with arrays, and draw once what all epochs share; use replacement=True with a "
    "WeightedRandomSampler, which is far faster; or make epochs longer (a larger num_samples); "
    "3_cached_baseline",
)
NEW_ITERATORS: Final = START_UP._replace(
    title="The loader restarts its workers for every batch or two: {start_s} before an "
    "epoch of {epoch_s}{sampler}",
    advice="make one iterator per epoch: `for batch in loader`; or call iter(loader) before the "
    "loop, next() inside, and iter(loader) again only after StopIteration; 3_cached_baseline",
)
"""Variant for `next(iter(loader))` at each batch."""
LATE_BEGIN: Final = START_UP._replace(
    title="The loop starts late: it takes {taken} from the loader before its first step, in "
    "{start_s}",
    advice="to skip batches, as when resuming, advance the sampler, not the loader (torchdata's "
    "StatefulDataLoader); if the batches fill a buffer, make it smaller; 3_cached_baseline",
    limits=(),
    evidence=("start_s", "taken_before_count"),
)
"""Variant for batches before the first step that the step does not use."""
COPY: Final = Cause(
    "copy",
    "Copying batches to the device takes {copies_share} of the loop's time",
    "{pin}.to(device, non_blocking=True); 3_cached_baseline",
    "copies to the device, or to pinned memory, take long",
    "pin_memory=True with .to(device, non_blocking=True)",
    limits=(Limit("copies_share", OWN_PART, 0.4),),
    evidence=("copy_share", "pin_share"),
    costs="copies_share",
    waits=False,
    kind="h2d",
    tested=False,
)
MEMORY_PRESSURE: Final = Cause(
    "memory-pressure",
    "Memory is full: {used_share} of it, while the loop stalled",
    "use fewer workers, a smaller prefetch_factor, or memory-mapped data; 3_cached_baseline",
    "memory is nearly full while the loop stalls",
    "fewer workers, less prefetched, memory-mapped data",
    limits=(Limit.trust("space_trust"),),
    evidence=("used_share",),
    tested=False,
)
SHM: Final = MEMORY_PRESSURE._replace(
    code="shm",
    title="Shared memory is full: {used_share} of it, while the loop stalled",
    advice="enlarge /dev/shm (docker --shm-size), or lower prefetch_factor; 3_cached_baseline",
    shows="/dev/shm is nearly full while the loop stalls",  # noqa: S108 - a name
    helped="docker --shm-size; a smaller prefetch_factor",
)
MEMORY_GROWS: Final = Cause(
    "memory-growth",
    "Memory of the workers grows: {rate}",
    "look for what grows: a list, a cache without a limit (lru_cache takes maxsize=), tensors that "
    "keep their graph, or cycles of references while gc is disabled; 4_worker_flamegraphs shows "
    "its lines",
    "the workers' own memory grows all the time",
    "one NumPy array or byte buffer instead of lists of Python objects",
    "pytorch #13246",
    limits=(Limit("growth_ratio", 1.0, 2.0),),
    evidence=("growth_bytes_per_s", "growth_bytes", "copied_share", "full_in_s"),
    costs="nothing",
    waits=False,
)
MEMORY_COPIES: Final = MEMORY_GROWS._replace(
    title="The workers copy what they share with the main process: {rate}",
    advice="store the dataset's lists, dicts and strings as NumPy arrays, tensors, Arrow columns "
    "or one byte buffer; reading a Python object changes its reference count, and copies its page",
)
"""Variant for copies of shared pages. Growing memory hurts later: it is the verdict only where
nothing else is wrong."""
KEPT_BATCHES: Final = MEMORY_GROWS._replace(
    title="The training process keeps all its batches, so its memory grows with each",
    advice="call iter(loader) again for each epoch: itertools.cycle(loader) keeps all batches for "
    "its next round; release a batch, its views and its outputs after the step",
    limits=(),
    evidence=(),
)
"""Variant for a loop that releases none of its batches."""
INCONCLUSIVE: Final = Cause(
    "inconclusive",
    "The cause is unclear: {why}",
    "{remedy}",
    "too few steps, other processes on the cores, or nothing that explains the stalls",
    "a longer budget, a quiet machine, ss.stage('...') around own code",
    evidence=("unattributed_share", "other_processes_share", "steps_count"),
    kind="other",
)
NOT_THE_LOOP: Final = INCONCLUSIVE._replace(title="{why}")
"""Variant for a clear reason outside of the loop: a batch never came, or other processes have the
cores."""

CAUSES: Final[Mapping[str, Cause]] = {
    cause.code: cause
    for cause in (
        *(HEALTHY, STORAGE_LATENCY, STORAGE_BANDWIDTH, DECODE, ONE_TRANSFORM, TRANSFORMS, COLLATE),
        *(SENDING, TOO_FEW_WORKERS, IDLE_WORKERS, REPEATED_WORK, FEW_CORES, CPU_SATURATED),
        *(OVERSUBSCRIPTION, MAIN_PROCESS, MEMORY_GROWS),
        *(TOO_LITTLE_PREFETCH, SLOW_SAMPLES, SLOW_WORKER, START_UP, COPY, MEMORY_PRESSURE, SHM),
        *(LOCK, INCONCLUSIVE),
    )
}
"""Causes by code; findings that cost the same stand in this order."""


def handbook() -> str:
    """Render the table of causes in Markdown."""
    head = "| cause | what shows it | what helped | asked |\n| --- | --- | --- | --- |"
    rows = [
        f"| `{code}` | {cause.shows} | {cause.helped} | {cause.asked} |"
        for code, cause in CAUSES.items()
    ]
    return "\n".join([head, *rows])
