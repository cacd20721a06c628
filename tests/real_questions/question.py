"""Question of a user, rebuilt as a small loader, and how an answer to it is judged."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ONCE = r"\bonce\b|beforehand|[Kk]eep|cache"
"""Words of an advice to do the work once: several authors did."""


@dataclass(frozen=True)
class Question:
    """A question, and which answers to it are right.

    A maintainer named the cause there, or a change worked. The dataset is written as its author
    wrote it, as far as can be told, and small enough for two cores.
    """

    name: str
    source: str
    """Where the question was asked: project and number of the issue."""
    report: str
    """What was reported, or what helped."""
    make: Callable[[Path], Iterable[object]]
    """Make the loader; its files go into the folder."""
    step_s: float
    """Length of the step, seconds."""
    causes: tuple[str, ...]
    """Codes of findings that are right, the usual one first."""
    place: str
    """Expression that the verdict's title has to match: what its author would have to look at."""
    lever: str
    """Expression that its next step has to match: what helped."""
    step: Callable[[], Callable[[object], object]] | None = None
    """Make what the loop does with a batch, where that is more than a timer of `step_s`."""

    def missed_by(self, code: str, title: str, next_step: str) -> str:
        """Return what an answer misses; '' for nothing."""
        if code not in self.causes:
            return f"{code} is not {' or '.join(self.causes)}"
        if not re.search(self.place, title):
            return f"the title does not name {self.place}"
        if not re.search(self.lever, next_step):
            return f"the next step does not name {self.lever}"
        return ""


def question(**asked: Any) -> Callable[[Callable[[Path], Iterable[object]]], Question]:
    """Make the question of a loader, under the name of its file; fields of `Question`."""

    def of(make: Callable[[Path], Iterable[object]]) -> Question:
        name = make.__module__.rpartition(".")[2].replace("_", "-")
        return Question(name, make=make, **asked)

    return of
