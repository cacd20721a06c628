"""Folder of a recording: its processes write logs there, within a limit of space.

The recording is divided into stretches of time. Every log begins a new file with each stretch.
Above the limit, whole stretches of all processes are deleted. The remaining stretches cover the
recording from its beginning to its end, and in each of them steps, batches and samples belong
together.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

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
_GOLDEN: Final = 0x9E3779B1
"""2**32 over the golden ratio, Fibonacci hashing: Knuth, The Art of Computer Programming, 6.4."""


def epoch_key(loader: int, epoch: int) -> int:
    """Return one number for an epoch of a loader."""
    return loader * EPOCHS + epoch


def loader_and_epoch(key: int) -> tuple[int, int]:
    """Return the numbers of a loader and its epoch."""
    return divmod(key, EPOCHS)


def is_chosen(number: int, every: int) -> bool:
    """Return True for about one number in `every`: for batches to record.

    The choice is not periodic: it would always or never meet slow samples with a period of their
    own. Number 0 is always chosen.
    """
    return (number * _GOLDEN & 0xFFFFFFFF) * every >> 32 == 0


@dataclass(frozen=True)
class LogPlace:
    """Folder and limits of one recording, shared by its processes.

    Processes need no communication about stretches: the clock gives a stretch's number.
    """

    folder: Path
    capacity: int
    """Words of each file of a log."""
    most_bytes: int = _MOST_BYTES
    """Limit for all logs, above which stretches are deleted."""
    stretch_ns: int = _STRETCH_NS
    origin_ns: int = field(default_factory=perf_counter_ns)
    stands_by: bool = False
    """True if each worker can sample its own stacks on request, see `hooks.self_sampler`."""
    samples_stacks: bool = False
    """True if each process samples its own stacks in short windows."""
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

    def stretch(self) -> int:
        """Return the number of the current stretch."""
        return (perf_counter_ns() - self.origin_ns) // self.stretch_ns

    def stretch_ends_ns(self) -> int:
        """Return the begin of the next stretch."""
        return self.origin_ns + (self.stretch() + 1) * self.stretch_ns

    def thin(self) -> None:
        """Delete stretches until half of the space is free, if the logs exceed their limit.

        Every second, fourth, ... stretch stays, and the latest, which processes still write.
        """
        files: dict[int, list[Path]] = defaultdict(list)
        used: dict[int, int] = defaultdict(int)
        for path in [*self.folder.glob("*.events"), *self.folder.glob("*.paths")]:
            with suppress(OSError, ValueError):  # a file that was just deleted, or not a log
                number = int(path.stem.rpartition("-")[2])
                used[number] += max(path.stat().st_size, _LEAST_BYTES)
                files[number].append(path)
        if sum(used.values()) <= self.most_bytes:
            return
        latest = set(sorted(used)[-_LATEST:])
        most = self.most_bytes - sum(used[number] for number in latest)
        most = max(most, self.most_bytes // 2) // 2
        every, chosen = 1, used.keys() - latest
        while sum(used[number] for number in chosen) > most and every <= max(used):
            every *= 2
            chosen = {number for number in chosen if number % every == 0}
        for number in used.keys() - chosen - latest:
            for path in files[number]:
                with suppress(OSError):  # Windows keeps files that are being written
                    path.unlink()
