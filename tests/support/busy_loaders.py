"""Loaders whose workers burn time where it is known, and trainings to look into from outside.

With `PYTHONPATH=tests`, `python -m support.busy_loaders --interrupts 20` counts what interrupts at
random moments leave behind, `--refused` tells how soon there is another way where py-spy may not
attach, and `--train 2` is a training with two workers, until it is killed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import stat
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import stallscope as ss
from stallscope import pyspy_calls
from support import leftovers

SAMPLED_S = 1.0
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
    """A transform that takes 60% of a sample's time."""

    def __init__(self, sample_s: float) -> None:
        self.seconds = 0.6 * sample_s

    def __call__(self, sample: Any) -> Any:
        return self.sixty(sample)

    def sixty(self, sample: Any) -> Any:
        """The named function."""
        spin(self.seconds)
        return sample


class TwentyFive:
    """A transform that takes 25% of a sample's time."""

    def __init__(self, sample_s: float) -> None:
        self.seconds = 0.25 * sample_s

    def __call__(self, sample: Any) -> Any:
        return self.twenty_five(sample)

    def twenty_five(self, sample: Any) -> Any:
        """The named function."""
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


class PlantedStream(IterableDataset):
    """A few of them as a stream, which ends."""

    def __init__(self, entries: int) -> None:
        self.entries = entries

    def __iter__(self) -> Any:
        inner = Planted()
        return (inner[index] for index in range(self.entries))


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
    return script(folder, _WITHOUT_PTRACE.format(python=sys.executable, program=program()))


def program() -> str:
    """The real py-spy."""
    return str(pyspy_calls.executable())


def script(folder: Path, text: str) -> Path:
    """A program that stands in for py-spy."""
    path = folder / "py-spy"
    path.write_text(text)
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


def interrupts(number: int, seed: int) -> tuple[int, int]:
    """Interrupt so many recordings at random moments.

    Returns:
        How many left nothing behind, and how many felt the interrupt.
    """
    rng = random.Random(seed)
    clean = felt = 0
    for _ in range(number):
        there, workers = leftovers.traces(), rng.choice([0, 2])
        state = torch.get_rng_state()
        felt += _interrupted(workers, rng.uniform(0, 1.6))
        left = [*leftovers.hooks(), *sorted(leftovers.since(there)), *py_spies()]
        if not torch.equal(state, torch.get_rng_state()):
            left.append("generators")
        clean += not left
        if left:
            print(f"with {workers} workers left {left}")
    return clean, felt


def _interrupted(workers: int, after_s: float) -> bool:
    loader = DataLoader(Planted(), 2, shuffle=True, num_workers=workers)
    interrupt = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.daemon = True
    try:
        interrupt.start()
        ss.flame(loader, seconds=0.7)
        interrupt.join()
        time.sleep(1)
    except KeyboardInterrupt:
        return True
    return False


def py_spies() -> list[str]:
    """The py-spys below this process."""
    return [child.name() for child in psutil.Process().children() if "py-spy" in child.name()]


def refused(folder: Path) -> None:
    """Print what a flame says, and how long it takes beside its sampling, where py-spy fails."""
    hangs = folder / "hangs"
    hangs.mkdir()
    cases = (
        ("workers that only CAP_SYS_PTRACE may look into", plain_py_spy(folder), undumpable),
        ("a py-spy that never answers", script(hangs, "#!/bin/sh\nexec sleep 600\n"), None),
    )
    for name, path, init in cases:
        pyspy_calls.executable = partial(Path, path)
        loader = DataLoader(Planted(), 2, num_workers=2, worker_init_fn=init)
        began = time.perf_counter()
        flame = ss.flame(loader, seconds=SAMPLED_S)
        more_s = time.perf_counter() - began - SAMPLED_S
        print(
            f"{name}: {flame.circumstances.how}, {more_s:.1f} s beside {SAMPLED_S:g} s of sampling"
        )
        print("\n".join(f"  {note}" for note in flame.notes))


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, help="with so many workers")
    parser.add_argument("--interrupts", type=int, help="how many")
    parser.add_argument("--refused", action="store_true", help="where py-spy may not attach")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    asked = parser.parse_args()
    if asked.train is not None:
        train(asked.train)
        return
    if asked.refused:
        with tempfile.TemporaryDirectory() as folder:
            refused(Path(folder))
        return
    clean, felt = interrupts(asked.interrupts, asked.seed)
    print(f"{asked.interrupts} interrupts of ss.flame at random moments, seed {asked.seed}:")
    print(f"{felt} came out as KeyboardInterrupt, {clean} left nothing behind")


if __name__ == "__main__":
    _main()
