"""What stacks of the workers add: which line it is, and whether workers wait at a lock."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.analyze.stacks.frames import YOURS, frame, kind
from stallscope.stages import SEND

if TYPE_CHECKING:
    from stallscope.flames import Flame

_LOCKS: Final = re.compile(
    r"(__enter__|acquire|_acquire\w*|wait|flock|lockf) "
    r"\(.*(multiprocessing/synchronize|filelock/\w+|portalocker/\w+|fasteners/\w+)\.py"
)
"""Innermost frames of a process that waits for another one to let go of something; threads wait for
those of their own process."""
_FEWEST: Final = 10
"""Samples below which nothing is said."""


def lock_frames(flame: Flame) -> float | None:
    """Share (0 to 1) of the samples inside of a stage that wait at a lock; None: too few samples.

    The thread that sends is left out: between two batches it waits for the next one.

    Args:
        flame: of the workers, with the threads that wait.
    """
    inside = flame.samples.filter(pl.col("stage") != SEND.name)
    many = int(inside["hits"].sum())
    if many < _FEWEST:
        return None
    leaves = [stack.rpartition(";")[2] for stack in inside["stack"]]
    waits = [bool(_LOCKS.search(leaf)) for leaf in leaves]
    return float(inside.filter(pl.Series(waits, dtype=pl.Boolean))["hits"].sum()) / many


def line_of(flame: Flame, stage: str) -> str:
    """The user's innermost frame that was seen most in a stage: `function (file:line)`; or ''.

    Args:
        flame: of the workers.
        stage: its name; '' takes all stages.
    """
    inside = flame.samples.filter(pl.col("stage").is_not_null())
    if stage:
        inside = inside.filter(pl.col("stage") == stage)
    hits: dict[str, int] = {}
    for stack, many in inside.select("stack", "hits").iter_rows():
        mine = [text for text in reversed(stack.split(";")) if kind(frame(text)) == YOURS]
        if mine:
            hits[mine[0]] = hits.get(mine[0], 0) + many
    return max(hits, key=lambda text: hits[text]) if hits else ""
