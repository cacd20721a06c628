"""Whatever goes wrong in stallscope itself: the training goes on as without it, the run says so."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from support import leftovers
from support.planted_failures import import_all, import_libraries, planted
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import stallscope as ss
import stallscope.isolation.workspace
from stallscope.errors import WorkspaceError
from stallscope.hooks.failures import Failures
from stallscope.run.script import watching

NOT_CALLED = {
    "iterators.Iterations._adopted",
    "iterators.Iterations.living",
    "iterators.Iterations.raised",
    "ops.Ops._cannot",
}
"""Functions of the central classes that a training that goes well does without."""


class Scale:
    """An op with a class."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


class Pictures(Dataset):
    """Reads, decodes and transforms, by ops that stand in a container and functions in a list."""

    def __init__(self, picture: Path) -> None:
        self.picture = picture
        self.transform = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity()))
        self.ops = [Scale(0.5), Scale(0.25), lambda x: x + 1]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 5 == 0:
            gc.collect()
        with ss.stage("named"):
            x = self.load_picture() + index + torch.rand(3)
        for op in self.ops:
            x = op(x)
        return nn.Sequential(self.transform)(x)

    def load_picture(self) -> torch.Tensor:
        with PIL.Image.open(self.picture) as picture:
            return torch.tensor(np.asarray(picture.resize((1, 1))).reshape(3) / 255.0).float()


class Bulk(Pictures):
    """Makes a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """Makes samples without an index."""

    def __iter__(self) -> Any:
        for number in range(7):
            yield torch.full((3,), float(number))


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


def train(picture: Path, workers: int) -> list[Any]:
    """Batches and losses of a training over three loaders."""
    torch.manual_seed(0)
    seen: list[Any] = []
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loaders = [
        DataLoader(Bulk(picture), 4),
        DataLoader(Stream(), 4),
        DataLoader(
            Pictures(picture), 2, shuffle=True, num_workers=workers,
            persistent_workers=workers > 0,
        ),
    ]  # fmt: skip
    for loader in loaders:
        for _ in range(2):
            for batch in loader:
                with ss.stage("step"):
                    loss = model(batch).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                seen += [batch.tolist(), loss.item()]
        gc.collect()
    return seen


@pytest.mark.parametrize(
    ("workers", "after"),
    [
        (0, False),
        pytest.param(1, False, marks=pytest.mark.slow),
        pytest.param(1, True, marks=pytest.mark.thorough),
    ],
)
def test_each_function_of_ours_may_fail(picture, workers, after, monkeypatch):
    """Batches and losses are those without us, nothing is left on, the run names each failure."""
    # A child that fails while it reads is made up for, and nothing is missing then
    monkeypatch.setattr("stallscope.apart._is_child", True)
    if workers:
        import_libraries()
        gc.freeze()
    plain = train(picture, workers)
    with planted(after=after) as book:
        before = None
        while before != (before := book.came()):
            with ss.instrumented(warmup=0) as watch:
                recorded = train(picture, workers)

            came = book.came() - before
            assert plain == recorded
            assert [] == leftovers.hooks()
            said = "\n".join(watch.run.notes)
            assert [] == [name for name in came if f"PlantedError('{name}')" not in said]
    reached = {"fetchers.Hooks.", "iterators.Iterations.", "ops.Ops.", "library_calls.Libraries."}
    missed = {name for name in set(book.names) - book.came() if name.startswith(tuple(reached))}
    assert missed <= NOT_CALLED or not workers


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

    monkeypatch.setattr(stallscope.isolation.workspace, "log_capacity", full)
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
