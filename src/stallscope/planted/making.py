"""What takes long in making a batch and sending it: decoding, transforms, collate, sending."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stallscope.planted import yardsticks
from stallscope.planted.base import NAMES, Two, few, missing_s, with_work
from stallscope.planted.recipe import Op

if TYPE_CHECKING:
    from stallscope.planted.base import Given
    from stallscope.planted.recipe import Recipe, Sending

_LITTLE: Final = 0.15
"""Share of the workers' time that everything but the cause takes, where that is measured."""


def decode(base: Recipe, given: Given) -> Two:
    """Photographs are decoded in the workers; without the cause, they were decoded beforehand.

    Batches are as large as it takes on this machine, by what decoding one photograph takes.
    """
    decode_s = yardsticks.decode_s()
    wanted_s = base.workers * (given.strength - _LITTLE)
    batch = max(round(wanted_s * base.step_s / decode_s), 1)
    scaled = replace(base, batch=batch, step_s=batch * decode_s / wanted_s, reads_files=True)
    healthy = replace(with_work(scaled, _LITTLE, given.draw), decode_s=decode_s)
    return Two(healthy, replace(healthy, decodes=True))


def one_transform(base: Recipe, given: Given) -> Two:
    """One of the three transforms computes for longer than everything else together."""
    more_s = missing_s(base, given.strength) / base.batch
    chosen = given.draw.randrange(len(base.ops))
    ops = [
        replace(op, cpu_s=op.cpu_s + (more_s if place == chosen else 0.0))
        for place, op in enumerate(base.ops)
    ]
    return Two(base, replace(base, ops=tuple(ops)))


def transforms(base: Recipe, given: Given) -> Two:
    """Five transforms, each of which takes about as long as the others."""
    whole_s = missing_s(base, given.strength) / base.batch + sum(op.cpu_s for op in base.ops)
    parts = [given.draw.uniform(0.9, 1.1) for _ in NAMES]
    names = given.draw.sample(NAMES, len(NAMES))
    ops = [Op(name, whole_s * part / sum(parts)) for name, part in zip(names, parts, strict=True)]
    return Two(base, replace(base, ops=tuple(ops)))


def collate(base: Recipe, given: Given) -> Two:
    """Making one batch out of its samples computes for longer than making the samples."""
    return Two(base, replace(base, collate_s=base.collate_s + missing_s(base, given.strength)))


def sending(base: Recipe, given: Given) -> Two:
    """Batches of many megabytes that take next to nothing to make.

    They go through shared memory as a list of tensors, or through the pipe as numpy arrays. The
    step is as long as the machine asks for: the loader's own time for a batch, by the strength.
    """
    kinds: tuple[Sending, ...] = ("list", "arrays")
    kind, megabytes = given.draw.choice(kinds), given.draw.uniform(12, 32)
    workers = min(max(base.workers, 2), 4)
    values = int(megabytes * 1e6 / 4 / base.batch)
    empty = replace(base, workers=workers, ops=(), read_s=0.0, parse_s=0.0, collate_s=0.0)
    took_s = yardsticks.batch_s(replace(empty, sending=kind, values=values))
    scaled = replace(empty, sending=kind, step_s=took_s / given.strength)
    healthy = with_work(scaled, _LITTLE, given.draw)
    return Two(healthy, replace(healthy, values=values))


def lock(base: Recipe, given: Given) -> Two:
    """A transform that holds a lock of all workers: however many there are, one is in it.

    It waits where the cores would not do for all workers at once.
    """
    computes = given.strength / given.cores <= 0.5 and given.draw.random() < 0.5  # noqa: PLR2004
    workers = max(round(given.strength / 0.4), 2)
    more = replace(
        few(base, given.draw, workers, _LITTLE),
        lock_s=given.strength * base.step_s / base.batch,
        lock_computes=computes,
        is_locked=False,
    )
    return Two(more, replace(more, is_locked=True))
