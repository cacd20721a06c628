"""Ranks that a script starts by itself, with `torch.multiprocessing.spawn` or as plain processes.

Under torchrun each rank is a `stallscope run` of its own. A process that the script starts knows
nothing of it, so its target is wrapped on the way: it records once it iterates a DataLoader, into
a folder `rank<n>`. The parent saves these runs when it ends, so that a killed child loses nothing.
"""

from __future__ import annotations

import functools
import multiprocessing.process
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from stallscope.hooks.patches import Patches, forget_imports, once_imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Begin = Callable[[list[Any], Path, int], None]

_OTHERS: Final = ("multiprocessing.", "concurrent.", "joblib.", "loky.", "torch.utils.data.")
"""Start of the module of a target that is no loop of the user's: pools, managers, workers."""


@dataclass(frozen=True)
class RecordedTarget:
    """Target of a process, which records the process from its first DataLoader on."""

    target: Callable[..., Any]
    """Target of the user's."""
    folder: Path
    """Folder for the logs."""
    number: int
    """Number of the process; its rank, where torch.distributed does not know better."""
    begin: Begin
    """Starts a recording; it is sent to the process."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the target."""
        forget_imports()  # a forked child has those that its parent waits for
        begun: list[Any] = []
        patches = Patches()
        with once_imported("torch", lambda: self._wait_for_loader(patches, begun)):
            try:
                return self.target(*args, **named)
            finally:
                patches.undo()
                for recorder in reversed(begun):
                    with suppress(Exception):
                        recorder.__exit__(None, None, None)

    def _wait_for_loader(self, patches: Patches, begun: list[Any]) -> None:
        """Begin at the first DataLoader: a process without one costs nothing."""
        with suppress(Exception):
            from torch.utils.data import DataLoader

            original = DataLoader.__iter__

            @functools.wraps(original)
            def first(loader: Any) -> Any:
                patches.undo()
                with suppress(Exception):
                    self.folder.mkdir(parents=True)  # another thread may be first
                    self.begin(begun, self.folder, self.number)
                return DataLoader.__iter__(loader)

            patches.put(DataLoader, "__iter__", first)


@contextmanager
def recorded_children(folder: Path, begin: Begin) -> Iterator[list[Any]]:
    """Record the processes that this process starts in the block; yield a list that gets them.

    The n-th process that iterates a DataLoader has its logs in `rank<n>/logs`. There, `begin`
    starts a recording, with a list for the recorders, that folder, and a rank.
    """
    started: list[Any] = []
    numbers, pid, patches = count(), os.getpid(), Patches()
    start = multiprocessing.process.BaseProcess.start

    @functools.wraps(start)
    def recorded(process: Any) -> None:
        target = None
        with suppress(Exception):  # a class of the user's: it starts all the same
            is_users = not str(process._target.__module__).startswith(_OTHERS)  # noqa: SLF001
            # Of the user's functions, those in a process that may start workers
            target = process._target if is_users and not process.daemon else None  # noqa: SLF001
        if target is None or os.getpid() != pid:
            start(process)
            return
        number = next(numbers)
        logs = folder / f"rank{number}" / "logs"
        process._target = RecordedTarget(target, logs, number, begin)  # noqa: SLF001 - no other way in
        try:
            start(process)
        except BaseException:
            process._target = target  # noqa: SLF001
            raise
        started.append(process)

    patches.put(multiprocessing.process.BaseProcess, "start", recorded)
    try:
        yield started
    finally:
        patches.undo()
