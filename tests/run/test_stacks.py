"""Stacks that a training's processes sample themselves while the training is watched."""

import inspect
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import stallscope as ss
from stallscope.hooks import self_sampler
from stallscope.views.redact import redacted


def squares(numbers: list[float]) -> torch.Tensor:
    """Return the squares, as the user's own function with one slow line."""
    return torch.stack([torch.tensor(number * number) for number in numbers])


LINE = inspect.getsourcelines(squares)[1] + 2
PLACE = f"squares ({Path(__file__).name}:{LINE})"


class Squares(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return squares([float(index)] * 500)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Sample so often that two seconds on a busy machine have windows."""
    for name, value in {"_GAP_S": 0.5, "_CPU_SHARE": 1.0}.items():
        monkeypatch.setattr(self_sampler, name, value)


def watched(workers: int, seconds: float = 2.0) -> tuple[ss.Run, list[torch.Tensor]]:
    """Return the run of a loop that hardly computes, and its first batches."""
    batches = []
    with ss.instrumented(warmup=1) as watch:
        end = time.monotonic() + seconds
        for batch in DataLoader(Squares(), batch_size=4, num_workers=workers):
            batches.append(batch)
            if time.monotonic() > end:
                break
    return watch.run, batches[:3]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_verdict_names_function_and_line(workers, tmp_path):
    """The verdict of the saved run agrees; that of a redacted run names the function alone."""
    run, _ = watched(workers)

    text = str(ss.diagnose(run))
    assert PLACE in text
    assert "a list becomes a tensor element by element" in text
    assert str(ss.diagnose(ss.load(run.save(tmp_path / "run")))) == text
    clean = redacted(run)
    assert clean.all_stacks["hits"].sum() == run.all_stacks["hits"].sum()
    assert not clean.all_stacks["stack"].str.contains(Path(__file__).stem).any()
    assert clean.all_stacks["stack"].str.contains("torch/utils/data/_utils/fetch.py").any()
    assert "squares" in ss.diagnose(clean).verdict.title


def test_a_failure_is_a_note(monkeypatch):
    """The batches are those of a loop without stallscope, and the run names what is missing."""

    def fails(*_, **__):
        raise MemoryError("no stacks today")

    monkeypatch.setattr(self_sampler, "sample", fails)
    run, batches = watched(2, 1.0)

    assert all(map(torch.equal, batches, DataLoader(Squares(), batch_size=4)))
    assert run.all_stacks.is_empty()
    assert any("no stacks today" in note for note in run.notes)
