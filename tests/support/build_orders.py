"""Orders with planted costs and data, and a bench that answers from the same plan.

The pipeline is that of case B: five ops, of which some may change places.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from stallscope.bench import comparison
from stallscope.bench.comparison import SAME, Factor, Rate
from stallscope.bench.samples import PAIRS
from stallscope.verbs.orders.result import (
    OPS,
    Counts,
    Orders,
    OrdersConditions,
    parts_table,
    trials_table,
)
from stallscope.verbs.orders.variant import (
    DIFFERENT,
    FAILS,
    IDENTICAL,
    NEAR,
    ROUNDING,
    CostPart,
    FixedCosts,
    Grade,
    Variant,
)

NAMES = ("PILToTensor", "RandomCrop", "RandomMask", "ConvertColor", "Scale")
TO_TENSOR, CROP, MASK, COLOUR, SCALE = range(5)
WIDE_MS = {TO_TENSOR: 0.6, CROP: 0.1, MASK: 3.0, COLOUR: 4.0, SCALE: 0.8}
"""On the whole image."""
SMALL_MS = {TO_TENSOR: 0.15, CROP: 0.1, MASK: 3.0, COLOUR: 0.8, SCALE: 0.15}
"""On the crop."""
REST = FixedCosts(fetch_s=0.0002, decode_s=0.0024, batch_s=0.0003)
MASK_FAILS = "RuntimeError: the mask is 256 by 256, the image 533 by 800"
TYPE_FAILS = "TypeError: expected a tensor, got a PIL image"


def cost_s(op: int, before: tuple[int, ...]) -> float:
    return (SMALL_MS if CROP in before else WIDE_MS)[op] / 1000


def failure(positions) -> tuple[int, str] | None:
    """Return the number of ops that work, and why the next one fails; None where all work."""
    for place, op in enumerate(positions):
        before = tuple(positions[:place])
        if op == MASK and CROP not in before:
            return place, MASK_FAILS
        if op in {MASK, COLOUR, SCALE} and TO_TENSOR not in before:
            return place, TYPE_FAILS
    return None


def grade_of(positions) -> Grade:
    """Colour after mask, scale after colour; scale and mask commute but for rounding."""
    if failed := failure(positions):
        return Grade(FAILS, why=failed[1])
    place = {op: number for number, op in enumerate(positions)}
    if place[COLOUR] < place[MASK] or place[SCALE] < place[COLOUR] < place[MASK]:
        return Grade(DIFFERENT, 0.9, 8.0, 16)
    if place[SCALE] < place[COLOUR]:
        return Grade(ROUNDING, 4e-7, 130.0, 16)
    return Grade(IDENTICAL, compared=16)


def parts(positions) -> tuple[CostPart, ...]:
    failed = failure(positions)
    works = list(positions[: failed[0]] if failed else positions)
    ops = [
        CostPart(NAMES[op], cost_s(op, tuple(works[:place])), "transform")
        for place, op in enumerate(works)
    ]
    before = (CostPart("fetch", REST.fetch_s, "fetch"), CostPart("decode", REST.decode_s, "decode"))
    after = [] if failed else [CostPart("collate and send", REST.batch_s, "collate")]
    return (*before, *ops, *after)


def predicted_s(positions) -> float | None:
    return None if failure(positions) else sum(part.seconds for part in parts(positions))


class PlannedBench:
    """Bench that answers from the plan.

    Attributes:
        asked: for each question, the positions it was asked for.
    """

    def __init__(self) -> None:
        self.asked: dict[str, list[tuple[int, ...]]] = {"compare": [], "measure": []}

    def predict(self, positions) -> Variant:
        variant = planned(positions)
        grade = variant.grade if failure(positions) else Grade(FAILS, why="not compared")
        return replace(variant, grade=grade)

    def compare(self, variant) -> Variant:
        self.asked["compare"].append(variant.positions)
        grade = grade_of(variant.positions)
        noise = {IDENTICAL: 0, ROUNDING: 3}.get(grade.equivalence, 60)
        return replace(variant, grade=grade, pictures=(some_pictures(noise),) * 2)

    def measure(self, variant, _budget_s=0.8) -> Variant:
        self.asked["measure"].append(variant.positions)
        took, factor = variant.predicted_s, variant.predicted_speedup
        says = comparison.FASTER if factor > 1.05 else SAME
        return replace(
            variant,
            measured=Rate(took, took * 0.97, took * 1.04),
            speedup=Factor(factor, factor * 0.98, factor * 1.02, says),
        )


def some_pictures(noise: int, seed: int = 0):
    """Return an image and another one with this difference, uint8 of shape (48, 64, 3)."""
    rng = np.random.default_rng(seed)
    across, down = np.meshgrid(np.linspace(0, 200, 64), np.linspace(0, 200, 48))
    image = np.stack([across, down, 255 - across], axis=-1).astype(np.int64)
    noisy = image + (rng.integers(-noise, noise + 1, image.shape) if noise else 0)
    return image.astype(np.uint8), np.clip(noisy, 0, 255).astype(np.uint8)


CHANGES = {
    (1, 0, 2, 3, 4): "RandomCrop before PILToTensor",
    (0, 1, 2, 4, 3): "Scale before ConvertColor",
}
FASTER = "FasterRandomMask"
FASTER_MS = 0.4
REWRITE = f"{FASTER} instead of RandomMask"
AS_IT_IS = list(range(len(NAMES)))
CROP_FIRST = [1, 0, 2, 3, 4]


class Other(NamedTuple):
    """A trial that changes more than the order."""

    kind: str
    change: str
    predicted_ms: float
    positions: list[int] = AS_IT_IS
    names: dict[int, str] = {}  # noqa: RUF012 - is not changed
    """Replaced names of ops, by op."""
    changes: str = ""
    equivalence: str = IDENTICAL
    recommended: bool = False


WHOLE_MS = 7.55
OTHERS = (
    Other("alternative", REWRITE, WHOLE_MS - 2.6, names={MASK: FASTER}, recommended=True),
    Other(
        "batch",
        "ConvertColor, Scale on the whole batch, in the collate function",
        WHOLE_MS + 0.15,
        names={COLOUR: "ConvertColor (on the batch)", SCALE: "Scale (on the batch)"},
    ),
    Other(
        "decode",
        "decoding at half the size",
        WHOLE_MS - 1.8,
        changes="less sharp",
        equivalence=NEAR,
        recommended=True,
    ),
    Other("cache", "the decoded images in memory", WHOLE_MS - 2.4),
    Other(
        "together",
        f"RandomCrop before PILToTensor; {REWRITE}",
        WHOLE_MS - 0.45 - 2.6,
        CROP_FIRST,
        {MASK: FASTER},
        recommended=True,
    ),
)


def planned(positions) -> Variant:
    positions = tuple(positions)
    took, whole = predicted_s(positions), predicted_s(AS_IT_IS)
    grade = grade_of(positions)
    first = positions == tuple(AS_IT_IS)
    return Variant(
        positions,
        change="as it is" if first else CHANGES.get(positions, f"order {positions}"),
        order=" → ".join(NAMES[op] for op in positions),
        predicted_s=took,
        parts=parts(positions),
        grade=grade,
        gains=not first and grade.within(NEAR) and took < whole,
        code=f"# code of {' → '.join(NAMES[op] for op in positions)}",
        predicted_speedup=took and whole / took,
    )


def other(case: Other) -> Variant:
    near = case.equivalence == NEAR
    return Variant(
        tuple(case.positions),
        case.kind,
        case.change,
        case.changes,
        order=" → ".join(case.names.get(op, NAMES[op]) for op in case.positions),
        predicted_s=case.predicted_ms / 1000,
        parts=() if case.kind == "cache" else tuple(_other_parts(case)),
        grade=Grade(case.equivalence, 0.0039 if near else None, 58.0 if near else None, 16),
        gains=case.recommended,
        code=f"# code of {case.change}",
    )


def some_orders(
    *,
    orders=((0, 1, 2, 3, 4), (1, 0, 2, 3, 4), (0, 1, 2, 4, 3), (0, 1, 3, 2, 4), (0, 2, 1, 3, 4)),
    others=OTHERS,
    measured=(0, 1, 5, 9),
    measured_share: float = 1.0,
    pairs: int = 40,
    noise: float = 0.02,
    bench: Any = None,
    notes: tuple[str, ...] = (),
    names=NAMES,
    **circumstances: Any,
) -> Orders:
    """Make orders of case B's pipeline, the first as it is; the measured trials have `pairs`."""
    variants = [*map(planned, orders), *map(other, others)]
    variants = [replace(variant, trial=trial) for trial, variant in enumerate(variants)]
    trials = trials_table(variants)
    return Orders(
        ops=_ops(names),
        trials=trials,
        pairs=_pairs(
            trials,
            [number for number in measured if 0 < number < len(variants)],
            (pairs, noise),
            measured_share,
        ),
        parts=parts_table(variants),
        rest=REST,
        counts=Counts(measurements=31, states=23, exhaustive=600, unexplored=0),
        circumstances=OrdersConditions(
            **{
                "name": "case B",
                "pipeline": "dataset.transform, a torchvision Compose",
                "samples": 16,
                "num_workers": 2,
                "batch_size": 32,
                **circumstances,
            }
        ),
        notes=notes,
        bench=bench,
    )


def _ops(names) -> pl.DataFrame:
    states = ("PIL image 800 × 533", "uint8 3 × 533 × 800", "uint8 3 × 256 × 256")
    gives = (*states[1:], states[2], *["float32 3 × 256 × 256"] * 2)
    takes = (states[0], states[1], states[2], states[2], gives[-1])
    rows = [(-1, "decode", None, "", "a file", states[0], 0.0024, 0.0023, 0.0026, None, None)]
    for op, name in enumerate(names):
        cost = cost_s(op, tuple(range(op)))
        about = (op, name, op in {CROP, MASK}, "size=256" if op == CROP else "")
        where = ("/x/demo.py", 10 * op) if op >= MASK else (None, None)
        rows.append((*about, takes[op], gives[op], cost, cost * 0.95, cost * 1.06, *where))
    return pl.DataFrame(rows, OPS, orient="row")


def _pairs(trials, measured, each, share) -> pl.DataFrame:
    pairs, noise = each
    rng = np.random.default_rng(0)
    planned_s = dict(trials.select("trial", "predicted_s").iter_rows())
    rows = []
    for trial in measured:
        usual = np.array([planned_s[0], planned_s[trial] * share])
        for pair in range(pairs):
            own_s, took_s = usual * (1 + noise * rng.standard_normal(2))
            rows.append((trial, pair, 1, own_s, took_s))
    return pl.DataFrame(rows, PAIRS, orient="row")


def _other_parts(case: Other) -> list[CostPart]:
    """Return the times of a rewrite: the rest of the saving is in decoding, or on the batch."""
    fetch, decode, *ops, batch = parts(case.positions)
    moved = [NAMES[op] for op, name in case.names.items() if name.endswith("(on the batch)")]
    ops = [part for part in ops if part.name not in moved]
    if FASTER in case.names.values():
        place = case.positions.index(MASK)
        ops[place] = CostPart(FASTER, FASTER_MS / 1000, "transform")
    measured = [fetch, *ops, batch]
    left_s = case.predicted_ms / 1000 - sum(part.seconds for part in measured)
    if not moved:
        return [fetch, decode._replace(seconds=left_s), *ops, batch]
    together = CostPart(f"{', '.join(moved)} on the batch", left_s - decode.seconds, "collate")
    return [fetch, decode, *ops, together, batch]
