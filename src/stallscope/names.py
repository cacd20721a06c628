"""Names that come from other people's code and disks, made fit to be shown.

A stage's or a file's name may hold anything: line breaks, terminal controls, a hundred letters.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from stallscope.units import count

LONGEST: Final = 30


def printable(name: str, longest: int = LONGEST) -> str:
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
    return printable(PurePath(path).name or path, longest)


def worker_name(worker: int | None) -> str:
    """How a worker is called: by its number, or as the main process."""
    return "main process" if worker is None else f"worker {worker}"


def counted(number: int, unit: str) -> str:
    """So many samples or batches."""
    return count(number, unit, plural(unit))


def plural(unit: str) -> str:
    """What makes "sample" or "batch" a plural."""
    return "es" if unit == "batch" else "s"
