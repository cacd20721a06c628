"""Folder of a recording: its processes write logs there, within a limit of space.

The recording is divided into stretches of time. Every log begins a new file with each stretch.
Above the limit, whole stretches of all processes are deleted. The remaining stretches cover the
recording from its beginning to its end, and in each of them steps, batches and samples belong
together.
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
"""Number of the recorded loader, if it is not a torch DataLoader."""
AROUND: Final = -1
"""Number of other libraries' loader wrappers; each of their iterations is an epoch."""
EPOCHS: Final = 1 << 20
"""Upper bound of a loader's epochs."""
COST_SHARE_DRIVEN: Final = 0.02
"""Share of the batches' time that recording may cost in a loop that stallscope runs itself ..."""
COST_SHARE_WATCHED: Final = 0.01
"""... and in a training of the user's, which must not become slower."""
_STRETCH_NS: Final = 1 << 33
"""Nine seconds: hundreds of steps of a training, and files of a few MB."""
_MOST_BYTES: Final = 256 << 20
"""Limit for all logs of a recording; their tables take several times as much memory."""
_LATEST: Final = 2
"""Stretches at the end that are never deleted: processes are still writing them."""
_LEAST_BYTES: Final = 1 << 16
"""Smallest size that a file counts for: thousands of small files take long to list."""
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
    """Return True for about one number in `every`: batches to record, stretches to keep.

    The choice is not periodic: it would always or never meet slow samples with a period of their
    own. Numbers chosen for twice `every` are also chosen for `every`; number 0 always is.
    """
    return (number * _GOLDEN & 0xFFFFFFFF) * every >> 32 == 0


@dataclass(frozen=True)
class LogPlace:
    """Folder and limits of one recording, shared by its processes.

    Processes need no communication about stretches: the clock gives a stretch's number.
    """

    folder: Path
    """Private folder of the recording."""
    capacity: int
    """Words of each file of a log."""
    most_bytes: int = _MOST_BYTES
    """Limit for all logs, above which stretches are deleted."""
    stretch_ns: int = _STRETCH_NS
    origin_ns: int = field(default_factory=perf_counter_ns)
    """Begin of the recording."""
    stands_by: bool = False
    """True if each worker can sample its own stacks on request, see `hooks.self_sampler`."""
    cost_share: float = COST_SHARE_WATCHED
    """Limit of the overhead as a share of the batches' time; above, batches are skipped."""

    def logs(self) -> list[Path]:
        """Return all current files of logs."""
        return sorted(self.folder.glob("*.events"))

    @property
    def failures(self) -> Failures:
        """Internal errors of the recording."""
        return Failures(self.folder)

    def resources(self) -> Path:
        """Return the file of resource samples, see `stallscope.stages`."""
        return self.folder / "samples.resources"

    def end(self) -> None:
        """End the recording: processes begin no new files."""
        with suppress(OSError):
            os.close(open_to_append(self.folder / _OVER))

    def is_over(self) -> bool:
        """Return True if the recording has ended or its folder is gone."""
        return not self.folder.exists() or (self.folder / _OVER).exists()

    def stretch(self) -> int:
        """Return the number of the current stretch."""
        return (perf_counter_ns() - self.origin_ns) // self.stretch_ns

    def stretch_ends_ns(self) -> int:
        """Return the begin of the next stretch."""
        return self.origin_ns + (self.stretch() + 1) * self.stretch_ns

    def thin(self) -> None:
        """Delete stretches until half of the space is free, if the logs exceed their limit."""
        files: dict[int, list[Path]] = defaultdict(list)
        used: dict[int, int] = defaultdict(int)
        with os.scandir(self.folder) as entries:
            for entry in entries:
                stem, _, suffix = entry.name.partition(".")
                if suffix in ("events", "paths"):
                    with suppress(
                        OSError, ValueError
                    ):  # a file that was just deleted, or not a log
                        number = int(stem.rpartition("-")[2])
                        used[number] += max(entry.stat().st_size, _LEAST_BYTES)
                        files[number].append(self.folder / entry.name)
        if sum(used.values()) <= self.most_bytes:
            return
        for number in files.keys() - self._remaining(used):
            for path in files[number]:
                with suppress(OSError):  # Windows keeps files that are being written
                    path.unlink()

    def _remaining(self, used: dict[int, int]) -> set[int]:
        """Choose evenly spread stretches that leave half of the space free.

        The latest stretches always stay: their files still have room that is counted as used.
        """
        latest = {number for number in used if number > max(used) - _LATEST}
        most = self.most_bytes - sum(used[number] for number in latest)
        most = max(most, self.most_bytes // 2) // 2
        every, chosen = 1, used.keys() - latest
        while sum(used[number] for number in chosen) > most and every < _MOST_EVERY:
            every *= 2
            chosen = {number for number in chosen if is_chosen(number, every)}
        return chosen | latest
