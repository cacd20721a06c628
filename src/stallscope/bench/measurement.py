"""Call of a verb: budget, progress bar and partial result."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from stallscope.errors import ArgumentError, NoBatchError, StallscopeError, add_notes
from stallscope.loops.batch_timeout import time_limit
from stallscope.loops.training_loop import ProgressBar, check_budget
from stallscope.machine import memory_available_bytes
from stallscope.units import seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self


MEMORY_SHARE: Final = 0.25
"""Share of the free memory that a measurement may take: the training and its page cache need the
rest."""
_PERCENT: Final = 100


class Measurement:
    """Call of a verb; the budget runs from its creation.

    As a context, it shows a progress bar and limits each wait for a batch. An exception that passes
    through gets the partial result as an attribute with the name of the verb, or another one.
    """

    def __init__(self, verb: str, budget_s: object, attribute: str | None = None) -> None:
        self._began_s = time.perf_counter()
        self.verb, self._attribute = verb, attribute or verb
        self.budget_s = check_budget(budget_s)
        self.result: Callable[[], Any] | None = None
        self.doing = ""
        self.notes: list[str] = []
        self._bar: ProgressBar | None = None
        self._limit = time_limit(self.budget_s)

    def of(self, name: str) -> Self:
        """Show a progress bar with the name of the target."""
        self._bar = ProgressBar(desc=f"{self.verb} of {name}", total=_PERCENT)
        return self

    # ---- time -------------------------------------------------------------------------------

    @property
    def used_s(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._began_s

    @property
    def left_s(self) -> float:
        """Seconds left of the budget; below 0 afterwards."""
        return self.budget_s - self.used_s

    def until_ns(self, most_s: float = math.inf) -> int:
        """Return the end of the budget, or of `most_s` seconds from now (`perf_counter_ns`)."""
        return time.perf_counter_ns() + int(max(min(self.left_s, most_s), 0.0) * 1e9)

    def has_used(self, share: float) -> bool:
        """Return whether this share (0 to 1) of the budget is used."""
        return self.used_s > share * self.budget_s

    def was_over(self) -> str:
        """Return the reason for a missing measurement."""
        return f"the budget of {seconds(self.budget_s)} ran out"

    # ---- progress and notes -----------------------------------------------------------------

    def now(self, doing: str) -> None:
        """Show the current measurement, and move the bar."""
        self.doing = doing
        if self._bar is not None:
            self._bar.set_postfix_str(doing, refresh=False)
            share = min(self.used_s / self.budget_s, 1.0)
            self._bar.update(int(share * _PERCENT) - self._bar.n)

    def note(self, text: str) -> None:
        """Add a sentence to the notes, once."""
        if text not in self.notes:
            self.notes.append(text)

    def __enter__(self) -> Self:
        self._limit.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._limit.__exit__(kind, error, trace)
        if self._bar is not None:
            self._bar.close()
        if error is not None:
            self._attach_partial_result(error)
        self.result = None  # frees the batches that the function refers to

    def _attach_partial_result(self, error: BaseException) -> None:
        """Attach the partial result to an exception; skip our own exceptions about wrong calls."""
        if self.result is None:
            return
        if isinstance(error, StallscopeError) and not isinstance(error, NoBatchError):
            return
        with suppress(Exception):  # ours must not replace the user's
            doing = f"'{self.doing}' was measured" if self.doing else f"ss.{self.verb} measured"
            self.notes.insert(0, f"ended early, by {type(error).__name__}, while {doing}")
            result = self.result()
            if result is None:
                return
            vars(error)[self._attribute] = result  # past any __setattr__ of a frozen exception
            hint = f"the partial result is this exception's attribute `{self._attribute}`"
            add_notes(error, [f"stallscope: raised while {doing}", f"stallscope: {hint}"])


def memory_limit(max_bytes: Any = None, share: float = MEMORY_SHARE) -> int:
    """Return the bytes that a measurement may take; by default a share of the free memory."""
    if max_bytes is None:
        return int(memory_available_bytes() * share)
    if not isinstance(max_bytes, (int, float)) or not 0 <= max_bytes < math.inf:
        raise ArgumentError(f"max_bytes={max_bytes!r}: give a number of bytes, 0 or more")
    return int(max_bytes)
