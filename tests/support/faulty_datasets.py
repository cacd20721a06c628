"""Importable datasets, batches and samplers for the tests of faults and of unusual users."""

import io
import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import polars as pl
import torch
from PIL import Image
from torch.utils.data import Dataset, get_worker_info

import stallscope as ss
from support.loaders import Noise


class Hangs(Noise):
    """Never comes back from one sample."""

    def __init__(self, entries: int = 64, bad: int = 9) -> None:
        super().__init__(entries)
        self.bad = bad

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.bad:
            self.load_for_ever()
        return super().__getitem__(index)

    def load_for_ever(self) -> None:
        time.sleep(3600)


class Refuses(Noise):
    """Counts what it is asked for (in the process that asks), and refuses one index."""

    asked = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        if index == 9:
            raise LookupError("no nine here")
        return super().__getitem__(index)


class Swallows(Noise):
    """Each fourth of its samples is no image, and comes as None."""

    def __getitem__(self, index: int) -> torch.Tensor | None:
        try:
            if index % 4 == 3:
                Image.open(io.BytesIO(b"no image"))
            return super().__getitem__(index)
        except OSError:
            return None


def without_none(samples: list[Any]) -> torch.Tensor:
    return torch.stack([sample for sample in samples if sample is not None])


class Whose(Dataset):
    """Samples that tell which worker made them; one worker is slow."""

    def __init__(self, entries: int = 48, slow: int = -1) -> None:
        self.entries = entries
        self.slow = slow

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        worker = info.id if info else -1
        if worker == self.slow:
            time.sleep(0.03)
        return torch.tensor([float(index), float(worker)])


class Parsed(Noise):
    """Names parts of `__getitem__`: nested, by itself again, and one that raises."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with ss.stage("read it", kind="fetch"):
            time.sleep(0.001)
            depth = self.down(2)
            try:
                self.refuses()
            except ValueError:
                return super().__getitem__(index) + depth
        raise AssertionError

    @ss.stage("down")
    def down(self, left: int) -> int:
        return 1 + self.down(left - 1) if left else 0

    @ss.stage("refuses")
    def refuses(self) -> None:
        raise ValueError


class Opaque:
    """A batch of a class of the user's, without `to`."""

    def __init__(self, samples: list[torch.Tensor]) -> None:
        self.samples = samples


class Movable(Opaque):
    """One that moves itself, and returns nothing."""

    moved = False

    def to(self, device: Any) -> None:
        self.moved = True


class Record(dict):
    """A mapping with something beside its items."""

    size = 0


def as_record(samples: list[torch.Tensor]) -> Record:
    record = Record(x=torch.stack(samples))
    record.size = len(samples)
    return record


def as_nested(samples: list[torch.Tensor]) -> Any:
    """Collate into what holds tensors, numbers and text, deep inside."""
    return {"a": [torch.stack(samples), ("text", 3)], "b": {"c": None, "n": len(samples)}}


def as_texts(samples: list[torch.Tensor]) -> list[str]:
    return [f"{sample.sum():.3f}" for sample in samples]


def as_ragged(samples: list[torch.Tensor]) -> torch.Tensor:
    """Collate into batches whose shape varies with their content."""
    return torch.cat([sample[: 1 + int(sample[0]) % 4] for sample in samples])


class StandsStill(Hangs):
    """Stands still in one of several ways, and tells the process that waits."""

    def __init__(self, how: str = "sleep", bad: int = 9) -> None:
        super().__init__(bad=bad)
        self.how = how
        self.stands = multiprocessing.Event()

    def load_for_ever(self) -> None:
        self.stands.set()
        if self.how == "goes on":
            return
        if self.how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.how == "deadlock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        while self.how == "endless loop":
            pass
        super().load_for_ever()


def as_generator(samples: list[torch.Tensor]) -> Any:
    """Collate into what no worker can send."""
    return (sample for sample in samples)


class SlowToSend(Noise):
    """Takes its time to be pickled for a worker, and counts how often it was."""

    sent = 0

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(64)
        self.seconds = seconds

    def __getstate__(self) -> dict[str, Any]:
        SlowToSend.sent += 1
        time.sleep(self.seconds)
        return vars(self)


class UsesPolars(Noise):
    """Computes with polars, as nobody can who was forked from a process that has done so."""

    bad = 0

    def __init__(self) -> None:
        super().__init__(400)
        self.stands = multiprocessing.Event()

    def __getitem__(self, index: int) -> torch.Tensor:
        self.stands.set()
        table = pl.DataFrame({"k": [0, 1] * 8, "v": [float(index)] * 16})
        value = table.filter(pl.col("k") == 1).select(pl.col("v").sum()).item()
        return torch.tensor(value)
