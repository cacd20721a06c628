"""Failures of stallscope itself: the training goes on as without it, and the run names them."""

import gc
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import PIL.Image
import PIL.ImageFile
import pytest
import torch
from support import leftovers
from support.plain_training import Scale, Stream, train
from support.planted_failures import import_all, import_libraries, planted
from torch.utils.data import DataLoader, dataloader

import stallscope as ss
import stallscope.files
from stallscope.errors import WorkspaceError
from stallscope.hooks.recording_folder import Failures
from stallscope.run.script import watching

try:
    import resource
except ImportError:  # Windows
    resource = None

NOT_CALLED = {
    "iterators.Iterations._adopted",
    "iterators.Iterations.living",
    "iterators.Iterations.raised",
    "find_ops.Ops._cannot",
}
"""Functions of the central classes that a successful training never calls."""


@pytest.fixture(autouse=True)
def little_garbage():
    """Freeze what was imported, so that collecting garbage is quick."""
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
    """Import all that workers are forked with or sent before anything fails."""
    # A child that fails while it reads is made up for, and nothing is missing then
    monkeypatch.setattr("stallscope.apart._is_child", True)
    import_libraries()
    gc.freeze()


@pytest.mark.usefixtures("all_imported")
@pytest.mark.slow
def test_each_function_of_ours_may_fail(picture, tmp_path):
    """Batches and losses are unchanged, no hook is left, and the run names each failure."""
    plain = train(picture, 1)
    with planted(tmp_path / "book") as book:
        for came in book.rounds():
            with ss.instrumented(warmup=0) as watch:
                recorded = train(picture, 1)

            assert plain == recorded
            assert [] == leftovers.hooks()
            assert [] == _unsaid(came(), watch.run)
    reached = (
        "fetchers.Hooks.",
        "iterators.Iterations.",
        "find_ops.Ops.",
        "library_calls.Libraries.",
    )
    missed = {name for name in set(book.names) - book.came() if name.startswith(reached)}
    assert missed <= NOT_CALLED
    assert any(name.startswith("probe.Tasks.") for name in book.came())


def _unsaid(came: set[str], run: ss.Run) -> list[str]:
    """Return the failures that no note of a run names."""
    notes = "\n".join(run.notes)
    return [name for name in came if f"PlantedError('{name}')" not in notes]


def test_a_folder_that_is_deleted_in_mid_run(picture):
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
    """No file may grow, and a worker starts only then: the training goes on as before."""
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


ALWAYS_ON = ("__next__", "backward")
"""Hooks that stay on also where few batches of this process are recorded."""


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (dataloader._BaseDataLoaderIter, "__next__"),
        (PIL.Image, "open"),
        (torch.autograd, "backward"),
        (Scale, "__call__"),
    ],
)
def test_a_patch_over_a_hook_stays(picture, owner, name):
    """A patch that someone else applies while we record stays afterwards, and works."""
    plain = train(picture, 0)
    original, calls = vars(owner)[name], []
    with ss.instrumented(warmup=0):
        train(picture, 0)
        beneath = vars(owner)[name]
        assert beneath is not original or name not in ALWAYS_ON

        def theirs(*args, **named):
            calls.append(name)
            return beneath(*args, **named)

        setattr(owner, name, theirs)
        try:
            recorded = train(picture, 0)
        except BaseException:
            setattr(owner, name, original)
            raise
    try:
        assert theirs is vars(owner)[name]
        calls.clear()
        assert plain == recorded == train(picture, 0)
        assert calls
    finally:
        setattr(owner, name, original)
    assert [] == leftovers.hooks()


def test_a_script_goes_on_where_no_recording_can_begin(tmp_path, monkeypatch, capsys):
    """Torch imports as usual, and stderr says that nothing is recorded."""

    def full(*_: Any) -> int:
        raise WorkspaceError("no room")

    monkeypatch.setattr(stallscope.files, "log_capacity", full)
    saved: list[Any] = []
    with watching(tmp_path / "run", name="it", warmup=1, done=saved.append):
        batches = list(DataLoader(Stream(), 4))

    assert 2 == len(batches)
    assert [None] == saved
    assert "stallscope: no room" in capsys.readouterr().err


def test_a_script_that_deletes_its_own_recording_gets_an_error(tmp_path):
    """The error is not the one for a script without a loader."""
    batches: list[Any] = []
    with (
        pytest.raises(WorkspaceError, match="run was deleted while the script ran"),
        watching(tmp_path / "run", name="it", warmup=1, done=batches.append),
    ):
        batches += DataLoader(Stream(), 4)
        shutil.rmtree(tmp_path / "run")

    assert 2 == len(batches)


def test_failures_are_counted_over_all_processes(tmp_path):
    """Each kind of failure is one sentence, however often it occurred."""
    failures = Failures(tmp_path)
    for _ in range(9):
        failures.note("the waits", ValueError("planted"))
    elsewhere = Failures(tmp_path / "none")
    with elsewhere.within("the epochs"):
        raise KeyError("lost")

    (sentence,) = failures.sentences()
    assert sentence.startswith("the waits: ")
    assert "9 times or more (ValueError('planted'))" in sentence
    assert "KeyError('lost')" in next(elsewhere.sentences())
    with pytest.raises(KeyboardInterrupt), failures.within("the epochs"):
        raise KeyboardInterrupt
