"""The stages of a sample's way to the device, and the resources that it uses.

One word and one colour per kind of stage, in code, charts and prose; only this module lists them.
Other names (of a transform, of a library call) come from the user's pipeline. A resource has one
word, too, and its way of reading: most are counters.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

WORK_KINDS: Final = ("fetch", "decode", "transform", "other", "collate")
"""Kinds of a worker's own work, which never overlap. Sending runs beside it, in a separate thread;
the other kinds happen in the training loop."""

KINDS: Final = ("fetch", "decode", "transform", "collate", "send", "pin", "h2d", "step", "other")
"""Every kind of stage, in the order in which a sample meets them."""

SAMPLE_KINDS: Final = ("fetch", "decode", "transform", "other")
"""Kinds whose time adds up to a sample's time in a worker."""

COMPUTING_KINDS: Final = ("decode", "transform", "collate")
"""Kinds that hardly wait by themselves: if they do, the machine is busy."""

KIND_OF_NAME: Final = (
    ("decode", re.compile(r"decod")),
    ("fetch", re.compile(r"^_*(load|read|fetch|open|download|get_(image|img|file|bytes|data))")),
    ("transform", re.compile(r"transform|augment|aug\b|preproc|crop|resiz|normali[sz]e|tokeni")),
)
"""Patterns for lower-case names of a user's functions; the first match sets the kind."""

COLOURS: Final = {
    "fetch": "#0072B2",
    "decode": "#56B4E9",
    "transform": "#E69F00",
    "collate": "#CC79A7",
    "send": "#999999",
    "pin": "#F0E442",
    "h2d": "#F0E442",
    "step": "#009E73",
    "other": "#BBBBBB",
}
"""A colour per kind, safe for colour-blind readers: those of Okabe and Ito, "Color Universal
Design", and greys. Both copies, to pinned memory and to the device, are one colour."""

STALL_COLOUR: Final = "#D55E00"
"""A stall is the loudest thing on the page."""

_SHADES: Final = {"forward": "#4FC3A1", "optimizer": "#00614A"}
"""Shades of a step's colour by the first word of the part: these parts are neighbours."""


class Stage(NamedTuple):
    """Named part of a sample's way, as the tables show it."""

    name: str
    kind: str
    gives_way: bool = False
    """True if a named transform around it gets its time: for a call of a library, or a helper
    function of the dataset."""


FETCH: Final = Stage("fetch", "fetch")
"""Reading: opening a file and getting its bytes."""

SEEK: Final = Stage("seek", "fetch")
"""Finding a sample in a container: the head of a tar member, an entry of an archive."""

UNPACK: Final = Stage("unpack", "fetch")
"""Making values of what a container gave: decompressing an archive's entry, a row out of Arrow."""

READING_WORDS: Final = {FETCH.name: "reading", SEEK.name: "seeking", UNPACK.name: "unpacking"}
"""Words for sentences, by the stage's name."""

DECODE: Final = Stage("decode", "decode")
"""Turning compressed bytes into pixels, in whichever transform that happens."""

GETITEM: Final = Stage("getitem", "other")
"""The rest of a dataset's `__getitem__` (or of its iterator's `next`) that no hook can name."""

COLLATE: Final = Stage("collate", "collate")
"""Making one batch out of its samples."""

BATCH: Final = Stage("batch", "other")
"""A worker's work for a batch outside of its samples and of collate: mostly, freeing the samples'
memory."""

SEND: Final = Stage("send", "send")
"""Pickling a batch and writing it into the pipe, in a thread of the worker."""

PIN: Final = Stage("pin", "pin")
"""Copying a batch into pinned memory."""

H2D: Final = Stage("h2d", "h2d")
"""Copying a batch to the device."""

DEVICE_AT_WORK: Final = Stage("waiting for the device", "step")
"""Wait of a copy until the device finishes earlier work: this time belongs to the step."""
FORWARD: Final = Stage("forward", "step")
UNTIL_BACKWARD: Final = Stage("forward (until backward)", "step")
"""Work of the loop before a backward pass, in a script whose model is unknown."""
BACKWARD: Final = Stage("backward", "step")
OPTIMIZER: Final = Stage("optimizer", "step")

STEP: Final = Stage("step", "step")
"""The rest of using a batch."""

OTHER: Final = Stage("other", "other")
"""Work of the loop between two batches outside of the step."""

CHECKPOINT: Final = Stage("checkpoint", "other")
"""Writing the state of a training."""

GARBAGE: Final = Stage("garbage collection", "other")
"""Python collects its oldest objects."""

OTHER_NAMES: Final = Stage("other names", "other")
"""Stages by `ss.stage` beyond the number of names that a table can show."""

ANOTHER_LOADER: Final = Stage("another loader", "other")
"""A loop over another loader between two batches of this one: validation, mostly."""

END_OF_EPOCH: Final = Stage("end of epoch", "other")
"""Last request of an epoch, without a batch: workers end, unless they are persistent."""

_FRAME: Final = re.compile(r"stage (\w+)(\??): (.*)", re.DOTALL)


def colour_of(name: str, kind: str) -> str:
    """Return the colour of a part of the loop: its kind's, a shade of it for a model's parts."""
    shade = _SHADES.get(name.partition(" ")[0]) if kind == STEP.kind else None
    return shade or COLOURS[kind]


def frame_name(stage: Stage) -> str:
    """Name the recorder's own frame around a stage, so that sampled stacks show the stage."""
    return f"stage {stage.kind}{'?' * stage.gives_way}: {stage.name}"


def of_frame(name: str) -> Stage | None:
    """Return the stage of a recorder's frame; None for any other frame."""
    match = _FRAME.fullmatch(name)
    return Stage(match[3], match[1], bool(match[2])) if match else None


NAMES: Final[dict[str, str]] = {}
"""Words of a picture for every resource, in order."""
GAUGES: Final[set[str]] = set()
"""Resources whose readings are values; the others are counters (seconds, bytes, operations)."""
SHARES: Final[set[str]] = set()
"""Resources that never exceed 1, though a counter in steps of 10 ms may seem to."""


def _resource(name: str, words: str, *, is_gauge: bool = False, is_share: bool = False) -> str:
    """Declare a resource; the name ends in its unit."""
    NAMES[name] = words
    GAUGES.update([name] * is_gauge)
    SHARES.update([name] * is_share)
    return name


CORE: Final = _resource("core_busy_share", "cores", is_share=True)
"""Share of the time in which a core was not idle; one device per usable core."""
QUOTA: Final = _resource("quota_cores", "CPU quota")
"""Cores that the processes of the container keep busy; the limit is its CPU quota."""
WORKER: Final = _resource("worker_cpu_share", "CPU of the workers")
"""CPU time of a worker's process per second; the device is its pid."""
HELPER: Final = _resource("helper_cpu_share", "CPU of processes that the loader started itself")
"""The same of a process that is no worker, as one of a pool; the device is its pid."""
LOOP: Final = _resource("loop_cpu_share", "CPU of the main process")
"""CPU time of the training process per second, with all its threads."""
QUEUED: Final = _resource("queued_for_core_share", "waiting for a core", is_share=True)
"""Share of the time in which the main thread of a worker, or of the training process, was ready to
run and had no core; the device is the pid."""
THREADS: Final = _resource("worker_threads", "threads of the workers", is_gauge=True)
"""Threads of a worker's process, idle ones too; the device is its pid."""
FILE_LOCK: Final = _resource("file_lock_share", "waiting for a file lock", is_gauge=True)
"""Share of the samples in which a worker's main thread waits for a lock of a file (flock, fcntl);
the device is its pid."""
WORKER_CORES: Final = _resource("worker_cores", "cores of a worker", is_gauge=True)
"""Cores that a worker may run on; the device is its pid."""
WORKER_MEMORY: Final = _resource("worker_memory_bytes", "memory of the workers", is_gauge=True)
"""A worker's own part of its memory: a shared page counts divided by its number of processes."""
WORKER_MAPPED: Final = _resource(
    "worker_mapped_bytes", "memory of the workers with what they share", is_gauge=True
)
"""A worker's memory with all shared pages: copies of its parent's pages add nothing."""
MEMORY: Final = _resource("memory_bytes", "memory", is_gauge=True)
"""Memory in use that cannot be dropped at once: of the machine, and of the container."""
SHM: Final = _resource("shm_bytes", "/dev/shm", is_gauge=True)  # noqa: S108 - a name
"""Use of /dev/shm, through which workers send their batches."""
DISK_BUSY: Final = _resource("disk_busy_share", "disk busy", is_share=True)
"""Share of the time in which a disk was busy."""
DISK_READ: Final = _resource("disk_read_bytes_per_s", "disk reads")
DISK_WRITE: Final = _resource("disk_write_bytes_per_s", "disk writes")
DISK_OPERATIONS: Final = _resource("disk_operations_per_s", "disk operations")
"""Reads and writes that a disk completed."""
RECEIVED: Final = _resource("network_received_bytes_per_s", "network in")
SENT: Final = _resource("network_sent_bytes_per_s", "network out")
"""The limit of both is the speed of the link, if known."""
GPU: Final = _resource("gpu_busy_share", "GPU busy", is_gauge=True, is_share=True)
"""Share of the time in which a kernel of any process ran on a GPU, from NVML."""
GPU_MEMORY: Final = _resource("gpu_memory_bytes", "GPU memory", is_gauge=True)
SAMPLER: Final = _resource("sampler_cpu_share", "sampling itself")
"""Overhead of sampling, as a share of one core."""
