"""How variants are measured against each other: two instruments, one rule of what is said."""

from __future__ import annotations

from typing import Final

BUDGET_S: Final = 60.0
"""Of every verb that is given none, seconds; here, as the command line imports no torch for it."""
