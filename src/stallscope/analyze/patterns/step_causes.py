"""What can make a step long beside the model: the user's named parts, garbage, an epoch's end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.analyze.patterns.causes import Cause
from stallscope.analyze.patterns.standstill import LONG, LONGER_S, covered_s
from stallscope.stages import (
    ANOTHER_LOADER,
    BACKWARD,
    END_OF_EPOCH,
    FORWARD,
    GARBAGE,
    OPTIMIZER,
    OTHER,
    STEP,
)
from stallscope.units import count

if TYPE_CHECKING:
    from stallscope.analyze.patterns.causes import Stops
    from stallscope.analyze.patterns.standstill import Loop

REST: Final = (OTHER.name, STEP.name)
"""What lies outside of all parts that have a name."""
MODEL: Final = (FORWARD.name, BACKWARD.name, OPTIMIZER.name)
"""Parts of the step itself: they are told beside a rhythm, and are no reason by themselves."""
CALLED: Final = {
    ANOTHER_LOADER.name: "a loop over another loader (validation?)",
    END_OF_EPOCH.name: "the end of the epoch (its workers end, unless they are persistent)",
}
"""What parts are called that are not the user's own."""


def parts_s(loop: Loop, side_spans: pl.DataFrame) -> dict[str, np.ndarray]:
    """What each part of a step that has a name took, at each step; 0 where it did not happen."""
    spans = side_spans.filter(pl.col("kind").is_in(["step", "other"]))
    names = spans["stage"].cast(pl.String).unique().sort().to_list()
    return {
        name: covered_s(spans, name, loop.has_batch_ns, loop.uses_until_ns)
        for name in names
        if name not in REST
    }


def step_causes(loop: Loop, parts: dict[str, np.ndarray]) -> list[Cause]:
    """All that may explain long steps, the most specific first.

    Args:
        loop: the steps of one rank.
        parts: as `parts_s` gives them.
    """
    garbage = [GARBAGE.name] if GARBAGE.name in parts else []
    named = [name for name in parts if name not in (*MODEL, *garbage)]
    causes = [_part(loop, "garbage_collection", name, parts[name], 1) for name in garbage]
    causes += [_part(loop, "named_part", name, parts[name], len(named)) for name in named]
    return [*causes, _ends(loop)]


def _part(loop: Loop, code: str, name: str, took_s: np.ndarray, tried: int) -> Cause:
    usual_s = float(np.median(took_s))
    called = CALLED.get(name, name)

    def title(stops: Stops) -> str:
        return f"{_longer(loop, stops)}: {called} takes {stops.median(took_s)}"

    return Cause(
        code=code,
        subject=name,
        marked=(took_s > LONG * usual_s) & (took_s - usual_s > LONGER_S / 2),
        title=title,
        enough_s=took_s - usual_s,
        fewest=2 if name == END_OF_EPOCH.name else 3,
        tried=tried,
    )


def _ends(loop: Loop) -> Cause:
    """The last steps of epochs: what is done between two epochs counts for them."""
    complete = loop.batch[-1:] == loop.batch.max(initial=-1)  # as long as the longest epoch
    last = np.append(loop.epoch[1:] != loop.epoch[:-1], complete)

    def title(stops: Stops) -> str:
        times = times_longer(loop, stops.named)
        ends = f"{count(stops.count, 'epoch')} end with a step {times} times as long as usual"
        return f"{ends}, in your own code (validation or a checkpoint?)"

    return Cause("epoch_end", last, title, fewest=2)


def _longer(loop: Loop, stops: Stops) -> str:
    times = times_longer(loop, stops.named)
    return f"{stops.subject('is', 'are')} {times} times as long as usual"


def times_longer(loop: Loop, which: np.ndarray) -> str:
    """How many times as long as the median step these steps are, in words."""
    ratio = float(np.median(loop.busy_s[which])) / loop.typical_s if loop.typical_s else np.inf
    return f"{ratio:.0f}" if ratio < 1000 else "more than a thousand"  # noqa: PLR2004 - words
