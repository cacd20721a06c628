"""After every test, nothing of ours is left: no process, thread, folder, hook or wrapper."""

import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import threading
from importlib import import_module

if "PYTEST_XDIST_WORKER" in os.environ:  # what the tests beside these leave is not ours
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tests-")

import pytest


def pytest_addoption(parser):
    """The goldens of `tests/surface` are written by the tests that compare with them."""
    text = "write down anew what users see (tests/surface/golden)"
    parser.addoption("--write-golden", action="store_true", help=text)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile` all tests of the browser go to one worker: to one Lab."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneLab(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "browser" if "/browser/" in file else file

    return OneLab(config, log)


def pytest_collection_modifyitems(items):
    """Skip what this machine cannot run, and say why; what lasts comes first."""
    import_module("support.leftovers")  # before any test; xdist's own process goes without torch
    gc.collect()
    gc.freeze()  # what is imported is no garbage: not looked through, nor copied by each worker
    lasts = {"test_benchmarks.py": 0, "browser": 1}
    items.sort(key=lambda item: min(lasts.get(part, 2) for part in item.path.parts[-2:]))
    reasons = {"gpu": _no_gpu(), "browser": _no_browser()}
    for item in items:
        for name, reason in reasons.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_unconfigure():
    """Unfreeze the collector; else libraries warn at the end that objects are left."""
    gc.unfreeze()


def _no_gpu():
    import torch

    return "" if torch.cuda.is_available() else "no CUDA device"


def _no_browser():
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return "" if shutil.which("chromium") else "no chromium on the PATH (apt-get install chromium)"


@pytest.fixture(autouse=True, scope="session")
def signals_as_in_a_terminal():
    """Restore SIGINT and SIGHUP, which background jobs and `nohup` start with ignored.

    Tests that send these signals need what a program in a terminal has.
    """
    usual = {signal.SIGINT: signal.default_int_handler}
    if hasattr(signal, "SIGHUP"):
        usual[signal.SIGHUP] = signal.SIG_DFL
    ignored = [number for number in usual if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def same_environment():
    """Put back the variables that a command sets for its child processes."""
    before = set(os.environ)
    yield
    for name in set(os.environ) - before:
        del os.environ[name]


@pytest.fixture(autouse=True)
def nothing_left():
    """No process, thread, folder or hook that was not there before the test."""
    from support import leftovers

    before = leftovers.traces()
    yield
    assert not leftovers.hooks(), f"still there: {leftovers.hooks()}"
    left = leftovers.since(before)
    assert not left, f"left behind: {sorted(left)}"


@pytest.fixture
def lost_interrupts_come_again(monkeypatch):
    """Python loses an interrupt that comes inside a finalizer or a callback of the collector."""
    say = sys.unraisablehook

    def again(lost):
        if lost.exc_type is not KeyboardInterrupt:
            say(lost)
        else:
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()

    monkeypatch.setattr(sys, "unraisablehook", again)
