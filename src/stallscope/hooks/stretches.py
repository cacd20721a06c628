"""Stretches of time: what keeps the logs of a recording small, however long it is.

Every process writes a file a stretch: some seconds later, or when it is half full, the next one
begins. Where all files together become larger than they may, whole stretches are deleted, those of
all processes alike. What is left covers the recording from its beginning to its end, and in each
stretch that is left steps, batches and samples belong together. A process that was killed, and one
that is still writing, can be read like any other: a file is whole or not there.
"""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from stallscope.files import open_to_append

if TYPE_CHECKING:
    from pathlib import Path


STRETCH_NS: Final = 1 << 33
"""Nine seconds: hundreds of steps of a training, and files of a few MB."""
MOST_BYTES: Final = 256 << 20
"""All logs of a recording together; the tables made of them take several times as much memory."""
LATEST: Final = 2
"""So many stretches at the end are always kept: processes are still writing them."""
_LEAST_BYTES: Final = 1 << 16
"""A file counts for so much at least: thousands of small ones take long to list."""
_MOST_EVERY: Final = 1 << 30
_OVER: Final = "over"
_GOLDEN: Final = 0x9E3779B1
"""2**32 over the golden ratio, Fibonacci hashing: Knuth, The Art of Computer Programming, 6.4."""


def is_chosen(number: int, every: int) -> bool:
    """Whether a batch, or a stretch, is the one of so many that is recorded.

    Not each k-th: slow samples often come with a period of their own, which would always be met,
    or never. What is chosen of twice as many is chosen of so many, too; number 0 always is.
    """
    return (number * _GOLDEN & 0xFFFFFFFF) * every >> 32 == 0


@dataclass(frozen=True)
class Stretches:
    """The stretches of a recording, as its processes know them.

    They agree on them without a word: a stretch is a number that follows from the clock.
    """

    folder: Path
    """Private folder of the recording."""
    origin_ns: int
    """`perf_counter_ns()` when the recording began."""
    length_ns: int = STRETCH_NS
    most_bytes: int = MOST_BYTES

    def now(self) -> int:
        """Number of the stretch that it is time for."""
        return (perf_counter_ns() - self.origin_ns) // self.length_ns

    def next_ns(self) -> int:
        """When the next one begins; before that nobody needs to look."""
        return self.origin_ns + (self.now() + 1) * self.length_ns

    def new_path(self, worker: int, suffix: str) -> Path:
        """Where this process writes in this stretch: a file that there was never before."""
        name = f"{os.getpid()}-{worker}-{perf_counter_ns()}-{self.now()}"
        return self.folder / f"{name}{suffix}"

    def end(self) -> None:
        """No process begins another file."""
        with suppress(OSError):
            os.close(open_to_append(self.folder / _OVER))

    def is_over(self) -> bool:
        """Whether the recording has ended, and its folder with it maybe."""
        return not self.folder.exists() or (self.folder / _OVER).exists()

    def thin(self) -> None:
        """Delete stretches until half of the space is free, if more of it is used than may be."""
        files: dict[int, list[Path]] = defaultdict(list)
        used: dict[int, int] = defaultdict(int)
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError, ValueError):  # one that is deleted just now, or no log
                    number = int(entry.name.partition(".")[0].rpartition("-")[2])
                    used[number] += max(entry.stat().st_size, _LEAST_BYTES)
                    files[number].append(self.folder / entry.name)
        if sum(used.values()) <= self.most_bytes:
            return
        kept = self._kept(used)
        for number in files.keys() - kept:
            for path in files[number]:
                with suppress(OSError):  # on Windows one that is being written stays
                    path.unlink()

    def _kept(self, used: dict[int, int]) -> set[int]:
        """The stretches that leave half of the space free, spread as evenly as can be.

        The latest are as large as they are: files in which there is still room to write.
        """
        latest = {one for one in used if one > max(used) - LATEST}
        most = self.most_bytes - sum(used[one] for one in latest)
        most = max(most, self.most_bytes // 2) // 2
        every, kept = 1, used.keys() - latest
        while sum(used[one] for one in kept) > most and every < _MOST_EVERY:
            every *= 2
            kept = {one for one in kept if is_chosen(one, every)}
        return kept | latest
