"""Numbers and names for people: a value with its unit, and printable letters.

Tables and files keep plain numbers whose unit is in the column's name; these functions are for
titles, labels and sentences only. Names come from other people's code and disks, and may hold
anything: line breaks, terminal controls, a hundred letters.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST: Final = 30
"""Default length of a name in characters."""
LONGEST_TITLE: Final = 400
"""Most characters of a title: names of files and of the user's parts in it may be long ..."""
LONGEST_NOTE: Final = 1000
"""... and of a note."""

MOST_NAMED: Final = 3
"""Most examples in a text; a table has all."""
BUDGET_S: Final = 60.0
"""Default budget of every verb, seconds; here, as the command line shows it without torch."""
WARMUP: Final = 4
"""Default warm-up of a recorded loop, batches: caches fill, and torch chooses kernels. The first
batches of the workers never count."""
TARGETS: Final = (
    "'sample', a folder of images, tar shards (x-{000..009}.tar), an address of images "
    "(s3://bucket/photos)"
)
"""Targets beside code, in words."""

_LONG_STEPS: Final = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZE_STEPS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_UNITS = "|".join(unit for _, unit in (*_TIME_STEPS, *_SIZE_STEPS))
CONTROLS: Final = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
"""Letters that control a terminal, or reorder the text after them; for `re` and polars. Without tab
and line break."""
NO_LETTER: Final = "\N{REPLACEMENT CHARACTER}"
_CONTROL = re.compile(CONTROLS)
_BETWEEN_WORDS = re.compile(rf" (?!(?<=\d )(?:{_UNITS})\b)")


def _in_steps(value: float, steps: Iterable[tuple[float, str]], least: float = 0.9995) -> str:
    """Return the value in the first unit of which there is about one (`least`) or more."""
    for step, unit in steps:
        if abs(value) >= step * least:
            number = value / step
            decimals = 2 if abs(number) < 0.995 else 1 if abs(number) < 9.95 else 0  # noqa: PLR2004
            return f"{number:.{decimals}f} {unit}"
    return ""


def seconds(value: float | None) -> str:
    """Return a duration as text: `seconds(0.0046)` is '4.6 ms'; `None` is a dash."""
    if value is None:
        return "—"
    return _in_steps(value, _TIME_STEPS) or ("0 s" if value == 0 else f"{value * 1e9:.2f} ns")


def duration(value: float | None) -> str:
    """Return a time that may be long as text: `duration(9000)` is '2.5 hours'; `None` is a dash."""
    return _in_steps(value or 0.0, _LONG_STEPS, 2.0) or seconds(value)


def size(value: float | None) -> str:
    """Return bytes as text, in powers of 1000: `size(130_000)` is '130 kB'; `None` is a dash."""
    return "—" if value is None else _in_steps(value, _SIZE_STEPS) or "0 B"


def share(value: float | None) -> str:
    """Return a share (0 to 1) as a percentage: `share(0.523)` is '52%'; tiny ones are '<1%'."""
    if value is None:
        return "—"
    if 0 < value < 0.005:  # noqa: PLR2004 - half a per cent is where '0%' would begin to lie
        return "<1%"
    return f"{value:.0%}"


def used_of(took_s: float, budget_s: float) -> str:
    """Return how much of a budget was used: '16 s of at most 60 s', or that it took longer."""
    if round(took_s) > round(budget_s):
        return f"{seconds(took_s)}, longer than its budget of {seconds(budget_s)}"
    return f"{seconds(took_s)} of at most {seconds(budget_s)}"


def count(value: int, noun: str) -> str:
    """Return a number and its noun in the right form: `count(2, "batch")` is '2 batches'."""
    return f"{value:,} {noun}{'' if value == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural ending of "sample", "batch" or "epoch"."""
    return "es" if noun.endswith(("tch", "ss")) else "s"


def words_of(text: str) -> list[str]:
    """Return the words between which a line may break: a value and its unit are one word."""
    spaced = " ".join(text.split())
    return _BETWEEN_WORDS.split(spaced) if spaced else []


def unbroken(text: str) -> str:
    """Join a value and its unit with a no-break space."""
    return " ".join(word.replace(" ", "\N{NO-BREAK SPACE}") for word in words_of(text))


def times(factor: float) -> str:
    """Return a factor as text: `times(2.04)` is '2.0×'."""
    return f"{factor:.0f}×" if factor >= 9.95 else f"{factor:.1f}×"  # noqa: PLR2004 - two digits


def speedup(factor: float) -> str:
    """Return a factor with an extra digit near 1: '1.8×', '1.04×'."""
    return times(factor) if factor >= 1.1 else f"{factor:.2f}×"  # noqa: PLR2004 - near 1


def rate(per_s: float | None) -> str:
    """Return a number per second with three digits at least: '1,234', '12.3'."""
    if per_s is None:
        return "—"
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"  # noqa: PLR2004 - three digits


def without_controls(text: str) -> str:
    """Return an untrusted text without control characters."""
    return _CONTROL.sub(NO_LETTER, text)


def json_without_controls(value: Any, longest: int | None = None) -> Any:
    """Return a value of untrusted JSON without control characters; texts are cut to `longest`."""
    if isinstance(value, str):
        text = without_controls(value)
        return text if longest is None or len(text) <= longest else f"{text[:longest]}…"
    if isinstance(value, list):
        return [json_without_controls(item, longest) for item in value]
    if isinstance(value, dict):
        return {
            without_controls(key): json_without_controls(item, longest)
            for key, item in value.items()
        }
    return value


def printable(name: str, longest: int = LONGEST) -> str:
    """Return a name in printable characters, shortened in the middle (long names begin alike)."""
    printable = "".join(letter if letter.isprintable() else NO_LETTER for letter in name)
    if len(printable) <= longest:
        return printable
    head = (longest - 1) // 2
    return f"{printable[:head]}…{printable[-(longest - 1 - head) :]}"


def repr_of(value: object) -> str:
    """Return the `repr` of a user's object, or its type's name if that fails."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a broken __repr__ ends no measurement
        return f"<{type(value).__name__}>"


def said_by(error: BaseException) -> str:
    """Return an exception's text in one line; empty if its own code fails."""
    try:
        return " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a broken __str__ hides no exception
        return ""


def file_name(path: str, longest: int = LONGEST) -> str:
    """Return the last part of a path in printable characters."""
    return printable(PurePath(path).name or path, longest)


def worker_name(worker: int | None) -> str:
    """Return a worker's name: its number, or the main process."""
    return "main process" if worker is None else f"worker {worker}"


def capital(sentence: str) -> str:
    """Return a sentence with a capital at its start."""
    return sentence[:1].upper() + sentence[1:]
