"""What is sampled beside a recording: the resources' names, and the file that samples lie in.

A sample is a line of JSON, so that the samples of a killed process are there, too. It holds what
was read: for most resources a counter, out of which `stallscope.analyze.resources` makes rates.
"""

from __future__ import annotations

from typing import Final

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

GAUGES: Final = frozenset({MEMORY, SHM, GPU, GPU_MEMORY, THREADS})
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
