"""The process that samples what is used while a recording goes on, ten times a second.

It has no part in the process that trains: it takes no lock of that interpreter, is no thread beside
a fork, and what psutil opens meets no hook. It ends when its standard input does, or when that
process is gone. It slows down where sampling would cost too much, and says what it costs.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Final

from stallscope.files import open_to_append
from stallscope.run.resource_sources import Missing, Recorded, Source, sources
from stallscope.stages import SAMPLER

if TYPE_CHECKING:
    from stallscope.run.resource_sources import Readings


EVERY_NS: Final = 100_000_000
SELDOM: Final = 5
"""Sources that change slowly are read with one sample in so many."""
MOST_SHARE: Final = 0.008
"""Of one core: a sample that costs more than this share of the pause after it makes that longer.
Below the 1% that is promised, because waking up costs, too."""
THINNED_AFTER: Final = 6000
"""Samples (ten minutes) after which the pause is doubled, and so on: a day is 20 MB at most."""
_NICE: Final = 10
"""Added to the niceness: with two programs on each core, samples are 0.2 s apart at most."""


def main(file: str, pid: str, has_gpu: str) -> None:
    """Sample until the recording ends.

    Args:
        file: for the samples, in the folder of the recording.
        pid: of the process that trains, which has started this one.
        has_gpu: 1 where torch sees a CUDA device, else 0.
    """
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    recorded = Recorded(int(pid), Path(file).parent)
    samples = Samples(Path(file), sources(recorded, has_gpu=has_gpu == "1"))
    if hasattr(os, "nice"):
        os.nice(_NICE)  # not earlier: busy cores would delay the first sample
    while not ended.wait(samples.pause_s()) and os.getppid() == recorded.main:
        samples.take()
    samples.take_last()
    os._exit(0)  # at once: somebody waits


def _wait_for_end(ended: threading.Event) -> None:
    os.read(0, 1)
    ended.set()


class Samples:
    """Samples of some sources, each a line of a file.

    Args:
        path: of the file.
        found: the sources, and what is missing.
    """

    def __init__(self, path: Path, found: list[Source | Missing]) -> None:
        self._file = open_to_append(path)
        self._sources = [source for source in found if isinstance(source, Source)]
        self._noted: set[str] = set()
        self._taken = 0
        self._latest_ns = self._due_ns = 0
        self._counted_ns = process_time_ns()
        for source in found:
            if isinstance(source, Missing):
                self._write(missing=source.resources)
                self._note([source.why] if source.why else [])
            else:
                self._write(limits=source.limits)

    def pause_s(self) -> float:
        """Return the seconds until the next sample is due."""
        return max(self._due_ns - perf_counter_ns(), 0) / 1e9

    def take(self) -> None:
        """Write a sample; a source that cannot be read any more is left out from then on."""
        self._latest_ns, read = perf_counter_ns(), {SAMPLER: {"": process_time_ns() / 1e9}}
        with_seldom = self._taken % SELDOM == 0
        for source in [one for one in self._sources if with_seldom or not one.seldom]:
            read |= self._read(source)
        self._taken += 1
        self._write(time_ns=self._latest_ns, read=read)
        pause_ns = EVERY_NS << self._taken // THINNED_AFTER
        costs_ns = process_time_ns() - self._counted_ns
        self._counted_ns += costs_ns
        self._due_ns = self._latest_ns + max(pause_ns, int(costs_ns / MOST_SHARE))

    def take_last(self) -> None:
        """Write the last sample, unless one was just taken; two are needed for a rate."""
        if perf_counter_ns() - self._latest_ns > EVERY_NS // 2 or self._taken == 1:
            self.take()

    def _read(self, source: Source) -> Readings:
        before_ns = process_time_ns()
        try:
            return source.read()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            self._sources.remove(source)
            self._note([f"could not be sampled any more: {source.name} ({error!r})"])
            return {}
        finally:
            self._note(source.notes)
            if source.paced:
                self._counted_ns += process_time_ns() - before_ns

    def _note(self, notes: list[str]) -> None:
        for note in notes:
            if note not in self._noted:
                self._noted.add(note)
                self._write(note=note)

    def _write(self, **line: object) -> None:
        with suppress(OSError):  # a full disk costs a sample
            os.write(self._file, (json.dumps(line) + "\n").encode("ascii"))
