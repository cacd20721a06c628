"""Where the processes of a recording write, what they leave there, and how that stays small.

The recording is divided into stretches of time. Every log begins another file with each stretch.
Where all files together become larger than they may, whole stretches are deleted, those of all
processes alike: what is left covers the recording from its beginning to its end, and in each
stretch that is left steps, batches and samples belong together.
"""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from stallscope.files import open_to_append
from stallscope.hooks.failures import Failures

if TYPE_CHECKING:
    from pathlib import Path


OUTER: Final = 0
"""The loader that a recording iterates itself, when that is no torch DataLoader."""
AROUND: Final = -1
"""What other libraries put around loaders; each iteration of it is an epoch of its own."""
EPOCHS: Final = 1 << 20
"""A loader's epochs are fewer."""
COST_SHARE_DRIVEN: Final = 0.02
"""Share of the batches' time that recording may cost in a loop that stallscope runs itself ..."""
COST_SHARE_WATCHED: Final = 0.01
"""... and in a training of the user's, which must not become slower."""
_STRETCH_NS: Final = 1 << 33
"""Nine seconds: hundreds of steps of a training, and files of a few MB."""
_MOST_BYTES: Final = 256 << 20
"""All logs of a recording together; the tables made of them take several times as much memory."""
_LATEST: Final = 2
"""Stretches at the end that are always kept: processes are still writing them."""
_LEAST_BYTES: Final = 1 << 16
"""A file counts for so much at least: thousands of small ones take long to list."""
_MOST_EVERY: Final = 1 << 30
_OVER: Final = "over"
_GOLDEN: Final = 0x9E3779B1
"""2**32 over the golden ratio, Fibonacci hashing: Knuth, The Art of Computer Programming, 6.4."""


def epoch_key(loader: int, epoch: int) -> int:
    """Return one number for an epoch of a loader."""
    return loader * EPOCHS + epoch


def loader_and_epoch(key: int) -> tuple[int, int]:
    """Return the numbers of a loader and its epoch."""
    return divmod(key, EPOCHS)


def is_chosen(number: int, every: int) -> bool:
    """Return whether a batch, or a stretch, is the one of so many that is recorded.

    Not each k-th: slow samples often come with a period of their own, which would always be met,
    or never. What is chosen of twice as many is chosen of so many, too; number 0 always is.
    """
    return (number * _GOLDEN & 0xFFFFFFFF) * every >> 32 == 0


@dataclass(frozen=True)
class LogPlace:
    """Where the processes of one recording put their logs.

    They agree on the stretches without a word: a stretch is a number that follows from the clock.
    """

    folder: Path
    """Private folder of the recording."""
    capacity: int
    """Words of each file of a log."""
    most_bytes: int = _MOST_BYTES
    """All logs together: stretches are deleted before they take much more."""
    stretch_ns: int = _STRETCH_NS
    origin_ns: int = field(default_factory=perf_counter_ns)
    """When the recording began."""
    stands_by: bool = False
    """Whether each worker stands by to sample its own stacks, see `hooks.self_sampler`."""
    cost_share: float = COST_SHARE_WATCHED
    """Share of the batches' time that recording may cost; above it, only some are recorded."""

    def logs(self) -> list[Path]:
        """Return all files of logs that there are by now."""
        return sorted(self.folder.glob("*.events"))

    @property
    def failures(self) -> Failures:
        """What failed in stallscope itself while it recorded."""
        return Failures(self.folder)

    def resources(self) -> Path:
        """Return the path of the samples of resources, see `stallscope.stages`."""
        return self.folder / "samples.resources"

    def end(self) -> None:
        """End the recording: no process begins another file."""
        with suppress(OSError):
            os.close(open_to_append(self.folder / _OVER))

    def is_over(self) -> bool:
        """Return whether the recording has ended, and its folder with it maybe."""
        return not self.folder.exists() or (self.folder / _OVER).exists()

    def stretch(self) -> int:
        """Return the number of the stretch that it is time for."""
        return (perf_counter_ns() - self.origin_ns) // self.stretch_ns

    def stretch_ends_ns(self) -> int:
        """Return when the next stretch begins."""
        return self.origin_ns + (self.stretch() + 1) * self.stretch_ns

    def thin(self) -> None:
        """Delete stretches until half of the space is free, if more of it is used than may be."""
        files: dict[int, list[Path]] = defaultdict(list)
        used: dict[int, int] = defaultdict(int)
        with os.scandir(self.folder) as entries:
            for entry in entries:
                stem, _, suffix = entry.name.partition(".")
                if suffix in ("events", "paths"):
                    with suppress(OSError, ValueError):  # one that is deleted just now, or no log
                        number = int(stem.rpartition("-")[2])
                        used[number] += max(entry.stat().st_size, _LEAST_BYTES)
                        files[number].append(self.folder / entry.name)
        if sum(used.values()) <= self.most_bytes:
            return
        for number in files.keys() - self._kept(used):
            for path in files[number]:
                with suppress(OSError):  # on Windows one that is being written stays
                    path.unlink()

    def _kept(self, used: dict[int, int]) -> set[int]:
        """Choose the stretches that leave half of the space free, spread as evenly as can be.

        The latest are as large as they are: files in which there is still room to write.
        """
        latest = {number for number in used if number > max(used) - _LATEST}
        most = self.most_bytes - sum(used[number] for number in latest)
        most = max(most, self.most_bytes // 2) // 2
        every, kept = 1, used.keys() - latest
        while sum(used[number] for number in kept) > most and every < _MOST_EVERY:
            every *= 2
            kept = {number for number in kept if is_chosen(number, every)}
        return kept | latest
