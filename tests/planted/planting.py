"""A loader with a planted cause, and the same loader without it.

The truth about a planted loader is this: with the cause, a step with its wait takes `strength`
times as long as the step alone; with the cause taken away, and nothing else changed, it takes
hardly longer than the step.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from planted import causes
from planted.loader import build
from planted.sound import HEALTHY, Given, Two, base
from stallscope.errors import ArgumentError
from stallscope.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import DataLoader

    from planted.recipe import Recipe

Plant: TypeAlias = "Callable[[Recipe, Given], Two]"

PLANTED: Final[dict[str, Plant]] = {
    "storage-latency": causes.storage_latency,
    "storage-bandwidth": causes.storage_bandwidth,
    "decode": causes.decode,
    "one-transform": causes.one_transform,
    "transforms": causes.transforms,
    "collate": causes.collate,
    "sending": causes.sending,
    "too-few-workers": causes.too_few_workers,
    "idle-workers": causes.idle_workers,
    "few-cores": causes.few_cores,
    "cpu-saturated": causes.cpu_saturated,
    "oversubscription": causes.oversubscription,
    "main-process": causes.main_process,
    "too-little-prefetch": causes.too_little_prefetch,
    "slow-samples": causes.slow_samples,
    "slow-worker": causes.slow_worker,
    "start-up": causes.start_up,
    "lock": causes.lock,
}
"""Each cause that can be planted here. What cannot: a copy to a device takes a device, and memory
or `/dev/shm` that is used up is not safe on a machine that others use, too."""

NOT_PLANTED: Final = ("copy", "memory-pressure", "shm")
"""Causes that no loader here has, so nothing is known of how often their verdict is right."""

ASKED: Final = ("memory-growth", "repeated-work")
"""Causes that only loaders in `real_questions` have: a strength cannot be given to them."""

HEALTHY_CODE: Final = "healthy"

PAIRS: Final = (
    ("storage-latency", "collate"),
    ("storage-latency", "one-transform"),
    ("one-transform", "collate"),
    ("one-transform", "storage-latency"),
    ("collate", "storage-latency"),
    ("transforms", "storage-latency"),
    ("slow-worker", "slow-samples"),
    ("storage-bandwidth", "one-transform"),
    ("start-up", "slow-worker"),
)
"""Pairs that can be planted together, the one that costs more first. Only such whose costs add up:
what is slow throughout hides what is slow now and then, whichever of them gains more if mended."""
MINOR: Final = 0.4
"""The second of a pair costs so much of what the first does."""


@dataclass(frozen=True)
class Planted:
    """A loop with a known truth."""

    loader: DataLoader[Any]
    """Makes its batches."""
    step: Callable[[Any], object]
    """Uses one batch; simulated by a timer, or, in some of `cpu-saturated`, it computes."""
    causes: tuple[str, ...]
    """Causes, the most expensive first; empty for a healthy loop."""
    recipe: Recipe
    """Recipe of the loop."""
    taken_away: Planted | None = None
    """The same loop without its causes; None where nothing is wrong."""

    @property
    def truth(self) -> str:
        """The code of the verdict that is right."""
        return self.causes[0] if self.causes else HEALTHY_CODE


def plant(code: str, seed: int = 0, strength: float = 2.0) -> Planted:
    """A loop with a cause; nothing is started, but what decoding, sending or threads take here.

    Args:
        code: of `PLANTED`, or "healthy".
        seed: of the numbers that are drawn: the step, the batch, the work, where the cause sits.
        strength: how many times as long as its step a step with its wait takes, above 1.

    Raises:
        ArgumentError: there is no such cause, or no such strength.
        TargetError: torchvision or the sample data is missing.
        UnsupportedError: it cannot be planted so strongly on this machine.
    """
    if code != HEALTHY_CODE and code not in PLANTED:
        raise ArgumentError(
            f"{code!r} cannot be planted: give one of {', '.join([HEALTHY_CODE, *PLANTED])}"
        )
    conditions, sound = _begin(code, seed, strength)
    if code == HEALTHY_CODE:
        kind = HEALTHY[seed % len(HEALTHY)]
        return _planted(kind(sound, conditions.draw), ())
    return _with_its_like(PLANTED[code](sound, conditions), (code,))


def plant_pair(first: str, second: str, seed: int = 0, strength: float = 2.2) -> Planted:
    """A loop with two causes, of which the first costs more.

    Args:
        first: with `second`, one of `PAIRS`.
        second: costs less.
        seed: see `plant`.
        strength: of the first alone; the second's follows from it (`MINOR`).

    Raises:
        ArgumentError: these two cannot be planted together.
    """
    if (first, second) not in PAIRS:
        pairs = ", ".join(" + ".join(pair) for pair in PAIRS)
        raise ArgumentError(f"{first!r} and {second!r} cannot be planted together: take {pairs}")
    conditions, sound = _begin(f"{first} {second}", seed, strength)
    both = together(PLANTED[first], PLANTED[second], sound, conditions)
    return _with_its_like(both, (first, second))


def together(first: Plant, second: Plant, sound: Recipe, conditions: Given) -> Two:
    """Two causes in one loop.

    Args:
        first: plants the one that costs more.
        second: plants the other, into what the first one's loop is without it.
        sound: what both are planted into.
        conditions: the strength is that of the first.
    """
    major = first(sound, conditions)
    two = second(major.without, replace(conditions, strength=1 + MINOR * (conditions.strength - 1)))
    changes = {
        field.name: getattr(major.spoilt, field.name)
        for field in fields(major.spoilt)
        if getattr(major.spoilt, field.name) != getattr(major.without, field.name)
    }
    return Two(two.without, replace(two.spoilt, **changes))


def _begin(name: str, seed: int, strength: float) -> tuple[Given, Recipe]:
    if not strength > 1:  # false for nan, too
        raise ArgumentError(f"strength={strength!r}: give a number above 1")
    conditions = Given(Random(f"{name} {seed}"), usable_cores(), strength)
    return conditions, base(conditions.draw, conditions.cores)


def _with_its_like(two: Two, causes: tuple[str, ...]) -> Planted:
    return replace(_planted(two.spoilt, causes), taken_away=_planted(two.without, ()))


def _planted(recipe: Recipe, causes: tuple[str, ...]) -> Planted:
    return Planted(*build(recipe), causes, recipe)
