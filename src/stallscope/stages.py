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


NAMES: Final[dict[str, str]] = {}
"""Every resource in the words of a picture, in their order."""
GAUGES: Final[set[str]] = set()
"""Read as they are; all others are read as counters (of seconds, bytes or operations)."""
SHARES: Final[set[str]] = set()
"""Never more than 1; a counter in steps of 10 ms may seem to say so."""


def _resource(name: str, words: str, *, is_gauge: bool = False, is_share: bool = False) -> str:
    """Declare a resource; the name ends in its unit."""
    NAMES[name] = words
    GAUGES.update([name] * is_gauge)
    SHARES.update([name] * is_share)
    return name


CORE: Final = _resource("core_busy_share", "cores", is_share=True)
"""Share of the time in which a core was not idle; one device a core that may be used."""
QUOTA: Final = _resource("quota_cores", "CPU quota")
"""Cores that the processes of the container keep busy; the limit is its CPU quota."""
WORKER: Final = _resource("worker_cpu_share", "CPU of the workers")
"""CPU time of a worker's process a second; the device is its pid."""
LOOP: Final = _resource("loop_cpu_share", "CPU of the main process")
"""The same of the process that trains, with all its threads."""
QUEUED: Final = _resource("queued_for_core_share", "waiting for a core", is_share=True)
"""Share of the time in which the main thread of a worker, or of the process that trains, could have
run and had no core; the device is the pid."""
THREADS: Final = _resource("worker_threads", "threads of the workers", is_gauge=True)
"""Threads of a worker's process, idle ones too; the device is its pid."""
FILE_LOCK: Final = _resource("file_lock_share", "waiting for a lock of a file", is_gauge=True)
"""Share of the samples in which a worker's main thread waits for a lock of a file (flock, fcntl);
the device is its pid."""
WORKER_CORES: Final = _resource("worker_cores", "cores of a worker", is_gauge=True)
"""Cores that a worker may run on; the device is its pid."""
WORKER_MEMORY: Final = _resource("worker_memory_bytes", "memory of the workers", is_gauge=True)
"""A worker's own part of its memory: what it shares with others counts by their number."""
WORKER_MAPPED: Final = _resource(
    "worker_mapped_bytes", "memory of the workers with what they share", is_gauge=True
)
"""A worker's memory with all that it shares: pages that it copies from its parent add nothing."""
WORKER_RESIDENT: Final = _resource(
    "worker_resident_bytes", "resident set of the workers", is_gauge=True
)
WORKER_PROPORTIONAL: Final = _resource(
    "worker_proportional_bytes", "proportional set of the workers", is_gauge=True
)
WORKER_PRIVATE: Final = _resource(
    "worker_private_bytes", "unique set of the workers", is_gauge=True
)
"""A worker's resident set, proportional set and unique set, pages of files included: the fields
`Rss`, `Pss` and `Private_*` in proc_pid_smaps(5)."""
MEMORY: Final = _resource("memory_bytes", "memory", is_gauge=True)
"""Memory in use that cannot be dropped at once: of the machine, and of the container."""
SHM: Final = _resource("shm_bytes", "/dev/shm", is_gauge=True)  # noqa: S108 - a name
"""What lies in /dev/shm, through which workers send their batches."""
DISK_BUSY: Final = _resource("disk_busy_share", "disk busy", is_share=True)
"""Share of the time in which a disk had something to do."""
DISK_READ: Final = _resource("disk_read_bytes_per_s", "disk reads")
DISK_WRITE: Final = _resource("disk_write_bytes_per_s", "disk writes")
DISK_OPERATIONS: Final = _resource("disk_operations_per_s", "disk operations")
"""Reads and writes that a disk completed."""
RECEIVED: Final = _resource("network_received_bytes_per_s", "network in")
SENT: Final = _resource("network_sent_bytes_per_s", "network out")
"""The limit of both is the speed of the link, where that is known."""
GPU: Final = _resource("gpu_busy_share", "GPU busy", is_gauge=True, is_share=True)
"""Share of the time in which a kernel ran on a GPU, whosever it was, as NVML has it."""
GPU_MEMORY: Final = _resource("gpu_memory_bytes", "GPU memory", is_gauge=True)
SAMPLER: Final = _resource("sampler_cpu_share", "sampling itself")
"""What sampling all this costs, as a share of one core."""
