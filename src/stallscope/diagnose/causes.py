"""Every cause that a verdict can name: what it is called, and what to do about it.

A new cause is a row here, a rule in `rules` and its place in `verdict`.
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
    "look at the model and the device; 03_cached_baseline shows how little is left",
    kind="step",
)
STORAGE_LATENCY: Final = Cause(
    "storage-latency",
    "Reading waits for storage, not for the CPU: {what}",
    "read in larger pieces (tar shards), from nearer storage or from a cache, or wait for several "
    "at once with more workers; 02_fetch_vs_transform",
    kind="fetch",
)
WAITS_UNSEEN: Final = STORAGE_LATENCY._replace(
    title="__getitem__ itself waits, not for the CPU ({what}): for a file that was open before, "
    "the network, a lock or a sleep",
    advice="06_line_by_line shows which line waits",
)
"""The same where nothing was seen to read: it is only concluded."""
OWN_CODE_WAITS: Final = STORAGE_LATENCY._replace(
    title="The dataset's own code waits, not for the CPU: {what}",
    advice="{where}; 06_line_by_line shows its lines",
)
"""The same where stacks show which line waits."""
STORAGE_BANDWIDTH: Final = Cause(
    "storage-bandwidth",
    "Storage gives no more bytes per second: {what}",
    "read fewer bytes: smaller or better compressed files, a local copy or a cache; more workers "
    "do not help; 02_fetch_vs_transform",
    kind="fetch",
)
DECODE: Final = Cause(
    "decode",
    "Decoding is what the loop waits for: {what}",
    "store smaller images, decode at a smaller size (PIL's draft), or use a faster decoder; "
    "02_fetch_vs_transform",
    kind="decode",
)
ONE_TRANSFORM: Final = Cause(
    "one-transform",
    "One transform is what the loop waits for: {what}",
    "make {where} cheaper, apply it to less data, or to whole batches; 06_line_by_line shows its "
    "lines, 05_transform_orders whether it can come later",
    kind="transform",
)
OWN_CODE: Final = ONE_TRANSFORM._replace(
    title="The dataset's own code is what the loop waits for: {what}",
    advice="{where}; 06_line_by_line shows its lines",
)
"""The same for what `__getitem__` does itself."""
TRANSFORMS: Final = Cause(
    "transforms",
    "The transforms together take too long: {what}",
    "crop or resize first, so that the rest works on less; 05_transform_orders",
    kind="transform",
)
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
    "look at these samples; in_order=False lets batches that are ready pass where the order does "
    "not matter, a larger prefetch_factor helps for short ones; 02_fetch_vs_transform",
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
    "something is kept with every sample: look for a cache or a list in the dataset that "
    "only grows, and for tensors that keep their graph; 06_line_by_line shows its lines",
)
MEMORY_COPIES: Final = MEMORY_GROWS._replace(
    advice="reading a Python object changes its reference count, which copies the page that it was "
    "shared on: keep lists, dicts and strings of a dataset as NumPy arrays or one byte buffer",
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

CAUSES: Final[Mapping[str, Cause]] = {
    cause.code: cause
    for cause in (
        *(HEALTHY, STORAGE_LATENCY, STORAGE_BANDWIDTH, DECODE, ONE_TRANSFORM, TRANSFORMS, COLLATE),
        *(SENDING, TOO_FEW_WORKERS, IDLE_WORKERS, FEW_CORES, CPU_SATURATED),
        *(OVERSUBSCRIPTION, MAIN_PROCESS),
        *(TOO_LITTLE_PREFETCH, SLOW_SAMPLES, SLOW_WORKER, START_UP, COPY, MEMORY_PRESSURE, SHM),
        *(MEMORY_GROWS,),
        *(LOCK, INCONCLUSIVE),
    )
}
"""All of them by code; findings that cost the same stand in this order."""
