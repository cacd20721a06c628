"""Check the grade of two orders on random pipelines.

Three to five ops of torchvision are drawn, and two of them that stand side by side change places.
The truth is measured here, without the kit: both orders run on other photographs than the kit's
samples, each op on the same draws, and their largest difference is the truth. A harmful grade calls
a different result the same; a missed one calls the same result different.

    python tests/benchmarks/order_truth.py
    python tests/benchmarks/order_truth.py --pipelines 1000 --seed 7
"""

import os
import random
import warnings
from collections import Counter
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

from collections.abc import Callable, Sequence

import torch
from benchkit.command import Option, arguments, table
from support.pipelines import Smooth, Tensors, evaluator_of
from torchvision.transforms import v2

from stallscope.isolation import seed_everywhere
from stallscope.verbs.orders.variant import (
    DIFFERENT,
    EQUIVALENCES,
    FAILS,
    IDENTICAL,
    NEAR,
    ROUNDING,
    Variant,
)

UNSEEN = 48
"""Photographs for the truth; the kit never sees their draws."""
FLOAT_SHARE, BYTE_SHARE = 1e-5, 3 / 255
"""Largest differences by rounding of floats and to 8 bits, as shares of the values' range."""
OPS: tuple[Callable[[], Any], ...] = (
    lambda: v2.RandomCrop(20),
    lambda: v2.CenterCrop(24),
    lambda: v2.Resize((28, 30)),
    v2.RandomHorizontalFlip,
    lambda: v2.RandomVerticalFlip(0.3),
    lambda: v2.ColorJitter(0.4, 0.4),
    lambda: v2.GaussianBlur(3, 1.0),
    lambda: v2.RandomInvert(0.5),
    lambda: v2.RandomGrayscale(0.3),
    lambda: v2.Pad(2),
    lambda: v2.RandomErasing(0.5),
    lambda: v2.RandomRotation(20),
    lambda: v2.RandomPosterize(3, 0.5),
    lambda: v2.RandomSolarize(128, 0.4),
    lambda: v2.ToDtype(torch.float32, scale=True),
)


def draw_pipeline(rng: random.Random) -> tuple[list[Any], tuple[int, ...]]:
    """Draw a pipeline that works, and an order with two neighbours exchanged."""
    while True:
        ops = [make() for make in rng.sample(OPS, rng.randint(3, 5))]
        try:
            for _ in range(40):  # some ops act only now and then
                v2.Compose(ops)(Tensors(None).image(0))
        except TypeError:  # an op of bytes behind the conversion to floats
            continue
        break
    places = list(range(len(ops)))
    at = rng.randrange(len(ops) - 1)
    places[at], places[at + 1] = places[at + 1], places[at]
    return ops, tuple(places)


def truth(ops: Sequence[Any], order: tuple[int, ...], images: Smooth) -> str:
    """Compare two orders by hand: each op is seeded by its number and the photograph's."""

    def sample_of(index: int, places: Sequence[int]) -> torch.Tensor:
        value = images.image(index)
        for place in places:
            seed_everywhere(1000 * index + place)
            value = ops[place](value)
        return value

    largest, top = 0.0, 0.0
    for index in range(UNSEEN):
        first = sample_of(index, range(len(ops)))
        try:
            reordered = sample_of(index, order)
        except Exception:  # noqa: BLE001 - whatever an op says of such data
            return FAILS
        if first.dtype != reordered.dtype or first.shape != reordered.shape:
            return DIFFERENT
        largest = max(largest, float((first.double() - reordered.double()).abs().max()))
        top = max(top, float(first.double().max() - first.double().min()))
    share = largest / top if top else 0.0
    if not share:
        return IDENTICAL
    if share <= FLOAT_SHARE:
        return ROUNDING
    return NEAR if share <= BYTE_SHARE else DIFFERENT


def main() -> None:
    """Grade the pipelines, and print how often each truth has got each grade."""
    options = arguments(
        __doc__,
        pipelines=Option(200, 4, "random pipelines"),
        seed=Option(1, 1, "of the pipelines"),
    )
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rng, counts, examples = random.Random(options.seed), Counter[tuple[str, str]](), []
    for number in range(options.pipelines):
        ops, order = draw_pipeline(rng)
        actual = truth(
            ops, order, Tensors(lambda image: image, seed=number + 10_000, entries=UNSEEN)
        )
        evaluator = evaluator_of(Tensors(v2.Compose(ops), seed=number))
        grade = evaluator.judged(Variant(order)).grade.equivalence
        counts[actual, grade] += 1
        is_same, says_same = (each not in (DIFFERENT, FAILS) for each in (actual, grade))
        if is_same != says_same:
            names = [type(op).__name__ for op in ops]
            examples.append(f"{actual}, called {grade}: {names} in the order {order}")
    rows = [
        (actual, *(str(counts[actual, grade]) for grade in EQUIVALENCES))
        for actual in EQUIVALENCES
        if any(counts[actual, grade] for grade in EQUIVALENCES)
    ]
    print(table(("truth, called", *EQUIVALENCES), rows))
    bad = (DIFFERENT, FAILS)
    harmful = sum(n for (actual, grade), n in counts.items() if actual in bad and grade not in bad)
    missed = sum(n for (actual, grade), n in counts.items() if actual not in bad and grade in bad)
    print(
        f"\n{options.pipelines} pipelines: {harmful} harmful, {missed} missed", *examples, sep="\n"
    )


if __name__ == "__main__":
    main()
