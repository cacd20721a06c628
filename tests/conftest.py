"""After every test, nothing of ours is left: no process, thread, folder, hook or wrapper.

The originals are those at the time this file is imported, before any test has run.
"""

import builtins
import gc
import importlib.util
import multiprocessing
import os
import re
import shutil
import tempfile
import threading
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import PIL.Image
import psutil
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import fetch, worker

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

GRACE_S = 2.0
"""A worker that was told to end may take so long to be gone."""
FOLDER = re.compile(r"stallscope-(\d+)-")
ABSENT = object()
HOOKED = [
    (worker, "_worker_loop"),
    (fetch._MapDatasetFetcher, "fetch"),
    (fetch._IterableDatasetFetcher, "fetch"),
    (DataLoader, "_get_iterator"),
    (builtins, "open"),
    (PIL.Image, "open"),
    *COMPOSES,
]
ORIGINALS = [vars(owner).get(name, ABSENT) for owner, name in HOOKED]


def pytest_collection_modifyitems(items):
    """Skip what this machine cannot run, and say why."""
    reasons = {"gpu": _no_gpu(), "browser": _no_browser()}
    for item in items:
        for name, reason in reasons.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu():
    return "" if torch.cuda.is_available() else "no CUDA device"


def _no_browser():
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return "" if shutil.which("chromium") else "no chromium on the PATH (apt-get install chromium)"


@pytest.fixture(autouse=True)
def nothing_left():
    """No process, thread, folder or hook that was not there before the test."""
    before = _traces()
    yield
    replaced = [
        f"{getattr(owner, '__name__', owner)}.{name}"
        for (owner, name), original in zip(HOOKED, ORIGINALS, strict=True)
        if vars(owner).get(name, ABSENT) is not original
    ]
    assert not replaced, f"still replaced: {replaced}"
    left = _settled(before)
    assert not left, f"left behind: {sorted(left)}"


def _settled(before):
    """What is left when everything that is about to end has ended."""
    deadline = time.monotonic() + GRACE_S
    while left := _traces() - before:
        if time.monotonic() > deadline:
            return left
        gc.collect()  # a failed test's traceback may still hold an iterator with its workers
        multiprocessing.active_children()  # reaps those that have ended
        time.sleep(0.02)
    return set()


def _traces():
    return _children() | _threads() | _folders()


def _children():
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


def _threads():
    """Those that keep a process from ending; Playwright's own loop has some named asyncio."""
    return {
        f"thread {thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if not thread.daemon and not thread.name.startswith("asyncio_")
    }


def _folders():
    """Folders of this process and of dead ones; a living one may be somebody else's test."""
    return {
        f"folder {path}"
        for path in Path(tempfile.gettempdir()).glob("stallscope-*")
        if not (name := FOLDER.match(path.name))
        or int(name[1]) == os.getpid()
        or not psutil.pid_exists(int(name[1]))
    }
