"""Leftovers of a recording: processes, threads, folders, hooks, callbacks, settings.

The originals are those at the time this file is imported, before anything was recorded.
"""

import builtins
import functools
import gc
import multiprocessing
import multiprocessing.queues
import os
import re
import signal
import sys
import tempfile
import threading
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import ModuleType

import PIL.Image
import psutil
import torch
from torch.optim import optimizer
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import fetch, pin_memory, worker

from stallscope.hooks import training_step

try:
    from torchvision import transforms as transforms_v1
    from torchvision.transforms import v2 as transforms_v2

    COMPOSES = [
        (compose, name)
        for compose in (transforms_v1.Compose, transforms_v2.Compose)
        for name in ("__call__", "forward")
    ]
except ImportError:  # pip install stallscope, without [sample]
    COMPOSES = []

GRACE_S = 10.0
"""Seconds for a worker that must end to be gone."""
SOON_S = 0.1
"""Seconds after which most of them are gone."""
FOLDER = re.compile(r"stallscope-(\d+)-")
ABSENT = object()
ITERATORS = [
    (cls, name)
    for cls in (
        dataloader._BaseDataLoaderIter,
        dataloader._MultiProcessingDataLoaderIter,
        dataloader._SingleProcessDataLoaderIter,
    )
    for name in ("__init__", "__next__", "_reset", "_try_put_index", "_get_data", "_next_data")
]
HOOKED = [
    (worker, "_worker_loop"),
    (pin_memory, "pin_memory"),
    (fetch._MapDatasetFetcher, "fetch"),
    (fetch._IterableDatasetFetcher, "fetch"),
    (DataLoader, "_get_iterator"),
    (multiprocessing.queues, "_ForkingPickler"),
    (torch.autograd, "backward"),
    (builtins, "open"),
    (PIL.Image, "open"),
    *ITERATORS,
    *COMPOSES,
]
ORIGINALS = [vars(owner).get(name, ABSENT) for owner, name in HOOKED]


def hooks() -> list[str]:
    """Return our hooks that are still in place."""
    return [
        *(
            f"{getattr(owner, '__name__', owner)}.{name}"
            for (owner, name), original in zip(HOOKED, ORIGINALS, strict=True)
            if vars(owner).get(name, ABSENT) is not original
        ),
        *(
            f"{module.__name__}._worker_loop"
            for module in _with_worker_loop(len(sys.modules))
            if _is_ours(vars(module)["_worker_loop"])
        ),
        *(f"gc.callbacks: {callback}" for callback in gc.callbacks if _is_ours(callback)),
        *(f"sys.meta_path: {finder}" for finder in sys.meta_path if _is_ours(finder)),
        *(f"listener: {listener}" for listener in training_step.listeners),
        *(f"before optimizers: {hook}" for hook in optimizer._global_optimizer_pre_hooks.values()),
        *(f"after optimizers: {hook}" for hook in optimizer._global_optimizer_post_hooks.values()),
        *(["handler of SIGINT"] if _is_ours(signal.getsignal(signal.SIGINT)) else []),
    ]


@functools.lru_cache(maxsize=1)
def _with_worker_loop(_: int) -> list[ModuleType]:
    """Return the imported modules of all libraries that have a worker's loop."""
    modules = list(sys.modules.values())
    return [module for module in modules if "_worker_loop" in getattr(module, "__dict__", ())]


def _is_ours(value: object) -> bool:
    module = getattr(value, "__module__", None) or type(value).__module__
    return str(module).startswith("stallscope")


def traces() -> set[str]:
    return _children() | _threads() | _folders()


def since(before: set[str]) -> set[str]:
    """Return the leftovers since then, after everything that must end has ended."""
    began_s = time.monotonic()
    while left := traces() - before:
        if (waited_s := time.monotonic() - began_s) > GRACE_S:
            return left
        if waited_s > SOON_S:
            gc.collect()  # a failed test's traceback may still hold an iterator with its workers
        multiprocessing.active_children()  # reaps those that have ended
        time.sleep(0.01)
    return set()


def _children() -> set[str]:
    if not _has_children():
        return set()
    servants = {
        resource_tracker._resource_tracker._pid,
        forkserver._forkserver._forkserver_pid,
        getattr(forkserver._forkserver, "_resource_tracker_pid", None),
    }
    return {
        f"process {child.pid} {child.name()}"
        for child in psutil.Process().children()
        if child.pid not in servants
    }


def _has_children() -> bool:
    """Ask the kernel, which is a hundred times quicker than going through all processes."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _threads() -> set[str]:
    """Return threads that keep a process from ending, and ours; Playwright has asyncio threads."""
    return {
        f"thread {thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if (not thread.daemon and not thread.name.startswith("asyncio_"))
        or _is_ours(getattr(thread, "_target", None))
    }


def _folders() -> set[str]:
    """Return folders of this process and of dead ones; a living one may be another test's."""
    return {
        f"folder {path}"
        for path in Path(tempfile.gettempdir()).glob("stallscope-*")
        if not (name := FOLDER.match(path.name))
        or int(name[1]) == os.getpid()
        or not psutil.pid_exists(int(name[1]))
    }
