"""The stages of a sample's way to the device, and the resources that it uses.

One word and one colour per kind of stage, in code, charts and prose; a new kind is added here
alone. Every name that is not listed (a transform's, a library call's) comes from the user's
pipeline. A resource has one word, too, and says how it is read: most are counters.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

WORK_KINDS: Final = ("fetch", "decode", "transform", "other", "collate")
"""What a worker does one after the other. Sending runs beside it, in a thread of its own, and the
rest happens in the training loop."""

KINDS: Final = ("fetch", "decode", "transform", "collate", "send", "pin", "h2d", "step", "other")
"""Every kind of stage, in the order in which a sample meets them."""

SAMPLE_KINDS: Final = ("fetch", "decode", "transform", "other")
"""The kinds whose time adds up to one sample's time in a worker."""

COMPUTING_KINDS: Final = ("decode", "transform", "collate")
"""The kinds that hardly wait by themselves: where they do, the machine is busy."""

KIND_OF_NAME: Final = (
    ("decode", re.compile(r"decod")),
    ("fetch", re.compile(r"^_*(load|read|fetch|open|download|get_(image|img|file|bytes|data))")),
    ("transform", re.compile(r"transform|augment|aug\b|preproc|crop|resiz|normali[sz]e|tokeni")),
)
"""What the name of a user's function promises, in lower case; the first kind that fits."""

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

CHROME_COLOURS: Final = {
    "fetch": "rail_response",
    "decode": "thread_state_runnable",
    "transform": "rail_idle",
    "collate": "thread_state_uninterruptible",
    "send": "generic_work",
    "pin": "startup",
    "h2d": "startup",
    "step": "rail_load",
    "other": "grey",
}
"""For each kind, which of chrome://tracing's named colours comes nearest to that of `COLOURS`; it
refuses a file with any other name."""

STALL_COLOUR: Final = "#D55E00"
"""A stall is the loudest thing on the page."""

_SHADES: Final = {"forward": "#4FC3A1", "optimizer": "#00614A"}
"""Of a step's own colour, by the first word of the part: they lie beside each other."""


class Stage(NamedTuple):
    """A named piece of the way, as the tables show it."""

    name: str
    kind: str
    gives_way: bool = False
    """Inside a transform that has a name, it is part of that transform: a library's call, a helper
    function of the dataset's."""


FETCH: Final = Stage("fetch", "fetch")
"""Reading: opening a file and getting its bytes."""

SEEK: Final = Stage("seek", "fetch")
"""Finding a sample in a container: the head of a tar member, an entry of an archive."""

UNPACK: Final = Stage("unpack", "fetch")
"""Making values of what a container gave: decompressing an archive's entry, a row out of Arrow."""

READING_WORDS: Final = {FETCH.name: "reading", SEEK.name: "seeking", UNPACK.name: "unpacking"}
"""What they are called in a sentence, by the stage's name."""

DECODE: Final = Stage("decode", "decode")
"""Turning compressed bytes into pixels, in whichever transform that happens."""

GETITEM: Final = Stage("getitem", "other")
"""The rest of a dataset's `__getitem__` (or of its iterator's `next`) that no hook can name."""

COLLATE: Final = Stage("collate", "collate")
"""Making one batch out of its samples."""

BATCH: Final = Stage("batch", "other")
"""What a worker does for a batch outside of its samples and of collate: mostly, it frees the
samples' memory."""

SEND: Final = Stage("send", "send")
"""Pickling a batch and writing it into the pipe, in a thread of the worker's."""

PIN: Final = Stage("pin", "pin")
"""Copying a batch into pinned memory."""

H2D: Final = Stage("h2d", "h2d")
"""Copying a batch to the device."""

DEVICE_AT_WORK: Final = Stage("waiting for the device", "step")
"""A copy that waits until the device has done its earlier work: that is the step's time."""
FORWARD: Final = Stage("forward", "step")
UNTIL_BACKWARD: Final = Stage("forward (until backward)", "step")
"""What the loop does before a backward pass, in a script whose model is not known."""
BACKWARD: Final = Stage("backward", "step")
OPTIMIZER: Final = Stage("optimizer", "step")

STEP: Final = Stage("step", "step")
"""The rest of using a batch."""

OTHER: Final = Stage("other", "other")
"""What the loop does between two batches that is no part of a step."""

CHECKPOINT: Final = Stage("checkpoint", "other")
"""Writing the state of a training."""

GARBAGE: Final = Stage("garbage collection", "other")
"""Python collects its oldest objects."""

OTHER_NAMES: Final = Stage("other names", "other")
"""What users name by `ss.stage`, where they make up more names than a table can show."""

ANOTHER_LOADER: Final = Stage("another loader", "other")
"""A loop over another loader between two batches of this one: validation, mostly."""

END_OF_EPOCH: Final = Stage("end of epoch", "other")
"""The loop asks for a batch and there is none: workers end, unless they are persistent."""

_FRAME: Final = re.compile(r"stage (\w+)(\??): (.*)", re.DOTALL)


def colour_of(name: str, kind: str) -> str:
    """Return the colour of a part of the loop: its kind's, a shade of it for a model's parts."""
    shade = _SHADES.get(name.partition(" ")[0]) if kind == STEP.kind else None
    return shade or COLOURS[kind]


def frame_name(stage: Stage) -> str:
    """Name the recorder's own frame around a stage, so that sampled stacks show the stage."""
    return f"stage {stage.kind}{'?' * stage.gives_way}: {stage.name}"


def of_frame(name: str) -> Stage | None:
    """Return the stage that a frame of the recorder's stands for; None for any other frame."""
    found = _FRAME.fullmatch(name)
    return Stage(found[3], found[1], bool(found[2])) if found else None


CORE: Final = "core_busy_share"
"""Share of the time in which a core was not idle; one device a core that may be used."""
QUOTA: Final = "quota_cores"
"""Cores that the processes of the container keep busy; the limit is its CPU quota."""
WORKER: Final = "worker_cpu_share"
"""CPU time of a worker's process a second; the device is its pid."""
LOOP: Final = "loop_cpu_share"
"""The same of the process that trains, with all its threads."""
QUEUED: Final = "queued_for_core_share"
"""Share of the time in which the main thread of a worker, or of the process that trains, could have
run and had no core; the device is the pid."""
MEMORY: Final = "memory_bytes"
"""Memory in use that cannot be dropped at once: of the machine, and of the container."""
SHM: Final = "shm_bytes"
"""What lies in /dev/shm, through which workers send their batches."""
DISK_BUSY: Final = "disk_busy_share"
"""Share of the time in which a disk had something to do."""
DISK_READ: Final = "disk_read_bytes_per_s"
DISK_WRITE: Final = "disk_write_bytes_per_s"
DISK_OPERATIONS: Final = "disk_operations_per_s"
"""Reads and writes that a disk completed."""
RECEIVED: Final = "network_received_bytes_per_s"
SENT: Final = "network_sent_bytes_per_s"
"""The limit of both is the speed of the link, where that is known."""
GPU: Final = "gpu_busy_share"
"""Share of the time in which a kernel ran on a GPU, whosever it was, as NVML has it."""
GPU_MEMORY: Final = "gpu_memory_bytes"
SAMPLER: Final = "sampler_cpu_share"
"""What sampling all this costs, as a share of one core."""

THREADS: Final = "worker_threads"
"""Threads of a worker's process, idle ones too; the device is its pid."""

FILE_LOCK: Final = "file_lock_share"
"""Share of the samples in which a worker's main thread waits for a lock of a file (flock, fcntl);
the device is its pid."""
WORKER_CORES: Final = "worker_cores"
"""Cores that a worker may run on; the device is its pid."""
WORKER_MEMORY: Final = "worker_memory_bytes"
"""A worker's own part of its memory: what it shares with others counts by their number."""
WORKER_MAPPED: Final = "worker_mapped_bytes"
"""A worker's memory with all that it shares: pages that it copies from its parent add nothing."""
WORKER_RESIDENT: Final = "worker_resident_bytes"
WORKER_PROPORTIONAL: Final = "worker_proportional_bytes"
WORKER_PRIVATE: Final = "worker_private_bytes"
"""A worker's resident set, proportional set and unique set, pages of files included: the fields
`Rss`, `Pss` and `Private_*` in proc_pid_smaps(5)."""

GAUGES: Final = frozenset(
    {
        *(MEMORY, SHM, GPU, GPU_MEMORY, THREADS, FILE_LOCK, WORKER_CORES),
        *(WORKER_MEMORY, WORKER_MAPPED, WORKER_RESIDENT, WORKER_PROPORTIONAL, WORKER_PRIVATE),
    }
)
"""Read as they are; all others are read as counters (of seconds, bytes or operations)."""
SHARES: Final = frozenset({CORE, QUEUED, DISK_BUSY, GPU})
"""Never more than 1; a counter in steps of 10 ms may seem to say so."""

NAMES: Final = {
    CORE: "cores",
    QUOTA: "CPU quota",
    WORKER: "CPU of the workers",
    LOOP: "CPU of the main process",
    QUEUED: "waiting for a core",
    THREADS: "threads of the workers",
    FILE_LOCK: "waiting for a lock of a file",
    WORKER_CORES: "cores of a worker",
    WORKER_MEMORY: "memory of the workers",
    WORKER_MAPPED: "memory of the workers with what they share",
    WORKER_RESIDENT: "resident set of the workers",
    WORKER_PROPORTIONAL: "proportional set of the workers",
    WORKER_PRIVATE: "unique set of the workers",
    MEMORY: "memory",
    SHM: "/dev/shm",  # noqa: S108 - a name
    DISK_BUSY: "disk busy",
    DISK_READ: "disk reads",
    DISK_WRITE: "disk writes",
    DISK_OPERATIONS: "disk operations",
    RECEIVED: "network in",
    SENT: "network out",
    GPU: "GPU busy",
    GPU_MEMORY: "GPU memory",
    SAMPLER: "sampling itself",
}
"""Every resource in the words of a picture, in their order."""
