"""Loaders whose workers burn time where it is known, and a training to look into from outside.

With `PYTHONPATH=tests`, `python -m support.busy_loaders 2` trains with two workers for ever.
"""

import ctypes
import stat
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from stallscope import pyspy_calls

_PR_SET_DUMPABLE = 4
_WITHOUT_PTRACE = """#!{python}
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 19, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_PTRACE
os.execv({program!r}, [{program!r}, *sys.argv[1:]])
"""


def spin(seconds: float) -> None:
    """Burn CPU time of this thread inside of Python's lock."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Sixty:
    def __init__(self, sample_s: float) -> None:
        self.seconds = 0.6 * sample_s

    def __call__(self, sample: Any) -> Any:
        return self.sixty(sample)

    def sixty(self, sample: Any) -> Any:
        spin(self.seconds)
        return sample


class TwentyFive:
    def __init__(self, sample_s: float) -> None:
        self.seconds = 0.25 * sample_s

    def __call__(self, sample: Any) -> Any:
        return self.twenty_five(sample)

    def twenty_five(self, sample: Any) -> Any:
        spin(self.seconds)
        return sample


class Planted(Dataset):
    """Samples of 10 ms or so: 60% and 25% in two transforms, and the rest here."""

    def __init__(self, entries: int = 4000, sample_s: float = 0.01) -> None:
        self.entries = entries
        self.rest_s = 0.15 * sample_s
        self.transform = Sixty(sample_s)
        self.target_transform = TwentyFive(sample_s)

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> torch.Tensor:
        spin(self.rest_s)
        return self.transform(self.target_transform(torch.full((4,), float(index))))


class Raises(Planted):
    """A dataset with a mistake."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 60:
            raise LookupError("no sixty here")
        return super().__getitem__(index)


def undumpable(_: int = 0) -> None:
    """Make this process one that only CAP_SYS_PTRACE may look into; a `worker_init_fn`."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def plain_py_spy(folder: Path) -> Path:
    """The real py-spy, without the right to look into everything."""
    path, program = folder / "py-spy", str(pyspy_calls.executable())
    path.write_text(_WITHOUT_PTRACE.format(python=sys.executable, program=program))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def train(workers: int) -> None:
    """A training that goes on until it is killed; prints its workers' process ids first."""
    loader = DataLoader(Planted(1_000_000), 2, num_workers=workers)
    batches = iter(loader)
    next(batches)
    print(*[process.pid for process in getattr(batches, "_workers", ())], flush=True)
    for number, _ in enumerate(batches):
        print(number, flush=True)


if __name__ == "__main__":
    train(int(sys.argv[1]))
