"""What a flamegraph says, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.analyze.stacks.frames import KINDS, YOURS
from stallscope.analyze.stacks.shares import kind_shares
from stallscope.units import share

if TYPE_CHECKING:
    from stallscope.analyze.stacks.difference import Difference
    from stallscope.flames import Flame

_LITTLE: Final = 0.05
"""A share below which no function of the user's is worth the title."""


def sentence(flame: Flame) -> str:
    """The user's function that takes most, and what takes even more that is not the user's."""
    whose = "the workers' time" if flame.circumstances.num_workers else "the process's time"
    if flame.samples.is_empty():
        return "No sample was taken: there is nothing to see"
    rows, kinds = flame.table(), kind_shares(flame.samples)
    first = next((name for name in kinds if name != YOURS), YOURS)
    what = KINDS[first][0].upper() + KINDS[first][1:]
    if rows.is_empty() or rows["self_share"][0] < _LITTLE:
        takes = f"{what}: {share(kinds[first])} of {whose}"
        return f"{takes}; none of your own functions takes {share(_LITTLE)}"
    top = rows.row(0, named=True)
    told = f"`{top['function']}` (yours) takes {share(top['self_share'])} of {whose}"
    more = kinds[first] > top["self_share"] and first != YOURS
    return f"{told}; {KINDS[first]}: {share(kinds[first])}" if more else told


def difference_sentence(found: Difference) -> str:
    """The change that is largest among those that can be told from chance."""
    clear = found.table().filter(pl.col("distinguishable"))
    if clear.is_empty():
        return "Before and after are not distinguishable in any of your functions"
    top = clear.row(0, named=True)
    word = "shrank" if top["change"] < 0 else "grew"
    ends = f"{share(top['before_share'])} to {share(top['after_share'])}"
    return f"`{top['function']}` (yours) {word} from {ends} of the time"
