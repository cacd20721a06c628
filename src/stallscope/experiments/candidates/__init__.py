"""Changes beyond the order: one file each, tried in the order of this list.

A candidate is a function that looks at the pipeline and proposes recipes. Every proposal is
compared and measured like an order, so a candidate may be wrong without harm. A fourth is one more
file, and one more line here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.experiments.candidates import batching, decoding, memory

if TYPE_CHECKING:
    from stallscope.experiments.candidates.protocol import Candidate

CANDIDATES: Final[tuple[Candidate, ...]] = (
    batching.proposals,
    decoding.proposals,
    memory.proposals,
)
