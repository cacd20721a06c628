"""The words of a log, taken apart: which batch, sample and stage each of them belongs to.

Everything is done on whole arrays, in time linear in the number of words (and one stable sort by
depth), because a log may hold tens of millions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stallscope.eventlog import CODE_SHIFT, MOST_CODES, PAYLOAD, TAG_SHIFT, Tag, event_times
from stallscope.stages import Stage

if TYPE_CHECKING:
    from stallscope.eventlog import LogPages

UNKNOWN = Stage("unnamed", "other")
"""A code whose name was lost with its process."""


class Words:
    """The words of a log, taken apart. Arrays over all words, and over the events among them."""

    def __init__(self, log: LogPages) -> None:
        self.log = log
        self.tags = log.words >> TAG_SHIFT
        self.payload = log.words & PAYLOAD
        batches = (self.tags == Tag.BATCH) | (self.tags == Tag.SKIPPED)
        self.batch_at = np.flatnonzero(batches)
        begins = (self.tags == Tag.SAMPLE) | (self.tags == Tag.UNINDEXED)
        self.sample_at = np.flatnonzero(begins)
        self.batch_of_word = np.cumsum(batches) - 1
        edge = begins | batches | np.isin(self.tags, (Tag.SAMPLE_END, Tag.BATCH_END))
        last_edge = last_at(edge)
        in_sample = (last_edge >= 0) & begins[np.maximum(last_edge, 0)]
        self.sample_of_word = np.where(in_sample, np.cumsum(begins) - 1, -1)
        self.void = np.zeros(self.sample_at.size + 1, dtype=bool)  # the last one: no sample
        self.void[self.sample_of_word[self.tags == Tag.EXHAUSTED]] = True
        self.void[-1] = False
        is_event = ((self.tags == Tag.ENTER) | (self.tags == 0)) & (self.batch_of_word >= 0)
        self.event_at = np.flatnonzero(is_event)
        self.enters = self.tags[self.event_at] == Tag.ENTER
        # Python may collect garbage, and record it, just after an event has read the clock
        self.time_ns = np.maximum.accumulate(event_times(log.words, log.born_ns)[self.event_at])
        self.batch = self.batch_of_word[self.event_at]
        self.depth = self._depths()
        self.top = self._tops()
        self.stages = [log.stages.get(code, UNKNOWN) for code in range(MOST_CODES)]
        """Stage of each code."""
        self.code = ((log.words[self.event_at] & PAYLOAD) >> CODE_SHIFT)[self.top]
        """For each event, the code of the stage that is at work after it."""

    def _depths(self) -> np.ndarray:
        """How many stages are open after each event; every batch begins with none."""
        steps = np.where(self.enters, 1, -1)
        height = np.cumsum(steps)
        first = np.flatnonzero(np.diff(self.batch, prepend=-1))
        floor = height[first] - steps[first]
        lengths = np.diff(np.append(first, self.batch.size))
        depths: np.ndarray = height - np.repeat(floor, lengths)
        return depths

    def _tops(self) -> np.ndarray:
        """For each event, the enter event of the stage that is innermost after it.

        That is the last enter at the same depth, so one stable sort by depth finds all.
        """
        order = np.argsort(self.depth.astype(np.int32), kind="stable")
        last = last_at(self.enters[order])
        tops = np.empty(order.size, dtype=np.int64)
        tops[order] = order[np.maximum(last, 0)] if order.size else order
        return tops

    def sample_place(self, sample: np.ndarray) -> np.ndarray:
        """Place in its batch of each sample, given by its number in the log."""
        batch = self.batch_of_word[self.sample_at]
        first = np.searchsorted(batch, batch, side="left")
        places: np.ndarray = (np.arange(batch.size) - first)[sample]
        return places

    def epoch(self, place: np.ndarray) -> np.ndarray:
        """Epoch at each of these words."""
        last = last_at(self.tags == Tag.EPOCH)[place]
        return np.where(last >= 0, self.payload[np.maximum(last, 0)], 0)

    @property
    def worker(self) -> int | None:
        """Worker id; None for the main process."""
        return self.log.worker if self.log.worker >= 0 else None


def last_at(here: np.ndarray) -> np.ndarray:
    """For each position, the last position at or before it where `here` is true; -1 before."""
    last: np.ndarray = np.maximum.accumulate(np.where(here, np.arange(here.size), -1))
    return last
