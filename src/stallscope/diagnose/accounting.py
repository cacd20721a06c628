"""Accounting of the loop's time: the step, and the work that the rest waits for.

The parts add up to the loop's time in its steady state; where epochs begin slowly, to that of an
epoch. Stalls are divided as `run.exposed()` divides them (see `model.exposure`); a finding may take
several of these parts together. Own code of the user's stands with the function that holds most of
it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.columns import Column, Schema
from stallscope.model.exposure import COLLATE, GETITEM_, MAIN, SENDING, START
from stallscope.stages import KINDS, OTHER, STEP

if TYPE_CHECKING:
    from stallscope.diagnose.facts import Facts
    from stallscope.model.exposure import StagePart
    from stallscope.model.loop_time import LoopBreakdown


STALL: Final = "stall"
ACCOUNTING: Final = Schema(
    "One row a part of the loop's time: its own, the stalls' (the longest first), then `BEGIN`.",
    Column("part", pl.String),
    Column("kind", pl.Enum([*KINDS, STALL]), "kind of its stage; `stall`: no stage"),
    Column("stalled", pl.Boolean, "whether the loop waited for it"),
    Column("place", pl.String, "function of the user's that holds most of it; null: not known"),
    Column("loop_share", pl.Float64, "adds up to 1"),
)

_SMALLEST: Final = 0.01
"""Share of the loop's time; smaller parts of stalls share a row, those of a step join its rest."""
_ROUNDING: Final = 1e-6
_REST: Final = "smaller parts"
BEGIN: Final = "begin of the epochs"
"""Part before an epoch's steady state; present only where it is a finding."""
_SLOWED: Final = "step, slower beside the workers"
_RELEASED: Final = "memory of batches, given back"
_WORDS: Final = {GETITEM_: "the dataset's own code", MAIN: "the loader in the main process"}
_KINDS: Final = {GETITEM_: "other", SENDING: "send", MAIN: "step"}
"""Kinds of the groups whose name is no kind of stage."""


def accounting(facts: Facts | None) -> pl.DataFrame:
    """Divide the loop's time.

    Args:
        facts: numbers of the loop; None where nothing was recorded.

    Returns:
        Columns of `ACCOUNTING`.
    """
    if facts is None or facts.time is None:
        return pl.DataFrame(schema=ACCOUNTING)
    own = _own(facts.time)
    step = {key: part for key, part in own.items() if key[1] == STEP.kind}
    slowed = min(facts.lost_share - facts.stall_share, sum(step.values()))
    if slowed > 0:  # nobody knows which of its parts
        own |= {key: part - slowed * part / sum(step.values()) for key, part in step.items()}
        own[_SLOWED, STEP.kind] = slowed
    released = min(facts.release_share, own.get((OTHER.name, OTHER.kind), 0.0))
    if released >= _SMALLEST:
        own[OTHER.name, OTHER.kind] -= released
        own[_RELEASED, "send"] = released
    rows = [(name, kind, False, None, part) for (name, kind), part in own.items()]
    steady = pl.DataFrame([*rows, *_stalled(facts)], ACCOUNTING, orient="row")
    begin = facts.starts.slow_share
    if not begin:
        return steady
    before = pl.DataFrame([(BEGIN, STALL, True, None, begin)], ACCOUNTING, orient="row")
    return steady.with_columns(pl.col("loop_share") * facts.epoch_factor).vstack(before)


def _own(time: LoopBreakdown) -> dict[tuple[str, str], float]:
    """Return the loop's own parts: name, kind and share of its time; the step in its parts.

    Where parts take longer than what they are parts of, nothing adds up: then it is in one piece.
    """
    pieces = time.pieces(_SMALLEST)
    if sum(part_s for *_, part_s in pieces) > time.total_s * (1 + _ROUNDING):
        pieces = replace(time, parts=()).pieces()
    own: dict[tuple[str, str], float] = {}
    for name, kind, part_s in pieces:
        if kind != STALL:
            key = name, OTHER.kind if kind == "wait" else kind
            own[key] = own.get(key, 0.0) + time.share(part_s)
    return own


def _stalled(facts: Facts) -> list[tuple[str, str, bool, str | None, float]]:
    """Return the parts of the stalls."""
    shares: dict[tuple[str, str, str | None], float] = {}
    began = facts.begin_share
    for part in facts.exposure.parts:
        if began and part.group == START:
            continue  # see `BEGIN`
        share = part.share * facts.stall_share
        key = _key(facts, part) if share >= _SMALLEST else (_REST, STALL, None)
        shares[key] = shares.get(key, 0.0) + share
    rest = facts.stall_share - began - sum(shares.values())
    if rest > _SMALLEST:  # nothing is known of a stall's parts
        shares["stalls", STALL, None] = rest
    longest = sorted(shares, key=lambda key: (key[0] == _REST, -shares[key]))
    return [(name, kind, True, place, shares[name, kind, place]) for name, kind, place in longest]


def _key(facts: Facts, part: StagePart) -> tuple[str, str, str | None]:
    own = facts.own_code(part.stage) if part.group in (GETITEM_, COLLATE) else None
    name = _WORDS.get(part.group, part.stage)
    kind = _KINDS.get(part.group, part.group)
    return name, kind if kind in KINDS else STALL, own.place if own else None
