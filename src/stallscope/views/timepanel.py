"""What the timeline panel asks a run: the picture of some steps, from any step on.

Plain functions of a run, without widgets, so that the panel is only a skin.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from stallscope.analyze.around import from_step, timed_steps
from stallscope.analyze.looptime import NO_LOOP
from stallscope.analyze.timeline import timeline
from stallscope.analyze.window import MOST_STEPS
from stallscope.views.charts.timeline import picture
from stallscope.views.loop import title_of_steps

if TYPE_CHECKING:
    from stallscope.run import Run
    from stallscope.views.charts.style import Sheet

LENGTHS: Final = (3, 6, 12, 24, MOST_STEPS)
"""Steps that may be shown; so few that each can be looked at, so many that a rhythm is seen."""


class Moments:
    """The steady state of a run, a few steps at a time.

    Attributes:
        ranks: what can be asked for, in order.
        lengths: how many steps can be asked for, in order.
        usual: rank, first step and number of steps of the static picture; None without a loop.
    """

    none = NO_LOOP
    """What to say where no loop was recorded."""

    def __init__(self, run: Run) -> None:
        self.run = run
        steps = run.steps().drop_nulls(["start_ns", "end_ns"])
        self.ranks: tuple[int, ...] = tuple(steps["rank"].unique().sort())
        self._steps = cache(lambda rank: timed_steps(run, rank))
        self.usual = self._usual()
        many = self.usual[2] if self.usual else 0
        longest = max((self._steps(rank).height for rank in self.ranks), default=0)
        self.lengths = tuple(sorted({many, *(n for n in LENGTHS if n < longest)}))

    def _usual(self) -> tuple[int, int, int] | None:
        found = timeline(self.run)
        if found is None:
            return None
        steps = found.window.steps
        return steps["rank"][0], steps["step"][0], steps.height

    def firsts(self, rank: int, many: int) -> tuple[int, int]:
        """The first and the last step that a picture of so many can begin with."""
        steps = self._steps(rank)["step"]
        return steps[0], steps[max(steps.len() - many, 0)]

    def draw(self, rank: int, step: int, many: int) -> Sheet:
        """The timeline from a step on."""
        found = from_step(self.run, rank, step, many)
        return picture(self.run, found, title_of_steps(self.run, rank, found.window.steps))
