"""Where a process was when something went wrong: from its log, also when it was killed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stallscope.eventlog import INDEX_OFFSET, Tag

if TYPE_CHECKING:
    from stallscope.analyze.words import Words


@dataclass(frozen=True)
class Interrupted:
    """The stage that a process was inside of when its log ended, or that an exception left."""

    worker: int | None
    """Worker id; None for the main process."""
    pid: int
    batch: int
    sample: int | None
    """Place in the batch, from 0; None outside of samples."""
    index: int | None
    """Index in the dataset, where there is one."""
    stage: str


def inside_of(words: Words) -> Interrupted | None:
    """The stage that was open when the log ended; None between two batches."""
    if not words.depth.size or words.depth[-1] < 1 or words.tags[-1] == Tag.BATCH_END:
        return None
    return _interrupted(words, int(words.event_at[-1]), int(words.code[-1]))


def raised_in(words: Words) -> Interrupted | None:
    """Each stage that an exception leaves says so, innermost first."""
    at = np.flatnonzero(words.tags == Tag.RAISED)
    if not at.size:
        return None
    same = (words.batch_of_word[at] == words.batch_of_word[at[-1]]) & (
        words.sample_of_word[at] == words.sample_of_word[at[-1]]
    )
    first = int(at[same][0])
    return _interrupted(words, first, int(words.payload[first]))


def _interrupted(words: Words, at: int, code: int) -> Interrupted:
    number = int(words.sample_of_word[at])
    word = int(words.sample_at[number]) if number >= 0 else -1
    indexed = number >= 0 and words.tags[word] == Tag.SAMPLE
    return Interrupted(
        worker=words.worker,
        pid=words.log.pid,
        batch=int(words.payload[words.batch_at[words.batch_of_word[at]]]),
        sample=int(words.sample_place(np.array([number]))[0]) if number >= 0 else None,
        index=int(words.payload[word]) - INDEX_OFFSET if indexed else None,
        stage=words.stages[code].name,
    )
