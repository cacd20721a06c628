"""After every test, nothing of ours is left: no process, thread, folder, hook or wrapper."""

import importlib.util
import os
import shutil
import tempfile

if "PYTEST_XDIST_WORKER" in os.environ:  # what the tests beside these leave is not ours
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tests-")

import pytest
import torch
from support import leftovers


def pytest_addoption(parser):
    """The goldens of `tests/surface` are written by the tests that compare with them."""
    text = "write down anew what users see (tests/surface/golden)"
    parser.addoption("--write-golden", action="store_true", help=text)


def pytest_collection_modifyitems(items):
    """Skip what this machine cannot run, and say why; the browser's, which last, come first."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is None)
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
    before = leftovers.traces()
    yield
    assert not leftovers.hooks(), f"still there: {leftovers.hooks()}"
    left = leftovers.since(before)
    assert not left, f"left behind: {sorted(left)}"
