"""Failures of stallscope itself in the user's processes: noted for the run, and passed over.

Whatever of ours runs in the training's processes fails open: the user's call goes on as if nothing
of ours were there, and the run says what is missing. A process appends its failures to one file of
the recording, whether it has a log, has none yet or none any more. The failures of this process
are kept in memory, too: the disk may be full, or the folder gone.
"""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Final

from stallscope.files import open_to_append, read_file
from stallscope.units import without_controls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


_FILE: Final = "failures.lines"
_MOST_KEPT: Final = 1000
"""Ways to fail that a process keeps apart; each may name a sample."""
_MOST_TOLD: Final = 50
"""Ways to fail that a run lists."""
_LONGEST: Final = 300
"""Letters of an error's text: what a user's object says of itself may be long."""


@dataclass
class _Failure:
    """One way to fail in one process."""

    missing: str
    """Part of the run that is missing or incomplete."""
    error: str
    """The error's text, and where it was raised."""
    pid: int = field(default_factory=os.getpid)
    times: int = 0


_met: dict[tuple[Any, ...], _Failure] = {}
"""Failures of this process and of the one that it was forked from."""


@dataclass(frozen=True)
class Failures:
    """The failures of one recording, in its folder."""

    folder: Path

    def note(self, missing: str, error: BaseException) -> None:
        """Note that something of ours has failed; never fails itself.

        What the run is `missing`, or has not all of, is the beginning of a sentence.
        """
        with suppress(Exception):
            text = _text_of(error) if len(_met) < _MOST_KEPT else "and other errors"
            key = self.folder, os.getpid(), missing, text
            failure = _met.get(key) or _met.setdefault(key, _Failure(missing, text))
            failure.times += 1
            if failure.times & (failure.times - 1) == 0:  # 1, 2, 4, 8: a hot loop may fail for ever
                descriptor = open_to_append(self.folder / _FILE)  # which may be somebody else's
                try:
                    os.write(descriptor, (json.dumps(vars(failure)) + "\n").encode("ascii"))
                finally:
                    os.close(descriptor)

    @contextmanager
    def within(self, missing: str) -> Iterator[None]:
        """Note an exception that leaves the block, and go on after the block."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - ours is never the user's
            self.note(missing, error)

    def passing(self, missing: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that returns what this one does, or notes what it raises: then None."""

        def call(*args: Any, **named: Any) -> Any:
            try:
                return function(*args, **named)
            except Exception as error:  # noqa: BLE001 - ours is never the user's
                self.note(missing, error)
                return None

        return call

    def insist(self, missing: str, function: Callable[[], object]) -> None:
        """Call what takes something off, and once more if it raises: little may be left behind."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - ours is never the user's
            self.note(missing, error)
            with self.within(missing):
                function()

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each way to fail, over all processes of the recording."""
        times: dict[tuple[str, str], dict[int, int]] = {}
        for failure in self._all():
            by_pid = times.setdefault((failure.missing, failure.error), {})
            by_pid[failure.pid] = max(by_pid.get(failure.pid, 0), failure.times)
        for (missing, error), by_pid in islice(times.items(), _MOST_TOLD):
            total = sum(by_pid.values())
            often = "once" if total == 1 else f"{total:,} times or more"
            why = f"because stallscope failed there {often} ({error})"
            yield f"{missing}: missing in part or not done, {why}"
        if len(times) > _MOST_TOLD:
            yield f"{len(times) - _MOST_TOLD:,} more internal errors are not listed"

    def _all(self) -> Iterator[_Failure]:
        with suppress(OSError, ValueError):
            for line in read_file(self.folder / _FILE).decode("ascii", "replace").splitlines():
                # a killed process may leave half a line, and a file may be anybody's
                with suppress(ValueError, TypeError, KeyError, RecursionError):
                    read = json.loads(line)
                    texts = without_controls(read["missing"]), without_controls(read["error"])
                    yield _Failure(*texts, int(read["pid"]), int(read["times"]))
        mine = self.folder, os.getpid()
        yield from (failure for key, failure in list(_met.items()) if key[:2] == mine)


def _text_of(error: BaseException) -> str:
    """Describe an error, where it was raised, and the one that was being handled then."""
    text, trace = type(error).__name__, error.__traceback__
    with suppress(Exception):  # it may hold an object of the user's
        text = repr(error)[:_LONGEST]
        if error.__context__ is not None:
            text = f"{text} after {error.__context__!r}"[: 2 * _LONGEST]
    for frame, line in deque(walk_tb(trace), 1):
        file = os.path.basename(frame.f_code.co_filename.partition(" (")[0])  # noqa: PTH119
        return f"{text} in {file}, line {line}"
    return text
