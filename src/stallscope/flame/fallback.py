"""The in-process sampler, seen from outside: asks the workers that stand by, and reads what came.

It gives the same kind of stacks as py-spy and has its face, so that one can stand in for the other.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from stallscope.files import whole_file
from stallscope.flame.pyspy import How, Seen, StackFrame
from stallscope.hooks import self_sampler
from stallscope.hooks.self_sampler import RESULT, Request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from typing_extensions import Self


_LATE_S: Final = 1.0
"""So much later than asked a worker may be through: on a busy machine it also begins late."""
_GRACE_S: Final = 2.0
"""So long after that it may take to write down what it saw."""
_numbers = count()


class InProcess:
    """Lets several processes sample themselves, this one among them if it is asked for.

    Args:
        processes: number of each worker (None for another process) and its process id.
        how: how to sample; there are no native frames, and no look at Python's lock.
        folder: in which the workers stand by.
    """

    name = "in-process sampler"
    refused = ""
    remedy = ""

    def __init__(self, processes: Sequence[tuple[int | None, int]], how: How, folder: Path) -> None:
        self.seen = [Seen(worker, pid) for worker, pid in processes]
        self.seconds = 0.0
        """How long was sampled."""
        self.notes: list[str] = []
        self._folder = folder
        self._asked = Request(next(_numbers), how.rate_hz, how.seconds, how.idle)
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._sample_here, daemon=True)
        self._stopped = False

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self_sampler.request(self._folder, self._asked)
        if any(seen.pid == os.getpid() for seen in self.seen):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._withdraw()
        if self._thread.ident is not None:
            self._thread.join()

    def _withdraw(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.seconds = min(time.monotonic() - self._began, self._asked.seconds)
            self_sampler.withdraw(self._folder)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        late = time.monotonic() - self._began - self._asked.seconds - _LATE_S
        if late > 0:
            self._withdraw()
        return late > _GRACE_S or all(self._path(seen).exists() for seen in self.seen)

    def stop(self) -> None:
        """Take what there is by now; waits a moment for it."""
        self._withdraw()
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and not self.is_over:
            time.sleep(0.01)

    def read(self) -> list[Seen]:
        """What was seen, of every process that was asked for."""
        for seen in self.seen:
            self._read(seen)
        return self.seen

    def _read(self, seen: Seen) -> None:
        try:
            seen.threads = _threads(json.loads(self._path(seen).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            seen.why_not = "it ended before it had written down what it saw"

    def _path(self, seen: Seen) -> Path:
        return self._folder / f"{seen.pid}-{self._asked.number}{RESULT}"

    def _sample_here(self) -> None:
        seen = self_sampler.sample(self._asked, lambda: not self._stopped)
        path = self._folder / f"{os.getpid()}-{self._asked.number}{RESULT}"
        with suppress(OSError), whole_file(path) as file:  # the folder may be gone
            file.write(json.dumps(asdict(seen)).encode())


def _threads(sampled: Any) -> list[list[list[StackFrame]]]:
    frames = [StackFrame(str(name), str(file), int(line)) for name, file, line in sampled["frames"]]
    return [
        [[frames[number] for number in stack] for stack in stacks]
        for stacks in sampled["threads"].values()
    ]
