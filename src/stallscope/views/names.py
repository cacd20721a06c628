"""Names that come from other people's code and disks, made fit to be shown.

A stage's or a file's name may hold anything: line breaks, terminal controls, a hundred letters.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from stallscope.stages import BATCH
from stallscope.units import count

if TYPE_CHECKING:
    from stallscope.analyze.profile import StageTimes

LONGEST: Final = 30


def shown(name: str, longest: int = LONGEST) -> str:
    """The name in printable characters, shortened in the middle, where long names are alike.

    Args:
        name: any text.
        longest: characters at most.
    """
    printable = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name
    )
    if len(printable) <= longest:
        return printable
    head = (longest - 1) // 2
    return f"{printable[:head]}…{printable[-(longest - 1 - head) :]}"


def file_name(path: str, longest: int = LONGEST) -> str:
    """The last part of a path, as `shown` gives it."""
    return shown(PurePath(path).name or path, longest)


def worker_name(worker: int | None) -> str:
    """How a worker is called: by its number, or as the main process."""
    return "main process" if worker is None else f"worker {worker}"


def stage_name(stage: StageTimes, unit: str, longest: int = LONGEST) -> str:
    """The name of a stage in a list of them, with what it is per where that is not the unit.

    Args:
        stage: one of a profile's.
        unit: the profile's.
        longest: characters of the name at most.
    """
    if stage.per == unit:
        return shown(stage.stage, longest)
    return (
        f"{shown(stage.stage, longest)}, {'the rest' if stage.stage == BATCH.name else 'per batch'}"
    )


def counted(number: int, unit: str) -> str:
    """So many samples or batches."""
    return count(number, unit, plural(unit))


def plural(unit: str) -> str:
    """What makes "sample" or "batch" a plural."""
    return "es" if unit == "batch" else "s"
