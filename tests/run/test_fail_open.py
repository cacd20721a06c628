"""Whatever goes wrong in stallscope itself: the training goes on as without it, the run says so."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import PIL.Image
import PIL.ImageFile
import pytest
import torch
from support import leftovers
from support.plain_training import Pictures, Scale, Stream, loaders, train
from support.planted_failures import (
    Plant,
    PlantedError,
    import_all,
    import_libraries,
    planted,
)
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import worker as torch_worker

import stallscope as ss
import stallscope.files
from stallscope.errors import WorkspaceError
from stallscope.hooks.failures import Failures
from stallscope.run.script import watching

try:
    import resource
except ImportError:  # Windows
    resource = None

NOT_CALLED = {
    "iterators.Iterations._adopted",
    "iterators.Iterations.living",
    "iterators.Iterations.raised",
    "ops.Ops._cannot",
}
"""Functions of the central classes that a training that goes well does without."""


@pytest.fixture(autouse=True)
def little_garbage():
    """Collecting garbage goes through what a training makes, not through all that is imported."""
    import_all()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "one.png"
    PIL.Image.new("RGB", (4, 4), (10, 20, 30)).save(path)
    return path


@pytest.fixture
def all_imported(monkeypatch):
    """What workers are sent or forked with is there before anything fails."""
    # A child that fails while it reads is made up for, and nothing is missing then
    monkeypatch.setattr("stallscope.apart._is_child", True)
    import_libraries()
    gc.freeze()


ROUNDS = {"spawn": 8}
"""Each takes as long as a worker needs to import everything; in the first four none begins."""


@pytest.mark.usefixtures("all_imported")
@pytest.mark.parametrize(
    ("workers", "method", "after"),
    [
        pytest.param(1, "fork", False, marks=pytest.mark.slow),
    ],
)
def test_each_function_of_ours_may_fail(picture, tmp_path, workers, method, after):
    """Batches and losses are those without us, nothing is left on, the run names each failure."""
    plain = train(picture, workers, method)
    with planted(tmp_path / "book", after=after) as book:
        for came in islice(book.rounds(), ROUNDS.get(method)):
            with ss.instrumented(warmup=0) as watch:
                recorded = train(picture, workers, method, Plant(book.path, after=after))

            assert plain == recorded
            assert [] == leftovers.hooks()
            assert [] == _unsaid(came(), watch.run)
    reached = ("fetchers.Hooks.", "iterators.Iterations.", "ops.Ops.", "library_calls.Libraries.")
    missed = {name for name in set(book.names) - book.came() if name.startswith(reached)}
    assert missed <= NOT_CALLED or method != "fork"
    assert bool(workers) == any(name.startswith("worker.Tasks.") for name in book.came())


@pytest.mark.usefixtures("all_imported")
@pytest.mark.parametrize(
    "workers",
    [pytest.param(0, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.slow)],
)
def test_each_may_fail_while_a_loader_is_recorded(picture, tmp_path, workers):
    """The step gets the batches of plain iteration, and all is put back, also where it raises."""
    with planted(tmp_path / "book", after=False) as book:
        for loader in loaders(picture, workers, "fork"):
            with book.closed():
                torch.manual_seed(0)
                plain = [batch.tolist() for _ in range(2) for batch in loader]
                loader._iterator = None
            for came in book.rounds():
                torch.manual_seed(0)
                before, used, run = torch.get_rng_state(), [], None
                with suppress(PlantedError):  # who asks for a recording is told what ended it
                    run = ss.record(loader, used.append, batches=len(plain) // 2, warmup=0)

                assert plain[: len(used)] == [batch.tolist() for batch in used]
                assert torch.equal(before, torch.get_rng_state())
                assert [] == leftovers.hooks()
                assert run is None or [] == _unsaid(came(), run)


def _unsaid(came: set[str], run: ss.Run) -> list[str]:
    """Which of the failures that came no note of a run names."""
    said = "\n".join(run.notes)
    return [name for name in came if f"PlantedError('{name}')" not in said]


def test_a_folder_that_is_deleted_in_mid_run(picture):
    """The training goes on, also where a worker starts later; there is a run, with a note."""
    plain = train(picture, 1)
    with ss.instrumented(warmup=0) as watch:
        for folder in Path(tempfile.gettempdir()).glob(f"stallscope-{os.getpid()}-*"):
            shutil.rmtree(folder)
        recorded = train(picture, 1)

    assert plain == recorded
    assert [] == leftovers.hooks()
    assert watch.run.notes


@pytest.mark.skipif(resource is None, reason="no limits of this kind")
def test_a_disk_that_fills_up_in_mid_run(picture):
    """No file may grow any more, and a worker starts only then: the training goes on as before."""
    plain = train(picture, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ss.instrumented(warmup=0) as watch:
        list(DataLoader(Stream(), 4))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        try:
            recorded = train(picture, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert plain == recorded
    assert [] == leftovers.hooks()
    assert watch.run.all_steps.height
    assert any("left no log" in note for note in watch.run.notes)


ALWAYS_ON = ("__next__", "_get_data", "_worker_loop", "backward")
"""Hooks that stay on also where few batches of this process are recorded."""


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (dataloader._BaseDataLoaderIter, "__next__"),
        (dataloader._MultiProcessingDataLoaderIter, "_get_data"),
        (PIL.ImageFile.ImageFile, "load"),
        (PIL.Image, "open"),
        (torch_worker, "_worker_loop"),
        (torch.autograd, "backward"),
        (Scale, "__call__"),
    ],
)
def test_what_others_put_over_a_hook_stays(picture, workers, owner, name):
    """Whoever patches the same place while we record keeps that afterwards, and it works."""
    plain = train(picture, workers)
    original, calls = vars(owner)[name], []
    with ss.instrumented(warmup=0):
        train(picture, workers)
        beneath = vars(owner)[name]
        assert beneath is not original or name not in ALWAYS_ON

        def theirs(*args, **named):
            calls.append(name)
            return beneath(*args, **named)

        setattr(owner, name, theirs)
        try:
            recorded = train(picture, workers)
        except BaseException:
            setattr(owner, name, original)
            raise
    try:
        assert theirs is vars(owner)[name]
        calls.clear()
        assert plain == recorded == train(picture, workers)
        is_called_here = name != "_worker_loop" and (workers > 0 or name != "_get_data")
        assert is_called_here == bool(calls)
    finally:
        setattr(owner, name, original)
    assert [] == leftovers.hooks()


class Once(os.PathLike):
    """A path that can be asked for only once each time that it is used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked = 0

    def __fspath__(self) -> str:
        self.asked += 1
        if self.asked % 2 == 0:
            raise OSError("asked twice")
        return str(self.path)


def test_a_path_that_raises_when_we_look_at_it(picture):
    """The file is open by then: the user's code gets it, and the run says that its name is lost."""

    class Reads(Stream):
        def __iter__(self) -> Any:
            path = Once(picture)
            with open(path, "rb") as file:  # noqa: PTH123 - what is hooked
                yield len(file.read())

    with ss.instrumented(warmup=0) as watch:
        read = [batch.tolist() for batch in DataLoader(Reads())]

    assert [[picture.stat().st_size]] == read
    assert any("asked twice" in note for note in watch.run.notes)


class Refuses(type):
    """Lets a method be replaced, and not be put back."""

    locked = False

    def __setattr__(cls, name: str, value: Any) -> None:
        if name == "__call__" and Refuses.locked:
            raise RuntimeError("locked")
        super().__setattr__(name, value)


class Locked(Scale, metaclass=Refuses):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        Refuses.locked = True
        return super().__call__(x)


def test_a_hook_that_cannot_be_taken_off_keeps_no_other_on(picture):
    """The others come off, the run names the place, and the hook only calls its original."""
    data = Pictures(picture)
    data.ops = [Locked(2.0), Scale(0.5)]
    with ss.instrumented(warmup=0) as watch:
        list(DataLoader(data, 4))
    Refuses.locked = False

    assert torch.equal(torch.ones(1) * 2, Locked(2.0)(torch.ones(1)))
    assert [] == leftovers.hooks()
    assert any("off '__call__'" in note and "locked" in note for note in watch.run.notes)


def test_a_script_goes_on_where_no_recording_can_begin(tmp_path, monkeypatch, capsys):
    """What comes out of its import of torch is torch; stderr says that nothing is recorded."""

    def full(*_: Any) -> int:
        raise WorkspaceError("no room")

    monkeypatch.setattr(stallscope.files, "log_capacity", full)
    saved: list[Any] = []
    with watching(tmp_path / "run", name="it", warmup=1, done=saved.append):
        batches = list(DataLoader(Stream(), 4))

    assert 2 == len(batches)
    assert [None] == saved
    assert "stallscope: no room" in capsys.readouterr().err


def test_what_failed_is_counted_over_all_processes(tmp_path):
    """Each way to fail is one sentence, however often it came; the disk may be full by then."""
    failures = Failures(tmp_path)
    for _ in range(9):
        failures.note("the waits", ValueError("planted"))
    elsewhere = Failures(tmp_path / "none")
    with elsewhere.within("the epochs"):
        raise KeyError("lost")

    (said,) = failures.sentences()
    assert said.startswith("the waits: ")
    assert "9 times or more (ValueError('planted'))" in said
    assert "KeyError('lost')" in next(elsewhere.sentences())
    with pytest.raises(KeyboardInterrupt), failures.within("the epochs"):
        raise KeyboardInterrupt
