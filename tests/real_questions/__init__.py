"""Questions that PyTorch users asked in public, each rebuilt as a small loader."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from stallscope.diagnose.result import Finding


@dataclass(frozen=True)
class Question:
    """What was asked, and what an answer has to say."""

    name: str
    asked: str
    """Where, and in which words."""
    make: Callable[[Path], Iterable[object]]
    """Make the loader; files go into the folder."""
    step_s: float
    """The step's length, seconds."""
    causes: tuple[str, ...]
    """Codes of which one is right."""
    place: str
    """Expression that the verdict's title has to match: what its author would have to look at."""
    lever: str
    """Expression that its next step has to match: what helped."""
    before: str
    """What version 0.1.0.dev0 said."""
    step: Callable[[], Callable[[object], object]] | None = None
    """Make what the loop does with a batch, where that is more than a timer of `step_s`."""

    def missed_by(self, verdict: Finding) -> str:
        """Say what a verdict misses; '' for nothing."""
        if verdict.code not in self.causes:
            return f"{verdict.code} is not {' or '.join(self.causes)}"
        if not re.search(self.place, verdict.title):
            return f"the title does not name {self.place}"
        if not re.search(self.lever, verdict.next_step):
            return f"the next step does not name {self.lever}"
        return ""
