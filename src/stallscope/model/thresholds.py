"""Limits for a stall, slow, saturated, a cause: each number once, with its reason.

Patterns, pictures and the verdict share the first part, so that they never contradict each other;
what only the verdict compares with comes below. Its numbers are frozen before the table of verdicts
is made (`tests/benchmarks/verdicts.py`), so that it says how the rules do on loaders that they were
not tuned on. A number of one method alone (of a test for a rhythm, say) stands on top of that
method's module.
"""

from __future__ import annotations

from typing import Final

STALL_S: Final = 0.001
"""Least seconds of a stall ..."""
STALL_SHARE: Final = 0.01
"""... and its least share of the median step."""
STALL_RULE: Final = f"waits over {STALL_S * 1e3:g} ms and over {STALL_SHARE:.0%} of the median step"
"""Definition of a stall in words."""

HARDLY: Final = 0.1
"""Share of stalled time below which a loop hardly waits, so that no loader can gain more. Other
tools warn from similar shares on (TraceML at 10%; XProf calls 5% to 20% moderate): smaller shares
can come from passing batches between processes, which no change to a dataset fixes. The begin of
epochs costs as little below this share of an epoch."""

USUAL: Final = 0.9
"""Quantile of the times of usual samples, and of usual waits among the stalls."""
SLOW_WORKER: Final = 1.4
"""Least ratio of a slow worker's time for a batch to the others': equal workers differed by up to
1.2 on a busy machine."""

SMALL: Final = 0.01
"""Share of a whole below which a part is not worth a row, a name or a line: it joins the others."""
NEARLY_ALL: Final = 0.9
"""Share of a whole from which on next to nothing else is left: of steps that wait alike, of samples
that two ranks read (a shuffle of each rank's own gives less in a window of an epoch)."""
MOSTLY: Final = 0.5
"""Share of a whole from which on a part is most of it, so that no other part is larger: of the
stalls, of a stall, of a function's samples, of a device's time."""
ALONE: Final = 0.7
"""Share of the stalls from which on there is next to nothing but one thing: two equal workers have
half each, and more workers would only wait for storage in parallel."""
MENTIONED: Final = 0.1
"""Share of a time from which on a part of it is mentioned, or not left out of an account: waiting
for a core, for another worker, irregular stalls."""
CHANCE: Final = 0.01
"""Significance level: nothing with a higher chance of being an accident is claimed."""

STANDS_OUT: Final = 3.0
"""Least ratio to the median of a sample or a wait that stands out, and of a slow sample's excess to
that of a usual one."""
SEVERAL: Final = 3
"""Least events that are no accident, and least values of which one can stand out: garbage
collections (a single one would represent all batches that were not recorded), slow samples, stalls
in a rhythm."""
FEWEST_SAMPLES: Final = 10
"""Samples, of a dataset or of stacks, below which nothing is said of their shares or times."""

SATURATED: Final = 0.9
"""Share of a capacity from which on it is saturated: requests already queue (waiting grows as
1 / (1 - use), and is ten times the work at 0.9)."""
FULL: Final = 0.95
"""Share of a space from which on it is full: the kernel reclaims before the last byte."""
OTHERS: Final = 0.2
"""Share of the cores in use by other processes from which on a measurement is disturbed."""

# ---- thresholds of the verdict ----

WORTH_A_LINE: Final = 1.02
"""Least predicted speedup of a change in the list of fixes."""
PASSING: Final = 0.08
"""Least share of the loop's time for a finding on sending and receiving batches: every loop with
fast workers pays less."""
UNEVEN: Final = 0.42
"""Least share of all work for a group that should change even with saturated cores: of four equal
groups each has a quarter, and the largest of an even mix up to 40%."""
LEADS: Final = 0.3
"""Least share of the work of the longest stage to be named, where no stage dominates ..."""
AHEAD: Final = 1.6
"""... and its least ratio to the next stage."""
NOTED: Final = 0.15
"""Least share of the stalls of a part that is a further finding; and of a worker's time waiting for
a core, which is a few per cent with a core for each worker."""
UNSEEN: Final = 0.7
"""Highest confidence that the dataset's own code waits for storage, where no read was recorded:
the wait may be for a network, a lock or a sleep."""
ONE_OF_MANY: Final = 0.6
"""Least share of all transforms' time of a transform that is named alone."""
KEEPS_UP: Final = 0.9
"""Largest load of workers that keep up: queues grow without limit at 1, and stalls below 0.9 are no
lack of speed."""
CORES_SHORT: Final = 0.75
"""Share of the cores in use from which on cores are short: below, at least a quarter of them is
idle while the loop stalls."""
BEARABLE: Final = 1.1
"""Confidence in a measurement, before the share of time that workers wait for cores of other
processes is subtracted: at 0.8 a third is left, hardly enough for a verdict."""
LARGE_MEGAPIXELS: Final = 1.0
"""Megapixels of a large image: networks usually use 224 to 640 pixels a side."""
SHARED: Final = 1.2
"""Least ratio of the waiting of several workers, per batch, to that of a single worker, for a
shared resource; without one, waiting does not grow with the workers ..."""
REPEATED: Final = 0.85
"""CPU time per batch, as a share of (workers x one worker alone), from which on all do the same
work: 1 if so; two threads that share a core take up to 1.6x as long as one alone."""
EXTRA_THREADS: Final = 0.3
"""Least share of a worker's CPU time in threads other than its main thread that matters; sending
takes a few per cent."""
MANY_THREADS: Final = 3.0
"""Least threads of all workers per core for a finding: sleeping pools alone have fewer."""
CROWDS_OF_THREADS: Final = 16.0
"""Threads per core from which on half of `EXTRA_THREADS` matters: the main thread's share of the
work then differs from run to run, by the scheduler."""
OWN_PART: Final = 0.2
"""Share of a whole from which on a part counts by itself: a part of the loop besides waits and the
model, a pattern of the stalls, what of them nothing explains, a line of a function, stacks at a
lock (where workers compute under it, at most half wait)."""
SHORT_EPOCH_S: Final = 5.0
"""Longest epoch, in seconds, that may be dominated by the start of its workers."""
HARDLY_AN_EPOCH: Final = 2
"""Most batches of an iterator that is created per step, not per epoch."""
TAKEN_BEFORE: Final = 20
"""Least batches taken before the first step for a note."""
NOTABLE: Final = 0.05
"""Least share of a part that a title names (of the stalls, or of a sample's time: a line, a
function, hidden decode), and of the loop's time for a finding beside the verdict."""
WELL_USED: Final = 0.8
"""Least busy share of a device that is well used: below, it waits for its host, or the step is slow
by itself (small kernels, copies)."""
FEWEST_STEPS: Final = 12
"""Least steps of the steady state for a verdict: with fewer, the interval of a share is wider than
any threshold."""
MANY_STEPS: Final = 30
"""Steps from which on a run is not short; so many are recorded, if the budget allows it."""
ROUNDS: Final = 3
"""Fewest batches of each worker."""
SURE: Final = 0.9
"""Confidence at which measuring ends."""
WAITS_FOR_EACH_OTHER: Final = 0.25
"""Share of the stalls in waiting from which on a lock shared by workers is tested: of two workers
that share a lock all the time, each waits half of it."""
SMALL_SAMPLE_S: Final = 2e-5
"""Seconds of a sample below which it is a lookup in an array: calls, lists and copies per sample
take at least as long."""
MANY_CALLS: Final = 5
"""Calls per sample from which on a stage may make more than the sample uses: an image, its mask and
some views are fewer."""
CLEAR, LIKELY = 0.7, 0.4
"""Least confidences for these words; below is "weak"."""
DOUBTFUL: Final = 0.3
"""Least confidence of a verdict."""
SLOWED: Final = 1.5
"""Least ratio of the workers' CPU time for a batch to the time of a step, from which on it is too
long whoever else computes: a core that two threads share lengthens CPU time by less."""
