"""Every cause that a verdict can name: what it is called, and what to do about it.

A new cause is a row here and one in `KNOWN`, a rule in `rules` and its place in `verdict`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Cause(NamedTuple):
    """Something that can be wrong with a loader, or with the loop around it."""

    code: str
    """Its name for programs, in kebab-case."""
    title: str
    """A sentence in whose braces words and numbers are put."""
    advice: str
    """What to do next: a setting, a line of code, the notebook to open; braces as in the title."""
    kind: str = ""
    """The kind of stage whose colour it has; empty: the colour of stalls."""
    tested: bool = True
    """Whether the rule was tried against loaders in which this is what is wrong."""

    def next_step(self, where: str = "", line: str = "") -> str:
        """Say what to do about it.

        Args:
            where: what it is about: a stage's name, a setting; depends on the cause.
            line: of the user's code, as `function (file:line)`; empty where it is not known.
        """
        advice = self.advice.format(where=where)
        return f"{advice}; look at {line}" if line else advice


HEALTHY: Final = Cause(
    "healthy",
    "The loop hardly waits for data: {what}",
    "look at the model and the device{where}; 05_when_data_is_not_it tries what makes a step "
    "faster",
    kind="step",
)
STORAGE_LATENCY: Final = Cause(
    "storage-latency",
    "Reading waits for storage, not for the CPU: {what}",
    "read in larger pieces (tar shards), from nearer storage or from a cache, or wait for several "
    "at once with more workers; 08_where_the_data_lies",
    kind="fetch",
)
WAITS_UNSEEN: Final = STORAGE_LATENCY._replace(
    title="__getitem__ itself waits, not for the CPU ({what}): for a file that was open before, "
    "the network, a lock or a sleep",
    advice="04_worker_flamegraphs shows which line waits",
)
"""The same where nothing was seen to read: it is only concluded."""
OWN_CODE_WAITS: Final = STORAGE_LATENCY._replace(
    title="The dataset's own code waits, not for the CPU: {what}",
    advice="{where}; 04_worker_flamegraphs shows its lines",
)
"""The same where stacks show which line waits."""
STORAGE_BANDWIDTH: Final = Cause(
    "storage-bandwidth",
    "Storage gives no more bytes per second: {what}",
    "read fewer bytes: smaller or better compressed files, a local copy or a cache; more workers "
    "do not help; 08_where_the_data_lies",
    kind="fetch",
)
DECODE: Final = Cause(
    "decode",
    "Decoding is what the loop waits for: {what}",
    "store smaller images, or the crops that are used, decode at a smaller size (PIL's draft), or "
    "use a faster decoder; 02_fetch_vs_transform",
    kind="decode",
)
DECODE_OTHER: Final = DECODE._replace(
    advice="{where}; 02_fetch_vs_transform",
)
"""The same where no image of PIL's was seen: a video, a sound, a volume."""
ONE_TRANSFORM: Final = Cause(
    "one-transform",
    "One transform is what the loop waits for: {what}",
    "do once, beforehand, what is the same each time; apply {where} to less data (uint8, cropped), "
    "to fewer samples, or to whole batches on the device; 04_worker_flamegraphs shows its lines, "
    "06_transform_orders whether it can come later",
    kind="transform",
)
OWN_CODE: Final = ONE_TRANSFORM._replace(
    title="The dataset's own code is what the loop waits for: {what}",
    advice="{where}; 04_worker_flamegraphs shows its lines",
)
"""The same for what `__getitem__` does itself."""
OWN_TRANSFORM: Final = ONE_TRANSFORM._replace(advice=OWN_CODE.advice)
"""The same where stacks show what a transform of the user's calls."""
GARBAGE: Final = ONE_TRANSFORM._replace(
    title="Python's garbage collector is what the loop waits for: {what}",
    advice=OWN_CODE.advice,
)
"""The same where a worker looks for garbage, of itself or because it is told to."""
TRANSFORMS: Final = Cause(
    "transforms",
    "The transforms together take too long: {what}",
    "{where}apply the longest to fewer samples, or to whole batches on the device; "
    "06_transform_orders",
    kind="transform",
)
WORK_AND_OWN_CODE: Final = TRANSFORMS._replace(
    title="The work on each sample takes too long: {what}",
    advice="in {where}; for the rest, 06_transform_orders finds what can come later or work on "
    "less; 04_worker_flamegraphs shows the lines",
)
"""The same where some of it is the user's own code, which stacks have named."""
LARGE_IMAGES: Final = DECODE._replace(
    title="Images are stored larger than they are used: {what}",
    advice="resize them once, beforehand, and store them so, or decode at a smaller size (PIL's "
    "draft, for JPEG); 02_fetch_vs_transform",
)
"""The same where resizing comes right after it."""
COLLATE: Final = Cause(
    "collate",
    "Collating samples into batches takes long: {what}",
    "make collate_fn cheaper: {where}; 04_worker_flamegraphs",
    kind="collate",
)
SENDING: Final = Cause(
    "sending",
    "Sending batches between processes takes long: {what}",
    "send less: smaller types (uint8 images), fewer objects per batch, tensors in place of lists; "
    "04_worker_flamegraphs",
    kind="send",
)
_AS_UINT8: Final = (
    "let the dataset give uint8, and convert in the step, on the device, as the dataset does now "
    "(to float, scaled, normalised), so that the model sees the same; 04_worker_flamegraphs"
)
COLLATE_FLOATS: Final = COLLATE._replace(advice=_AS_UINT8)
SENDING_FLOATS: Final = SENDING._replace(advice=_AS_UINT8)
CONVERSION: Final = ONE_TRANSFORM._replace(
    title="Converting to floats is what the loop waits for: {what}", advice=_AS_UINT8
)
"""All three where batches are floats that uint8 would hold."""
NEEDLESS_WORKERS: Final = SENDING._replace(
    title="The workers take more time than they save: {what}",
    advice="num_workers=0{where}; or, to keep workers, send less: fewer objects per batch, tensors "
    "in place of lists",
)
"""The same where making a batch takes less than sending it."""
TOO_FEW_WORKERS: Final = Cause(
    "too-few-workers",
    "There are too few workers, while cores are idle: {what}",
    "raise num_workers{where}; 01_is_it_the_loader",
)
IDLE_WORKERS: Final = Cause(
    "idle-workers",
    "Some workers have nothing to do: {what}",
    "give the dataset at least as many shards as there are workers (more and smaller ones), or let "
    "workers share a shard; or start fewer workers; 01_is_it_the_loader",
)
REPEATED_WORK: Final = Cause(
    "repeated-work",
    "Every worker does the work of all: {what}",
    "divide the samples among the workers before anything is read or computed, not after: shards "
    "or files for each worker, or itertools.islice with get_worker_info(), at the begin of "
    "__iter__; 01_is_it_the_loader",
)
FEW_CORES: Final = Cause(
    "few-cores",
    "The workers are confined to too few cores: {what}",
    "let them use all: os.sched_setaffinity(0, range(os.cpu_count())) in worker_init_fn, and look "
    "for what confines them (an import, taskset, OMP_PROC_BIND, KMP_AFFINITY)",
)
CPU_SATURATED: Final = Cause(
    "cpu-saturated",
    "The cores are saturated: {what}",
    "do work once and store it, or on the device, the largest part first{where}; "
    "03_cached_baseline shows what is to be had",
)
SLOWS_THE_STEP: Final = CPU_SATURATED._replace(
    title="The workers take the cores from the training step: {what}",
)
"""The same where the loop hardly waits for batches, and its step is slower beside the workers."""
OVERSUBSCRIPTION: Final = Cause(
    "oversubscription",
    "The workers compute with too many threads for the cores: {what}",
    "one thread in each worker: torch.set_num_threads(1), cv2.setNumThreads(0), "
    "OMP_NUM_THREADS=1; 04_worker_flamegraphs",
)
MAIN_PROCESS: Final = Cause(
    "main-process",
    "The main process is the bottleneck: {what}",
    "{where}; 01_is_it_the_loader",
)
TOO_LITTLE_PREFETCH: Final = Cause(
    "too-little-prefetch",
    "The workers are fast enough, but too little is prefetched: {what}",
    "raise prefetch_factor{where}; 01_is_it_the_loader",
)
SLOW_SAMPLES: Final = Cause(
    "slow-samples",
    "Single slow samples hold up all others: {what}",
    "look at these samples{where}; do what is done only now and then (opening the next shard) "
    "ahead, in a thread, or in smaller pieces; in_order=False lets batches that are ready pass "
    "where the order does not matter, a larger prefetch_factor helps for short ones; "
    "02_fetch_vs_transform",
)
SLOW_WORKER: Final = Cause(
    "slow-worker",
    "One worker holds up all others: {what}",
    "look at what is different in that worker: its shard, worker_init_fn, its core; "
    "01_is_it_the_loader",
)
START_UP: Final = Cause(
    "start-up",
    "Starting workers takes long, at every epoch: {what}",
    "persistent_workers=True; and less to do in worker_init_fn and at import; 01_is_it_the_loader",
)
START_OF_STREAM: Final = START_UP._replace(
    title="The stream takes long to give its first samples, at every epoch: {what}",
    advice="do less in __iter__ before its first sample: fill a shuffle buffer while samples are "
    "given, or make it smaller; keep in the dataset what is the same each time, with "
    "persistent_workers=True; 01_is_it_the_loader",
)
"""The same where that is not the workers' start, but their first batches."""
SLOW_DRAWS: Final = START_UP._replace(
    title="Each epoch begins with drawing its indices, in the main process: {what}",
    advice="draw what is the same for all epochs once, and the rest with arrays; a "
    "WeightedRandomSampler is far quicker with replacement=True; or make epochs longer (a larger "
    "num_samples), so that it happens less often; 01_is_it_the_loader",
)
NEW_ITERATORS: Final = START_UP._replace(
    title="The loader is started anew, with its workers, for every batch or two: {what}",
    advice="make one iterator and keep it: `for batch in loader`, or it = iter(loader) before the "
    "loop and next(it) inside, with a new one only after StopIteration; 01_is_it_the_loader",
)
"""The same where `next(iter(loader))` is called for each batch."""
LATE_BEGIN: Final = START_UP._replace(
    title="The loop starts late: {what}",
    advice="where batches are left out, as in a training that goes on: advance the sampler and not "
    "the loader (one that begins at an index, or torchdata's StatefulDataLoader), so that nothing "
    "is loaded for it; where they fill a buffer: a smaller one; 01_is_it_the_loader",
)
"""The same where the loop begins with batches that its first step does not get."""
COPY: Final = Cause(
    "copy",
    "Copying batches to the device takes long: {what}",
    "pin_memory=True and .to(device, non_blocking=True); 03_cached_baseline",
    kind="h2d",
    tested=False,
)
MEMORY_PRESSURE: Final = Cause(
    "memory-pressure",
    "Memory is full: {what}",
    "fewer workers, smaller prefetch_factor, or data that is mapped and not loaded; "
    "01_is_it_the_loader",
    tested=False,
)
MEMORY_GROWS: Final = Cause(
    "memory-growth",
    "Memory of the workers grows: {what}",
    "something is kept with every sample: look for a list in the dataset that only grows, for a "
    "cache without a limit (lru_cache takes maxsize=) and for tensors that keep their graph; "
    "04_worker_flamegraphs shows its lines",
)
MEMORY_COPIES: Final = MEMORY_GROWS._replace(
    title="The workers copy what they share with the main process: {what}",
    advice="reading a Python object changes its reference count, which copies the page that it was "
    "shared on: keep lists, dicts and strings of a dataset as NumPy arrays, tensors, Arrow columns "
    "or one byte buffer",
)
"""The same where pages are copied that were shared. Both hurt later: they are the verdict only
where nothing else is wrong."""
SHM: Final = Cause(
    "shm",
    "Shared memory is full: {what}",
    "a larger /dev/shm (docker --shm-size), or fewer batches on their way; 01_is_it_the_loader",
    tested=False,
)
LOCK: Final = Cause(
    "lock",
    "The workers wait for each other: {what}",
    "let each worker open its own file or connection, and hold the lock for less; "
    "04_worker_flamegraphs (idle=True)",
)
INCONCLUSIVE: Final = Cause("inconclusive", "The cause is unclear: {what}", "{where}", kind="other")
NO_BATCH: Final = INCONCLUSIVE._replace(title="{what}")
"""The same where the loop has waited in vain."""

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
"""All of them by code; findings that cost the same stand in this order."""


class KnownCause(NamedTuple):
    """What is known of a cause beyond one verdict.

    What helped is what a maintainer confirmed, or what worked for the one who asked; without a
    source it is general advice. `owner #number` is an issue on GitHub.
    """

    shows: str
    helped: str
    asked: str = ""


KNOWN: Final = {
    "healthy": KnownCause(
        "stalls below 10% of the loop's time",
        "nothing at the loader: training stayed as fast when loading got ten times as fast",
        "DALI #892",
    ),
    "storage-latency": KnownCause(
        "reading waits and hardly computes; one worker alone waits as long for a sample",
        "tar shards read in order (2.0 times at 4 workers), a local copy, more workers at once",
        "rf-detr #1396, colabtools #1691, ultralytics #8316",
    ),
    "storage-bandwidth": KnownCause(
        "reading waits longer the more workers there are, and bytes per second stay",
        "fewer bytes: smaller files, better compression, a local copy",
    ),
    "decode": KnownCause(
        "decoding holds most of the work; or decoding and resizing of large images together",
        "images stored at the size that is used, decoding at a smaller size, a faster decoder",
    ),
    "one-transform": KnownCause(
        "one op, or a function of the dataset's own code, holds most of the work",
        "NumPy arrays in place of DataFrame.iloc (7 times); a file loaded once, not per sample; "
        "filters, filtered pairs, resampled slices kept in place of being made each time",
        "braindecode #89, torchgeo #1754, #1253, wav2aug #5, schnetpack #458, ivadomed #276",
    ),
    "transforms": KnownCause(
        "many ops, none of which holds most of it",
        "crop or resize first; work done once and stored",
    ),
    "collate": KnownCause(
        "making a batch out of its samples takes longer than making them",
        "np.stack before torch.tensor (1.97 s to 0.063 s); tokenised beforehand; images as uint8, "
        "converted on the device (a quarter of the bytes)",
        "gluonts #1732, pytorch #39842, #57467, ModernBERT #236, modern-yolonas #42",
    ),
    "sending": KnownCause(
        "the batch is made and still on its way; workers pause",
        "one tensor in place of hundreds in objects; the file_system sharing strategy; "
        "num_workers=0 where a batch takes less to make than to send",
        "pytorch #123439, #154318, lightning #17410",
    ),
    "too-few-workers": KnownCause(
        "workers never pause while cores are idle",
        "more workers: 3 to 13 iterations per second",
        "geti #5958",
    ),
    "idle-workers": KnownCause(
        "fewer workers make batches than were started",
        "at least as many shards as workers",
    ),
    "repeated-work": KnownCause(
        "of a stream: a worker computes longer for a batch, the more workers there are",
        "samples divided among the workers at the begin, before they are read",
        "pytorch/data #454, #487, metaseq #746",
    ),
    "few-cores": KnownCause(
        "workers may run on fewer cores than there are, and wait for those",
        "the affinity set back in worker_init_fn",
    ),
    "cpu-saturated": KnownCause(
        "all cores are busy with work of which no part leads",
        "work done once and stored, or on the device; the largest part first",
    ),
    "oversubscription": KnownCause(
        "many more threads than cores take much of the workers' CPU time",
        "cv2.setNumThreads(0): the kernel's share of the CPU went from 23% to 4%",
        "mmdetection #6867",
    ),
    "main-process": KnownCause(
        "the loop itself computes: loading without workers, logging, a sampler",
        "workers; logging less often; indices drawn beforehand; masks drawn by the workers, not in "
        "the step (1.5 to 2 times)",
        "olmoearth_pretrain #467, fastai #2516, sentence-transformers #3611",
    ),
    "too-little-prefetch": KnownCause(
        "workers keep up on average, and single batches come late",
        "a larger prefetch_factor",
    ),
    "slow-samples": KnownCause(
        "single samples take many times as long as the usual one",
        "in_order=False, where the order does not matter; a look at these samples",
        "pytorch #141833, #105203",
    ),
    "slow-worker": KnownCause(
        "one worker's batches take longer than the others', and the loop waits for those",
        "a look at its shard, its file, its core",
    ),
    "start-up": KnownCause(
        "every epoch begins with a wait for new workers",
        "persistent_workers=True; less to do at import and in worker_init_fn; one iterator in "
        "place of next(iter(loader)) in each step (2 to 3 times)",
        "continuous-thought-machines #19, pvnet #436",
    ),
    "copy": KnownCause(
        "copies to the device, or to pinned memory, take long",
        "pin_memory=True with .to(device, non_blocking=True)",
    ),
    "memory-pressure": KnownCause(
        "memory is nearly full while the loop stalls",
        "fewer workers, less prefetched, data that is mapped",
    ),
    "memory-growth": KnownCause(
        "the workers' own memory grows all the time",
        "one NumPy array or byte buffer in place of lists of Python objects",
        "pytorch #13246",
    ),
    "shm": KnownCause(
        "/dev/shm is nearly full while the loop stalls",  # noqa: S108 - a name
        "docker --shm-size; fewer batches on their way",
    ),
    "lock": KnownCause(
        "workers stand at a lock, of a file or of several processes",
        "a lock for each file in place of one for the folder",
        "returnn #1548",
    ),
    "inconclusive": KnownCause(
        "too few steps, other processes on the cores, or nothing that explains the stalls",
        "a longer budget, a quiet machine, ss.stage('...') around own code",
    ),
}
"""By the code of the cause."""


def handbook() -> str:
    """Render `KNOWN` as a table in Markdown."""
    head = "| cause | what shows it | what helped | asked |\n| --- | --- | --- | --- |"
    rows = [f"| `{code}` | {' | '.join(entry)} |" for code, entry in KNOWN.items()]
    return "\n".join([head, *rows])
