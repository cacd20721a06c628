"""Process that samples the use of resources during a recording, ten times a second.

It is separate from the training process: it takes no lock of that interpreter, adds no thread
before a fork, and no hook sees the files of psutil. It ends when its standard input or the training
process ends. It slows down to limit its overhead, and reports that overhead.
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
from stallscope.run.resource_sources import Missing, Recorded, Source, sources, words
from stallscope.stages import SAMPLER

if TYPE_CHECKING:
    from stallscope.run.resource_sources import Readings


EVERY_NS: Final = 100_000_000
SELDOM: Final = 5
"""Slowly changing sources are read with every fifth sample."""
MOST_SHARE: Final = 0.008
"""Share of one core that sampling may cost; a more expensive sample makes the next pause longer.
Below the promised 1%, because waking up costs, too."""
THINNED_AFTER: Final = 6000
"""Samples (ten minutes) after which the pause doubles each time: a day takes 20 MB at most."""
_NICE: Final = 10
"""Added niceness: with two programs on each core, samples are 0.2 s apart at most."""


def main(file: str, pid: str, has_gpu: str) -> None:
    """Sample into a file until the recording ends; `pid` is the training process, the parent."""
    ended = threading.Event()

    def wait_for_end() -> None:
        os.read(0, 1)
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    recorded = Recorded(int(pid), Path(file).parent)
    samples = Samples(Path(file), sources(recorded, has_gpu=has_gpu == "1"))
    if hasattr(os, "nice"):
        os.nice(_NICE)  # not earlier: busy cores would delay the first sample
    while not ended.wait(samples.pause_s()) and os.getppid() == recorded.main:
        samples.take()
    samples.take_last()
    os._exit(0)  # at once: the training process waits


class Samples:
    """Samples of some sources, each a line of a file."""

    def __init__(self, path: Path, available: list[Source | Missing]) -> None:
        self._file = open_to_append(path)
        self._sources = [source for source in available if isinstance(source, Source)]
        self._taken = 0
        self._latest_ns = self._due_ns = 0
        self._counted_ns = process_time_ns()
        for source in available:
            if isinstance(source, Missing):
                self._write(missing=source.resources)
                if source.why:
                    self._write(note=source.why)
            else:
                self._write(limits=source.limits)

    def pause_s(self) -> float:
        """Return the seconds until the next sample is due."""
        return max(self._due_ns - perf_counter_ns(), 0) / 1e9

    def take(self) -> None:
        """Write a sample; a source that fails is left out from then on."""
        self._latest_ns, read = perf_counter_ns(), {SAMPLER: {"": process_time_ns() / 1e9}}
        with_seldom = self._taken % SELDOM == 0
        for source in [*self._sources]:  # `_read` removes a source that fails
            read |= self._read(source) if with_seldom or not source.seldom else {}
        self._taken += 1
        self._write(time_ns=self._latest_ns, read=read)
        pause_ns = EVERY_NS << self._taken // THINNED_AFTER
        costs_ns = process_time_ns() - self._counted_ns
        self._counted_ns += costs_ns
        self._due_ns = self._latest_ns + max(pause_ns, int(costs_ns / MOST_SHARE))

    def take_last(self) -> None:
        """Write a last sample, unless the latest is recent; a rate needs two samples."""
        if perf_counter_ns() - self._latest_ns > EVERY_NS // 2 or self._taken == 1:
            self.take()

    def _read(self, source: Source) -> Readings:
        before_ns = process_time_ns()
        try:
            return source.read()
        except Exception as error:  # noqa: BLE001 - the other sources go on
            self._sources.remove(source)
            self._write(
                note=f"could not be sampled any more: {words(source.resources)} ({error!r})"
            )
            return {}
        finally:
            if source.paced:
                self._counted_ns += process_time_ns() - before_ns

    def _write(self, **line: object) -> None:
        with suppress(OSError):  # a full disk costs a sample
            os.write(self._file, (json.dumps(line) + "\n").encode("ascii"))
