"""The source of a function, line by line, and why there is none."""

from __future__ import annotations

import inspect
import linecache
import tokenize
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType


def source_of(code: CodeType) -> tuple[dict[int, str], str]:
    """The lines of a function by their numbers, and why they cannot be shown (else empty)."""
    linecache.checkcache(code.co_filename)
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError):
        return {}, _why_not(code)
    name = code.co_name
    if name.isidentifier() and not any(name in line for line in lines):
        return {}, "its file has changed since it was imported"
    return {first + place: line.rstrip("\r\n") for place, line in enumerate(lines)}, ""


def _why_not(code: CodeType) -> str:
    if code.co_filename.startswith("<"):
        return f"it was made from text ({code.co_filename}), which Python does not keep"
    return f"its file is not there ({code.co_filename})"
