"""What can make the loop wait for data: garbage, a new epoch or file, a slow sample or worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.analyze.patterns.causes import ENOUGH, Cause
from stallscope.analyze.patterns.chance import rank_sum_tail
from stallscope.analyze.patterns.sample_causes import new_files, slow_samples
from stallscope.analyze.patterns.standstill import LONGER_S, covered_s
from stallscope.stages import GARBAGE
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from stallscope.analyze.patterns.causes import Stops
    from stallscope.analyze.patterns.evidence import Evidence
    from stallscope.analyze.patterns.standstill import Loop

SLOWER: Final = 1.25
"""A slow worker takes so many times as long for a batch as the others do."""
A_THIRD: Final = 1 / 3
"""What a slow worker takes longer than the others is at least so much of a stall: where no worker
is quick enough, the loop waits for the slow one all the same."""
NOTICED: Final = 0.1
"""From this share of a wait on, it is said what the loader's restart took of it."""


def wait_causes(loop: Loop, evidence: Evidence) -> list[Cause]:
    """All that may explain stalls, the most specific first."""
    samples = evidence.samples
    return [
        *_garbage(loop, evidence),
        *_epochs(loop),
        *new_files(loop, samples),
        *slow_samples(loop, samples),
        *_slow_workers(loop),
    ]


def _garbage(loop: Loop, evidence: Evidence) -> list[Cause]:
    """Garbage collections of the main process, and those of the workers."""
    here_s = covered_s(evidence.side_spans, GARBAGE.name, loop.waits_from_ns, loop.has_batch_ns)
    exposed = evidence.parts.filter(pl.col("part") == GARBAGE.name)
    totals = exposed.group_by("step").agg(pl.col("exposed_s").sum())
    rows = loop.keys.join(totals, on="step", how="left", maintain_order="left")
    there_s = np.maximum(rows["exposed_s"].fill_null(0.0).to_numpy() - here_s, 0.0)
    there = (loop.stall_s > 0) & (there_s >= ENOUGH * loop.stall_s)
    known = np.isfinite(loop.made_s)
    return [
        Cause(
            code="garbage_collection",
            subject="main process",
            marked=here_s > LONGER_S / 2,
            title=lambda stops: _collects(stops, here_s, "in the main process"),
            enough_s=here_s,
        ),
        Cause(
            code="garbage_collection",
            subject="workers",
            marked=there,
            title=lambda stops: _collects(stops, there_s, "where the batch is made"),
            enough_s=there_s,
            measured=True,  # so it is asked whether these batches took longer to make
            doubt=rank_sum_tail(loop.made_s[known & there], loop.made_s[known & ~there]),
        ),
    ]


def _collects(stops: Stops, took_s: np.ndarray, where: str) -> str:
    waits = f"{stops.subject('waits', 'wait')} {stops.typical}"
    return f"{waits}: garbage collection {where} takes {stops.median(took_s)} of it"


def _epochs(loop: Loop) -> list[Cause]:
    """The first steps of epochs, and those that wait right after them."""
    first = np.append(loop.batch[:1] == 0, loop.epoch[1:] != loop.epoch[:-1])

    def title(stops: Stops) -> str:
        waits_s = stops.seconds[stops.named]
        begins = f"{count(waits_s.size, 'epoch')} begin with a wait of"
        restart_s = float(np.median(loop.restart_s[stops.named]))
        noticed = restart_s >= NOTICED * float(np.median(waits_s))
        restart = f" (iter(loader) takes {seconds(restart_s)} of it)" if noticed else ""
        return f"{begins} {seconds(float(np.median(waits_s)))}: no batch is ready{restart}"

    round_ = max(loop.num_workers, 1)
    return [Cause("epoch_boundary", first, title, fewest=2, reach=round_)]


def _slow_workers(loop: Loop) -> list[Cause]:
    """The workers that take longer for a batch than the others, if there are any."""
    worker, known = loop.worker, np.isfinite(loop.made_s)
    workers = np.unique(worker[known & (worker >= 0)]).tolist()
    usual_s = {one: float(np.median(loop.made_s[known & (worker == one)])) for one in workers}
    causes = []
    for one in workers:
        rest_s = [took_s for other, took_s in usual_s.items() if other != one]
        if rest_s and usual_s[one] >= SLOWER * float(np.median(rest_s)):
            causes.append(_slow_worker(loop, one, len(workers)))
    return causes


def _slow_worker(loop: Loop, slow: int, workers: int) -> Cause:
    worker, known = loop.worker, np.isfinite(loop.made_s)
    own = known & (worker == slow)
    rest = known & (worker >= 0) & (worker != slow)
    rest_s = float(np.median(loop.made_s[rest]))

    def title(stops: Stops) -> str:
        stalls = int(np.count_nonzero(stops.seconds > 0))
        takes = f"its batches take {seconds(float(np.median(loop.made_s[own])))}"
        return (
            f"Worker {slow} is slow: {takes}, those of the others {seconds(rest_s)}; "
            f"{stops.count} of {count(stalls, 'stall')} wait for it"
        )

    return Cause(
        code="slow_worker",
        subject=str(slow),
        marked=own,
        title=title,
        known=own | rest,
        enough_s=loop.made_s - rest_s,
        enough=A_THIRD,
        tried=workers,
        doubt=workers * rank_sum_tail(loop.made_s[own], loop.made_s[rest]),
    )
