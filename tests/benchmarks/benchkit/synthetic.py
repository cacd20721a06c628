"""Event logs of a long recording that never took place, in the shape of a real one.

Four workers, batches of 32 samples, eleven stages: what the recorder writes for a folder of JPEGs
(open, decode inside of `convert`, five transforms, collate), with times drawn around real ones.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import numpy as np

from stallscope.hooks.stage_log import (
    CODE_SHIFT,
    HEADER_WORDS,
    INDEX_OFFSET,
    MAGIC,
    TAG_SHIFT,
    Header,
    Tag,
)
from stallscope.stages import BATCH, COLLATE, DECODE, FETCH, GETITEM, Stage

if TYPE_CHECKING:
    from pathlib import Path

WORKERS: Final = 4
SAMPLES: Final = 32
FILES: Final = 2000
CPU_EVERY: Final = 8
BORN_NS: Final = 10**9
EXIT: Final = 0

CONVERT = Stage("PIL.convert", "transform", gives_way=True)
TRANSFORMS: Final = tuple(
    Stage(name, "transform")
    for name in ("RandomResizedCrop", "RandomHorizontalFlip", "PILToTensor", "ToDtype", "Normalize")
)
STAGES: Final = (BATCH, GETITEM, FETCH, CONVERT, DECODE, *TRANSFORMS, COLLATE)
CODES: Final = {stage: code for code, stage in enumerate(STAGES, start=1)}

Words = list[tuple[int, int, int]]
"""Tag, code of the stage or 0, and typical ns since the event before."""


def _enter(stage: Stage, after_ns: int) -> tuple[int, int, int]:
    return Tag.ENTER, CODES[stage], after_ns


def _sample() -> Words:
    """What one sample writes."""
    words: Words = [(Tag.SAMPLE, 0, 0), _enter(GETITEM, 3000), _enter(FETCH, 4000)]
    words += [(Tag.FILE, 0, 0), (EXIT, 0, 100_000), (Tag.PIXELS, 0, 0)]
    words += [_enter(CONVERT, 3000), _enter(DECODE, 2000), _enter(FETCH, 90_000)]
    words += [(EXIT, 0, 20_000), (EXIT, 0, 1_500_000), (EXIT, 0, 90_000)]
    for stage, cost_ns in zip(
        TRANSFORMS, (1_100_000, 40_000, 100_000, 60_000, 280_000), strict=True
    ):
        words += [_enter(stage, 6000), (EXIT, 0, cost_ns)]
    return [*words, (Tag.SAMPLE_END, 0, 0), (EXIT, 0, 5000)]


def _with_cpu(words: Words) -> Words:
    """The same with the CPU clock read before every event."""
    pairs = [
        [(Tag.CPU, 0, after_ns), (tag, code, 0)] if tag in (EXIT, Tag.ENTER) else [(tag, code, 0)]
        for tag, code, after_ns in words
    ]
    return [word for pair in pairs for word in pair]


def _batch() -> np.ndarray:
    """What one batch writes, shape (words, 3)."""
    words: Words = [(Tag.BATCH, 0, 0), _enter(BATCH, 5000)]
    for number in range(SAMPLES):
        words += _with_cpu(_sample()) if number % CPU_EVERY == 0 else _sample()
    words += _with_cpu([_enter(COLLATE, 7000), (EXIT, 0, 9_000_000)])
    return np.array([*words, (EXIT, 0, 5000), (Tag.BATCH_END, 0, 0)])


def spans_a_batch() -> int:
    """How many spans a batch makes: one from each event to the next, as long as a stage is open."""
    tags = _batch()[:, 0]
    return int(np.isin(tags, (EXIT, Tag.ENTER)).sum()) - 1


def write_logs(folder: Path, spans: int) -> None:
    """Write the logs of all workers, of about so many spans together."""
    batches = max(2, round(spans / spans_a_batch() / WORKERS))
    for worker in range(WORKERS):
        words = _words(worker, batches)
        header = np.zeros(HEADER_WORDS, dtype=np.int64)
        header[[Header.MAGIC, Header.PID, Header.WORKER]] = MAGIC, 1000 + worker, worker
        header[[Header.BORN_NS, Header.READY_NS]] = BORN_NS
        header[[Header.CAPACITY, Header.EVERY]] = words.size + 1, 1
        log = folder / f"{worker}.events"
        np.concatenate([header, words, [0]]).tofile(log)
        log.with_suffix(".names").write_text(_names(), encoding="utf-8")


def _names() -> str:
    lines = [{"code": code, "stage": stage} for stage, code in CODES.items()]
    lines += [{"file": i + 1, "path": f"/data/photographs/{i:05}.jpg"} for i in range(FILES)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def _words(worker: int, batches: int) -> np.ndarray:
    """All words of one worker, int64."""
    tag, code, typical_ns = (np.tile(column, batches) for column in _batch().T)
    chance = np.random.default_rng(worker)
    time_ns = np.cumsum(typical_ns * chance.gamma(9, 1 / 9, typical_ns.size)).astype(np.int64)
    sample = np.cumsum(tag == Tag.SAMPLE) - 1
    batch = (np.cumsum(tag == Tag.BATCH) - 1) * WORKERS + worker
    index = (batch * SAMPLES + sample % SAMPLES) * 7919 % FILES
    payload = np.select(
        [tag == Tag.ENTER, tag == Tag.SAMPLE, tag == Tag.FILE, tag == Tag.BATCH, tag == Tag.PIXELS],
        [code << CODE_SHIFT | time_ns, index + INDEX_OFFSET, index + 1, batch, 800 << 24 | 533],
        default=time_ns,
    )
    return np.where(tag == EXIT, time_ns + BORN_NS, tag << TAG_SHIFT | payload)
