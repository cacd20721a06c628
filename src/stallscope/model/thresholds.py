"""Limits for a stall, long, slow, saturated, a cause: each number once, with its reason.

Patterns, pictures and the verdict share the first part, so that they never contradict each other;
what only the verdict compares with comes below. Its numbers are frozen before the table of verdicts
is made (`tests/benchmarks/verdicts.py`), so that it says how the rules do on loaders that they were
not tuned on. A number of one method alone (of a test for a rhythm, say) stands on top of that
method's module.
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
"""Significance level: nothing with a higher chance of being an accident is claimed."""

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

# ---- what only the verdict compares with ----

WORTH_A_LINE: Final = 1.02
"""Times as many samples: a change that promises less is no line of what would help."""
WORTH: Final = 0.05
"""A finding beside the verdict costs at least this share of the loop's time."""
PASSING: Final = 0.08
"""From this share of the loop's time on, sending and receiving batches are a finding: less is what
every loop with workers pays that hardly waits for anything else."""
DOMINATES: Final = 0.5
"""A cause is named alone when it holds this share of the stalls: nothing else then holds more."""
UNEVEN: Final = 0.42
"""A group of work that holds this share of all of it is what to change, also where the cores are
full: four sorts of the same length have a quarter each, the longest of an even mix up to 40%."""
LEADS: Final = 0.3
"""Without any that dominates, the longest stage is named if it holds this share of the work ..."""
AHEAD: Final = 1.6
"""... and so many times as much as the next one."""
NOTED: Final = 0.15
"""From this share of the stalls on, a part is a further finding."""
NOTED_PART: Final = 0.05
"""From this share of the stalls on, a part is named beside larger ones."""
UNEXPLAINED: Final = 0.2
"""Above this share of stalls that nothing explains there is no verdict."""
WAITS_ALONE: Final = 0.7
"""Share of the stalls that is waiting for storage, from which on more workers are no answer of
their own: they would be there to wait."""
UNSEEN: Final = 0.7
"""Highest confidence that the dataset's own code waits for storage, where no read was recorded:
the wait may be for a network, a lock or a sleep."""
ONE_OF_MANY: Final = 0.6
"""One transform is named alone when it takes this share of what all transforms take."""
KEEPS_UP: Final = 0.9
"""Workers whose mean time for a batch is below this share of what the step leaves them keep up:
queues grow without end at 1, and below 0.9 what is left of the stalls is no lack of speed."""
QUEUES: Final = 0.15
"""Share of a worker's time in which it could run and has no core that is worth a word: with a core
for each, it is a few per cent."""
CORES_SHORT: Final = 0.75
"""Share of the cores in use from which on they are what is short: below it, a quarter of them or
more has nothing to do while the loop stalls."""
BEARABLE: Final = 1.1
"""Less the share of their time that workers wait for cores which other processes have, this is how
far a measurement can be trusted: at 0.8 it is a third, which is hardly enough for a verdict."""
LOOP_QUEUES: Final = 0.05
"""Share of its time in which the loop's process waits for a core that makes it worth measuring
whether its step is slower for the workers beside it."""
LARGE_MEGAPIXELS: Final = 1.0
"""Images of so many pixels are larger than what networks usually see (224 to 640 a side)."""
SHARED: Final = 1.2
"""Workers share what they wait for when each waits so many times as long for a batch as one alone
does; where nothing is shared, waiting takes as long for many as for one ..."""
SHARED_NOTED: Final = 0.1
"""... and what they wait longer is at least this share of the time that a batch takes."""
REPEATED: Final = 0.85
"""CPU time per batch, as a share of (workers x one worker alone), from which on all do the same
work: 1 if so; two threads that share a core take up to 1.6x as long as one alone."""
WAITS_FOR_IT: Final = 0.7
"""Share of the stalls that wait for a slow worker's batches; two equal workers have half each."""
EXTRA_THREADS: Final = 0.3
"""Share of a worker's CPU time that is spent by threads beside the one that makes the batches, from
which on they matter; sending takes a few per cent."""
MANY_THREADS: Final = 3.0
"""Threads of all workers for each core; so many cannot be an accident of pools that sleep."""
CROWDS_OF_THREADS: Final = 16.0
"""From so many for each core on, half of `EXTRA_THREADS` matters: the scheduler then lets each
worker's first thread do a share of the work that differs from run to run."""
OWN_PART: Final = 0.2
"""A part of the loop that is neither waiting nor the model is a finding from this share on."""
STARTS: Final = 0.1
"""Starting workers is a finding when it takes this share of an epoch."""
SHORT_EPOCH_S: Final = 5.0
"""An epoch of up to so many seconds may be told by the start of its workers."""
HARDLY_AN_EPOCH: Final = 2
"""An iterator that gives no more batches than this is one for each step, and no epoch's."""
TAKEN_BEFORE: Final = 20
"""Batches that are taken before the first step gets one, from which on it is said."""
IDLE_DEVICE: Final = 0.5
"""A device that is busy for less than this though no batch is missing waits for the host."""
FEWEST_STEPS: Final = 12
"""With fewer steps in the steady state there is no verdict: the interval of a share is then wider
than any limit here."""
ROUNDS: Final = 3
"""Fewest batches of each worker."""
SURE: Final = 0.9
"""With this confidence nothing more is measured."""
WAITS_FOR_EACH_OTHER: Final = 0.25
"""Share of the stalls that is waiting, from which on it is tried whether workers wait for each
other: of two workers that share a lock all the time, each waits for half of it."""
LOCK_FRAMES: Final = 0.2
"""Share of stacks that wait at a lock; where workers compute under it, at most half can."""
FEWEST_SPIKES: Final = 3
"""Slow samples below which nothing is said of them."""
ALL_COMPUTING: Final = 0.9
"""A step that computes for more than this share of its time may be the model itself, on the CPU."""
SMALL_SAMPLE_S: Final = 2e-5
"""A sample that takes less, seconds, is one look into an array: a call for each of them, a list of
them and a copy of each into the batch take as long as it does, or longer."""
MANY_CALLS: Final = 5
"""From so many times for one sample on, it is asked whether a sample uses all that a stage makes:
an image, its mask and some views of it are fewer."""
DOUBTFUL: Final = 0.3
"""A finding that is less sure than this is no verdict."""
SLOWED: Final = 1.5
"""Times as long a batch takes with the loop's own torch threads as with one, so that they slow it
down for sure: on a busy machine neighbours make a third of difference."""
