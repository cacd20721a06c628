"""Faults on purpose, for `run/test_faults.py`; some in processes of their own."""

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import _utils as torch_utils

import stallscope as ss
from stallscope.run.script import watching
from support.loaders import Slow

VERBS = ["record", "given", "all"]
"""Entry points of a recording: `ss.record`, and `ss.instrumented` of one loader and of all."""


@dataclass
class Used:
    batches: list[Any]
    run: ss.Run | None = None
    error: BaseException | None = None

    @property
    def notes(self) -> str:
        return "\n".join(getattr(self.error, "__notes__", []))


def use(
    verb: str, loader: Any, step: Callable[[Any], Any] | None = None, batches: int = 20
) -> Used:
    """Iterate a loader in one of three ways, and keep its result or error."""
    used = Used([])

    def both(batch: Any) -> None:
        used.batches.append(batch)
        if step is not None:
            step(batch)

    try:
        if verb == "record":
            used.run = ss.record(loader, both, batches=batches, warmup=0)
        else:
            watch = None
            try:
                with ss.instrumented(loader if verb == "given" else None, warmup=0) as watch:
                    for batch in loader:
                        both(batch)
                        if len(used.batches) == batches:
                            break
            finally:
                used.run = getattr(watch, "run", None)
    except BaseException as error:  # noqa: BLE001 - what comes is looked at
        used.error = error.with_traceback(None)  # which holds the iterator and its workers
        error.__cause__ = error.__context__ = None
        used.run = used.run or getattr(error, "run", None)
    return used


def record_slowly(what: str, folder: Path, signals: Any) -> None:
    """Record slow batches for a long time as a process, or `watch` them, and signal each batch."""
    tempfile.tempdir = str(folder)
    torch_utils.worker.MP_STATUS_CHECK_INTERVAL = 0.2  # how often a worker looks for its parent
    loader = DataLoader(Slow(10_000), 2, num_workers=2)
    if what == "record":
        ss.record(loader, lambda _: signals.put(1), batches=5_000)
        return
    with watching(folder / "run", name="slow", warmup=1, done=lambda _: None):
        for _ in loader:
            signals.put(1)


def generators(*own: torch.Generator) -> tuple[Any, ...]:
    """Return the state of every generator of this process, and of the user's."""
    state = np.random.get_state()
    there = torch.get_rng_state().tolist(), state[1].tolist(), state[2], random.getstate()
    return (*there, *(generator.get_state().tolist() for generator in own))


def seeded(number: int) -> torch.Generator:
    """Seed every generator of this process, and one of the user's."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)
    return torch.Generator().manual_seed(number)
