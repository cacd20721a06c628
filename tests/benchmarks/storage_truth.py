"""Check `ss.storage` against simulated devices and against fio.

Planted devices answer after a latency, so many requests at once, and hand bytes over at a bandwidth
that all share. What a sample takes with one reader and the most samples a second are right within
15%. Then the kit reads one file on this machine's disk as fio does, each in turn: small pieces
anywhere and large ones in order, cold and warm. A cold reading of which the page cache held more
than a tenth is a failure, whatever it says.


    python tests/benchmarks/storage_truth.py
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchkit.command import Option, arguments, met, table
from torch.utils.data import DataLoader, Dataset

import stallscope as ss
from stallscope.bench.measurement import Measurement
from stallscope.units import seconds, size
from stallscope.verbs.storage import reads
from stallscope.verbs.storage.reads import (
    COLD,
    MOST_BYTES,
    RANDOM,
    SAMPLE,
    SEQUENTIAL,
    WARM,
    data_files,
    make_cold,
    requests,
    timed,
)
from stallscope.verbs.storage.storage import StorageProbe

WITHIN = 0.15
pread = os.pread
FILE_BYTES = 100_000
FILES = 400
DEVICES = {
    "5 ms, one at a time": (0.005, 1e9, 1),
    "10 ms, 4 at once": (0.010, 1e9, 4),
    "20 ms, as many as come": (0.020, 1e9, 64),
    "1 ms, 20 MB/s shared": (0.001, 20e6, 64),
}
"""Latency (s), bandwidth (bytes/s), requests at once."""
PARTS = ["planted", "fio"]
FIO_BYTES = 256 << 20
FIO = {(RANDOM, 4096): "randread", (SEQUENTIAL, 1 << 20): "read"}

FIO_IO = {
    ("randread", COLD): 8 << 20,
    ("randread", WARM): 256 << 20,
    ("read", COLD): MOST_BYTES,
    ("read", WARM): 4 << 30,
}
"""Bytes that fio reads: cold as many as the kit, as the first ones of a file come slower; warm so
many that it takes long beside its start."""
AS_THE_KIT = ("--iomem_align=4096", "--fadvise_hint=0")
"""fio's own defaults copy into memory that begins in the middle of a page, which takes this
machine's kernel five times as long (its `ratio` was 7 for that alone), and ask for twice the
reading ahead."""


class Planted:
    """A device that is as slow as it says."""

    def __init__(self, latency_s: float, bytes_per_s: float, at_once: int) -> None:
        self.latency_s, self.bytes_per_s = latency_s, bytes_per_s
        self.at_once = at_once
        self._slots, self._wire = threading.Semaphore(at_once), threading.Lock()

    def read(self, file: int, length: int, offset: int) -> bytes:
        with self._slots:
            time.sleep(self.latency_s)
            with self._wire:
                time.sleep(length / self.bytes_per_s)
                return pread(file, length, offset)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Read as from a disk on which everything is cold."""
        with (
            patch.object(os, "pread", self.read),
            patch.object(reads, "drop", lambda *_: True),
            patch.object(reads, "resident_bytes", lambda *_: 0),
        ):
            yield

    def expected(self, readers: int) -> tuple[float, float]:
        """Return the seconds of a sample with one reader, and samples a second with this many."""
        one_s = self.latency_s + FILE_BYTES / self.bytes_per_s
        most = min(readers, self.at_once) / one_s
        return one_s, min(most, self.bytes_per_s / FILE_BYTES)


class Files(Dataset[int]):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return len(self.paths[index].read_bytes())


def main() -> None:
    options = arguments(
        __doc__ or "",
        budget=Option(30.0, 1.0, "seconds for each planted device"),
        rounds=Option(5, 1, "readings of each kind beside fio"),
        folder=Option("", "", "where files are made; a disk, no tmpfs"),
        parts=Option(PARTS, ["planted", "fio"], "what is measured"),
    )
    parts: dict[str, Callable[[Path], None]] = {
        "planted": lambda folder: planted(folder, options.budget),
        "fio": lambda folder: beside_fio(folder / "large", options.rounds),
    }
    for part in options.parts:
        with tempfile.TemporaryDirectory(dir=options.folder or None) as name:
            parts[part](Path(name))


def planted(folder: Path, budget_s: float) -> None:
    """Check that planted devices are found."""
    for number in range(FILES):
        (folder / f"{number:03}").write_bytes(os.urandom(FILE_BYTES))
    loader = DataLoader(Files(folder), 8, num_workers=1)
    target = ss.target(loader, step=ss.simulated_step(0.02))
    rows, wrong = [], 0
    for name, device in DEVICES.items():
        storage = Planted(*device)
        probe = StorageProbe(target, Measurement("storage", budget_s))
        with storage.installed():
            probe.run()
        result = probe.result()
        cold = result.of(SAMPLE, COLD)
        if not cold:  # too short a run
            rows.append((name, *["—"] * 5))
            continue
        most = max(cold, key=lambda row: row["requests_per_s"])
        one_s, rate = cold[0]["latency_s"], most["requests_per_s"]
        one_real_s, rate_real = storage.expected(most["readers"])
        off = max(abs(one_s / one_real_s - 1), abs(rate / rate_real - 1))
        wrong += off > WITHIN
        speed = f"{rate:,.0f}/s with {most['readers']}"
        rows.append(
            (name, seconds(one_s), seconds(one_real_s), speed, f"{rate_real:,.0f}/s", f"{off:.0%}")
        )
    print(table(("planted", "a sample", "truth", "samples", "truth", "off"), rows))
    print(f"within {WITHIN:.0%}: {len(rows) - wrong} of {len(rows)}: {met(not wrong)}\n")


def beside_fio(path: Path, rounds: int) -> None:
    """Compare our figures with fio's on the same file, in turn."""
    fio = shutil.which("fio")
    with path.open("wb") as file:
        for _ in range(FIO_BYTES >> 20):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    files = data_files([str(path)])
    rows, really_warm = [], 0
    for (access, length), mode in FIO.items():
        for state in (COLD, WARM):
            ours, theirs = [], []
            for number in range(2 * rounds):
                if (number + number // 2) % 2 == 0:  # ours, fio, fio, ours
                    measured = _ours(files, access, length, state, number)
                    really_warm += state == COLD and (measured.cached_share or 0.0) > 0.1
                    ours.append((measured.bytes / measured.took_s, measured.latency_s))
                elif fio:
                    theirs.append(_fio(fio, path, mode, length, state))
            mine = [median(column) for column in zip(*ours, strict=True)]
            reference = [median(column) for column in zip(*theirs, strict=True)] or [math.nan] * 2
            rows.append(
                (
                    f"{size(length)} {access}, {state}",
                    *(
                        f"{size(mine[0])}/s",
                        f"{size(reference[0])}/s",
                        f"{mine[0] / reference[0]:.2f}",
                    ),
                    *(seconds(mine[1]), seconds(reference[1]), f"{mine[1] / reference[1]:.2f}"),
                )
            )
    peer = "fio" if fio else "no fio"
    print(table(("one reader", "bytes", peer, "ratio", "one takes", peer, "ratio"), rows))
    print(f"cold readings that were warm: {really_warm}: {met(not really_warm)}")
    if really_warm:
        sys.exit(1)


def _ours(files: Any, access: str, length: int, state: str, number: int) -> Any:
    wanted = requests(files, access, length, number)
    if state == COLD:
        make_cold(wanted)
    else:
        timed(wanted, 1, 20.0)
    return timed(wanted, 1, 20.0, readahead=access != RANDOM)


def _fio(fio: str, path: Path, mode: str, length: int, state: str) -> tuple[float, float]:
    """Bytes a second, and the median of what one request takes, seconds."""
    asked = [*AS_THE_KIT, f"--rw={mode}", f"--bs={length}", f"--filename={path}", "--name=one"]
    asked += ["--readonly", "--ioengine=psync", "--output-format=json", f"--size={FIO_BYTES}"]
    asked += [f"--invalidate={int(state == COLD)}", f"--io_size={FIO_IO[mode, state]}"]
    if state == WARM:
        path.read_bytes()
    out = subprocess.run([fio, *asked], check=True, capture_output=True, text=True).stdout
    read = json.loads(out)["jobs"][0]["read"]
    return float(read["bw_bytes"]), read["clat_ns"]["percentile"]["50.000000"] / 1e9


if __name__ == "__main__":
    main()
