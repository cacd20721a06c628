"""One stall: the timeline around it, with an arrow from the batch that was waited for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from stallscope.analyze.around import around
from stallscope.analyze.looptime import OWN_WORDS, is_own
from stallscope.stages import FETCH
from stallscope.units import count, seconds, share
from stallscope.views.charts.timeline import drawn, layout_of, small_notes
from stallscope.views.names import shown, worker_name

if TYPE_CHECKING:
    from stallscope.analyze.timeline import Timeline
    from stallscope.run import Run
    from stallscope.views.charts.style import Sheet
    from stallscope.views.charts.timelayout import Layout


def picture(run: Run, stall: dict[str, Any]) -> Sheet:
    """The workers and the loop around a stall.

    Args:
        run: what was measured.
        stall: a row of `Run.stalls`.
    """
    found = around(run, stall["rank"], stall["step"])
    chosen = replace(found, stalls=found.stalls.filter(pl.col("step") == stall["step"]))
    room = layout_of(chosen)
    return drawn(found, room, title(run, chosen, stall), _notes(run, found, room[1]))


def parts_of(run: Run, stall: dict[str, Any]) -> pl.DataFrame:
    """What a stall consists of, the longest part first.

    Args:
        run: what was measured.
        stall: a row of `Run.stalls`.

    Returns:
        Columns of `analyze.stalls.exposed.PARTS`, and `share` (0 to 1) of the stall.
    """
    its = (pl.col("rank") == stall["rank"]) & (pl.col("step") == stall["step"])
    found = run.parts().filter(its).sort("exposed_s", descending=True, maintain_order=True)
    return found.with_columns(share=pl.col("exposed_s") / stall["stall_s"])


def was_recorded(run: Run, stall: dict[str, Any]) -> bool:
    """Whether the stages of the stall's own batch are known; else they are those of the others."""
    same = [pl.col(name) == stall[name] for name in ("rank", "epoch", "batch")]
    return not run.batches.filter(*same).is_empty()


def title(run: Run, chosen: Timeline, stall: dict[str, Any]) -> str:
    """How long which step waits for which batch, and mostly why."""
    awaited = chosen.stalls.row(0, named=True)
    maker = awaited["worker"]
    whose = "that the main process makes" if maker is None else f"of {worker_name(maker)}"
    waits = f"Step {stall['step']} waits {seconds(stall['stall_s'])}"
    told = f"{waits} for batch {awaited['batch']} {whose}"
    parts = parts_of(run, stall)
    if parts.is_empty():
        return told
    longest = parts.row(0, named=True)
    if not (was_recorded(run, stall) or is_own(longest["part"], longest["kind"])):
        return f"{told}, which was not recorded"
    return f"{told}; {share(longest['share'])} of that is {_word(longest)}"


def _word(part: dict[str, Any]) -> str:
    name: str = part["part"]
    if is_own(name, part["kind"]):
        return OWN_WORDS.get(name, name)
    return "reading" if name == FETCH.name else shown(name)


def _notes(run: Run, found: Timeline, layout: Layout) -> list[str]:
    steps = count(found.window.steps.height, "step")
    window = f"{seconds(found.length_s)} around the stall, {steps}"
    batch = "white: no batch in hand · within a batch, its samples' times are put together by kind"
    _, *others = small_notes(run, found, layout)
    return [f"{window} · {batch}", *others]
