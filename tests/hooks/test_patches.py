"""A recording begins and ends while threads of the user's iterate loaders."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from types import ModuleType

import pytest
import torch
from support.loaders import Noise
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.hooks.patches import Patches
from stallscope.run.record import begin_window


class Numbers(Noise):
    """Samples that draw from no generator, which threads would share."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index))


@pytest.fixture
def often(monkeypatch):
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def test_what_comes_after_the_end_changes_nothing():
    """A thread may meet a new class of iterators just when the recording ends."""
    place, ours = {"name": "theirs"}, Patches()
    ours.put(place, "name", "ours")
    ours.undo()

    ours.put(place, "name", "late")

    assert {"name": "theirs"} == place


class NoModule:
    """What cffi puts into `sys.modules`: it says that it is a module, and has no `__dict__`."""

    __slots__ = ()

    @property
    def __class__(self):
        return type(sys)


class Hostile(NoModule):
    """Even asking what it is raises."""

    __slots__ = ()

    @property
    def __class__(self):
        raise RuntimeError("ask me nothing")


def test_a_hook_that_somebody_imported_by_name_is_put_back(monkeypatch, tmp_path):
    """`from torch import save` in a window."""
    monkeypatch.setitem(sys.modules, "script", script := ModuleType("script"))
    plain = torch.save
    with ExitStack() as ends:
        begin_window(tmp_path, ends, 0)
        exec("from torch import save", vars(script))  # noqa: S102 - as an import does it
        assert script.save is not plain

    assert script.save is torch.save is plain


@pytest.mark.parametrize("ends", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_recordings_that_share_a_place_end_in_any_order(ends):
    place, patches = {"name": "theirs"}, [Patches() for _ in range(3)]
    for number, each in enumerate(patches):
        each.put(place, "name", number)

    for number in ends:
        patches[number].undo()

    assert {"name": "theirs"} == place


def test_a_place_that_many_threads_change_holds_its_own_at_the_end(often):
    """Recordings of several threads share places, and end in any order."""
    place = {"name": "theirs"}

    def change() -> None:
        for _ in range(300):
            ours = Patches()
            ours.put(place, "name", object())
            ours.undo()

    threads = [threading.Thread(target=change) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {"name": "theirs"} == place


@pytest.mark.parametrize("kind", [NoModule, Hostile])
@pytest.mark.parametrize("workers", [0, 1])
def test_what_only_calls_itself_a_module_stops_no_recording(monkeypatch, kind, workers):
    """The batches come, and every hook comes off again, `open` too."""
    monkeypatch.setitem(sys.modules, "lib_of_cffi", kind())
    before = open, DataLoader.__iter__
    loader = DataLoader(Numbers(12), 4, num_workers=workers)

    run = ss.record(loader, batches=3, warmup=0)
    with ss.instrumented():
        batches = list(loader)

    assert run.samples().height
    assert torch.equal(torch.arange(12.0), torch.cat([batch[:, 0] for batch in batches]))
    assert before == (open, DataLoader.__iter__)


def test_a_real_library_of_cffi_stops_no_recording():
    """argon2, which Jupyter's server brings, is one; boto3 and google-auth bring others."""
    pytest.importorskip("_argon2_cffi_bindings")

    assert ss.record(DataLoader(Numbers(12), 4), batches=3, warmup=0).samples().height
