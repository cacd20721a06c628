"""Recording a script that knows nothing of it: from its first import of torch to its end."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from stallscope.afterimport import once_imported
from stallscope.errors import WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stallscope.run import Run


@contextmanager
def watching(
    folder: Path, *, name: str, warmup: int, done: Callable[[Run | None], None]
) -> Iterator[None]:
    """Record every DataLoader of this process while the block runs, and save the run at its end.

    Nothing heavy is imported before the script imports torch. What was recorded lies in the folder
    all the time, so that it can be loaded also when the process is killed.

    Args:
        folder: for the run; made if need be.
        name: what is recorded, in the user's words.
        warmup: steps at the start that are kept apart.
        done: gets the run when it is saved; None where no loader was iterated.

    Raises:
        WorkspaceError: the folder cannot be written, or has no room.
    """
    logs, pid = folder / "logs", os.getpid()
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkspaceError(f"no run can be written into {folder} ({error.strerror})") from error
    begun: list[Any] = []
    try:
        with once_imported("torch", lambda: begun.extend(_begun(logs, name, warmup))):
            yield
    finally:
        if os.getpid() == pid:  # a forked child that gets here must not end its parent's
            for one in reversed(begun):
                one.__exit__(None, None, None)
            done(_saved(folder, logs))


def _begun(logs: Path, name: str, warmup: int) -> tuple[Any, ...]:
    """A probe that records into this folder from now on, and a sampler."""
    from stallscope.experiments.about import About
    from stallscope.measure.resources.sampler import Sampler
    from stallscope.measure.workspace import log_capacity
    from stallscope.probe.install import Probe
    from stallscope.probe.logplace import LogPlace

    place = LogPlace(logs, log_capacity(logs, 8))
    probe, sampler = Probe(place, None), Sampler(place)
    probe.__enter__()
    About(name=name, warmup=warmup).leave_with(probe)
    sampler.__enter__()
    return probe, sampler


def _saved(folder: Path, logs: Path) -> Run | None:
    """The run, saved; None where there is none."""
    run = None
    if any(logs.glob("*.marks")):
        from stallscope.experiments.collect import collect
        from stallscope.probe.logplace import LogPlace

        found = collect(LogPlace(logs, 0)).run
        if found.all_steps.height or found.all_spans.height:
            run = found
            run.save(folder)
    shutil.rmtree(logs, ignore_errors=True)
    if run is None:
        with suppress(OSError):  # the script may have put something of its own there
            folder.rmdir()
    return run
