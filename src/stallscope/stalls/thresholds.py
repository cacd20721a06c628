"""What is called a stall, long, slow or saturated: each number once, for patterns and pictures.

The verdict uses these, too, so that it never contradicts a picture; what only it compares with
stands in `diagnose.thresholds`. A number of one method alone (of a test for a rhythm, say) stands
on top of that method's module.
"""

from __future__ import annotations

from typing import Final

STALL_S: Final = 0.001
"""A stall is a wait that is longer than this, seconds ..."""
STALL_SHARE: Final = 0.01
"""... and longer than this share of the median step."""
STALL_RULE: Final = f"waits over {STALL_S * 1e3:g} ms and over {STALL_SHARE:.0%} of the median step"
"""The same in words."""

HARDLY: Final = 0.1
"""A loop that stalls less than this share of its time hardly waits: it gains less than that from
any loader. It is where other tools begin to warn, too (TraceML at 10%; XProf calls 5% to 20%
moderate): below it, passing batches from process to process can be all there is, which no change
to a dataset fixes."""

LONG: Final = 3.0
"""A long step takes more than so many times the median step ..."""
LONGER_S: Final = 0.001
"""... and so much more than it, seconds."""

SLOW_SAMPLE: Final = 3.0
"""A slow sample takes more than so many times the median, and lies so many times as far above it
as the one that this share of the samples does not exceed:"""
USUAL_SAMPLE: Final = 0.9
SLOW_WORKER: Final = 1.4
"""A slow worker takes so many times as long for a batch as the others: pools of equal workers were
seen to differ by up to 1.2 on a busy machine."""

CAUSE_SHARE: Final = 0.5
"""A cause of a stall took at least this share of it."""
LEADING_SHARE: Final = 0.2
"""A pattern that explains less of all stalled time is not the answer."""
CHANCE: Final = 0.01
"""What is more probable than this to be an accident is not claimed."""

SELDOM: Final = 3
"""Collections of garbage below which they are no part of what every batch costs: where few batches
are recorded, a single one would stand for all that were not."""

SATURATED: Final = 0.9
"""Share of a capacity from which on it is saturated: what asks for the rest has to queue already
(waiting grows as 1 / (1 - use), and is ten times the work at 0.9)."""
FULL: Final = 0.95
"""Share of a space from which on it is full: the kernel reclaims before the last byte."""
OTHERS: Final = 0.2
"""Share of the cores that other processes have, from which on the measurement is disturbed."""
