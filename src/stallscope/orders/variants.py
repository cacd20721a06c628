"""What is looked at: orders, rewrites, changes beyond the order, and all that gain together.

Each variant is a recipe with what is known of it: what it should cost, and whether it gives the
same data. Nothing is recommended whose data was not compared with the original's and found to be
the same. The functions add to `OrderEvaluator.variants`, inside of its `guarded` block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.errors import ArgumentError
from stallscope.orders.candidates import CANDIDATES
from stallscope.orders.recipe import Recipe, Variant, change_of, code_of
from stallscope.orders.result import (
    BATCH,
    CACHE,
    DECODE,
    DIFFERENT,
    EQUIVALENCES,
    FAILS,
    FETCH,
    IDENTICAL,
    PARTS,
    TOLERANCES,
    TRIALS,
    Equivalence,
)
from stallscope.orders.run_ops import measure_op
from stallscope.orders.search import cheapest, failures
from stallscope.units import repr_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stallscope.orders.evaluator import OrderEvaluator
    from stallscope.orders.pipeline import Op

_MOST_SAME: Final = 5
"""Orders that give the original's data."""
_MOST_OTHERS: Final = 3
"""Orders of each other grade, and twice as many of those that raise."""
_MOST_COMPARED: Final = 50
"""Orders of one digest that are looked at until enough are found to be the same."""
_WORTH: Final = 0.01
"""Of a sample's time: changes that should save less are left out where all come together."""
_MOST_FINALISTS: Final = 7
"""Pipelines beside the original that are measured for real."""
_FIRST_KINDS: Final = ("order", "alternative", "batch", "decode", "cache")
"""The kinds of which one is measured first."""
_ROUNDING: Final = 1e-9
"""Seconds."""
_REDRAWN: Final = (
    "random numbers are drawn in another order, so that a seed gives other samples than before"
)


def add_original(evaluator: OrderEvaluator) -> None:
    """Add the pipeline as it is; has to come first."""
    same = Equivalence(IDENTICAL, compared=len(evaluator.inputs))
    original = Recipe(evaluator.as_it_is)
    evaluator.variants.append(
        Variant("order", original, "as it is", ops_s=evaluator.base_s, comparison=same)
    )


def add_alternatives(evaluator: OrderEvaluator, alternatives: Mapping[Any, Any] | None) -> None:
    """Add the user's rewrites of ops, each by itself.

    Args:
        evaluator: the pipeline.
        alternatives: a rewrite, or several, by an op's name or position.

    Raises:
        ArgumentError: there is no such op, or the rewrite cannot be called.
    """
    for position, op, name in _rewrites(evaluator.ops, alternatives):
        old = evaluator.ops[position]
        recipe = Recipe(evaluator.as_it_is, replaced={position: op})
        comparison = evaluator.judge(recipe)
        ops_s = None
        if comparison.equivalence != FAILS:
            stream, inputs = evaluator.stream(position, op), evaluator.inputs_of(position)
            rewritten_s = measure_op(old, stream, inputs).seconds
            ops_s = evaluator.base_s - evaluator.outcomes[position].seconds + rewritten_s
        change = f"{_name_of(op)} instead of {old.name}"
        evaluator.variants.append(
            Variant("alternative", recipe, change, "", ops_s, comparison, {position: name})
        )


def _rewrites(
    ops: tuple[Op, ...], alternatives: Mapping[Any, Any] | None
) -> Iterator[tuple[int, Any, str]]:
    """Position, object and expression of each rewrite."""
    known = {op.name: op.position for op in ops}
    for key, value in (alternatives or {}).items():
        position = known.get(key) if isinstance(key, str) else key
        if not isinstance(position, int) or position not in range(len(ops)):
            raise ArgumentError(
                f"alternatives: there is no op {key!r} in this pipeline; there are "
                f"{', '.join(repr(name) for name in known)}"
            )
        several = list(value) if isinstance(value, (list, tuple)) else [value]
        for number, op in enumerate(several):
            if not callable(op) or isinstance(op, type):
                raise ArgumentError(
                    f"alternatives[{key!r}] is {op!r:.80}: give an op that can be called with a "
                    "sample, an object and not its class"
                )
            place = f"[{number}]" if len(several) > 1 else ""
            yield position, op, f"alternatives[{key!r}]{place}"


def _name_of(op: Any) -> str:
    return str(getattr(op, "__name__", type(op).__name__))


def add_orders(evaluator: OrderEvaluator, is_over: Callable[[], bool]) -> None:
    """Add the cheapest orders of the original's data, of other data, and some that raise."""
    classes = cheapest(evaluator.found, _MOST_COMPARED)
    *_, (_, last) = evaluator.found.after(evaluator.as_it_is)
    same = 0
    for _, order in classes.pop(last.state.digest if last and last.state else "", []):
        if same >= _MOST_SAME or is_over():
            break
        if order != evaluator.as_it_is:
            evaluator.variants.append(_order(evaluator, order))
            same += evaluator.variants[-1].is_same
    left = dict.fromkeys(EQUIVALENCES, _MOST_OTHERS)
    for (_, order), digest in sorted((orders[0], digest) for digest, orders in classes.items()):
        grade = evaluator.grades.get(digest, DIFFERENT)
        left[grade] -= 1
        if left[grade] >= 0 and not is_over():
            evaluator.variants.append(_order(evaluator, order))
    for beginning, why in failures(evaluator.found)[: 2 * _MOST_OTHERS]:
        order = (*beginning, *(p for p in evaluator.as_it_is if p not in beginning))
        change, fails = change_of(order, evaluator.ops), Equivalence(FAILS, why=why)
        evaluator.variants.append(Variant("order", Recipe(order), change, comparison=fails))


def _order(evaluator: OrderEvaluator, order: tuple[int, ...]) -> Variant:
    drawing = [position for position in order if evaluator.outcomes[position].is_random]
    return Variant(
        "order",
        Recipe(order),
        change_of(order, evaluator.ops),
        "" if drawing == sorted(drawing) else _REDRAWN,
        sum(seconds for _, _, seconds in evaluator.op_seconds(order)),
        evaluator.judge(Recipe(order)),
    )


def add_candidates(
    evaluator: OrderEvaluator, notes: list[str], is_over: Callable[[], bool]
) -> None:
    """Add what each candidate proposes; of one that fails itself that is noted.

    Args:
        evaluator: the pipeline.
        notes: get a sentence for what was not tried.
        is_over: whether there is no time for more.
    """
    for candidate in CANDIDATES:
        if is_over():
            return
        try:
            for variant in candidate(evaluator, notes):
                comparison = evaluator.judge(variant.recipe)
                ops_s = None if comparison.equivalence == FAILS else variant.ops_s
                evaluator.variants.append(replace(variant, ops_s=ops_s, comparison=comparison))
                if is_over():
                    return
        except Exception as error:  # noqa: BLE001 - the user's ops and files, in an odd place
            notes.append(f"a change could not be tried: {repr_of(error):.160}")


def choose_finalists(evaluator: OrderEvaluator) -> list[int]:
    """Choose what is measured: of each kind the one that gains most, then what is left.

    The largest promise comes first: a short budget has room for one.
    """
    variants = evaluator.variants
    can = [
        number
        for number, variant in enumerate(variants)
        if number and variant.ops_s is not None
        if variant.comparison.equivalence not in (FAILS, DIFFERENT)
        # What the user asks for is always worth a look, else what is predicted to gain
        if variant.kind == "alternative" or variant.ops_s < evaluator.base_s
    ]
    can.sort(key=lambda n: (not evaluator.tolerates(variants[n]), variants[n].ops_s or 0.0))
    first: dict[tuple[str, str], int] = {}
    for number in can:
        kind, grade = variants[number].kind, variants[number].comparison.equivalence
        if kind in _FIRST_KINDS:  # of orders the fastest of each grade
            first.setdefault((kind, grade if kind == "order" else ""), number)
    firsts = sorted(
        first.values(), key=lambda n: (not _is_gain(evaluator, variants[n]), can.index(n))
    )
    rest = [n for n in can if n not in firsts and _is_gain(evaluator, variants[n])]
    return [*firsts, *rest][:_MOST_FINALISTS]


def _is_gain(evaluator: OrderEvaluator, variant: Variant) -> bool:
    """Whether a variant should be faster, gives nearly the same data, and takes no memory."""
    faster = variant.ops_s is not None and variant.ops_s < evaluator.base_s
    is_near = variant.comparison.equivalence in TOLERANCES and not variant.comparison.why
    return faster and is_near and variant.kind != CACHE


def add_together(evaluator: OrderEvaluator, measured: Mapping[int, float]) -> list[int]:
    """Add all changes that gain within the tolerance; and with those beyond it on top.

    Args:
        evaluator: the pipeline.
        measured: how many times as fast variants were, by their number; a change has to gain here,
            too, and not only as predicted.

    Returns:
        The numbers of the new variants.
    """
    before = len(evaluator.variants)
    saved_s = dict(_saved_s(evaluator, measured))
    safe = {one: s for one, s in saved_s.items() if evaluator.tolerates(one)}
    same = _together(evaluator, safe)
    more = _together(evaluator, saved_s)
    if same is not None:
        evaluator.variants.append(same)
    if more is not None and (same is None or more.change != same.change):
        evaluator.variants.append(more)
    return list(range(before, len(evaluator.variants)))


def _saved_s(
    evaluator: OrderEvaluator, measured: Mapping[int, float]
) -> Iterator[tuple[Variant, float]]:
    """Changes that are worth it, and what each saves at least: as predicted, and measured."""
    whole_s = evaluator.base_s + evaluator.fixed.total_s
    for number, variant in enumerate(evaluator.variants):
        if variant.ops_s is None or variant.comparison.equivalence not in TOLERANCES:
            continue
        saved_s = evaluator.base_s - variant.ops_s
        if number in measured:
            saved_s = min(saved_s, whole_s * (1 - 1 / measured[number]))
        if saved_s > _WORTH * whole_s:
            yield variant, saved_s


def _together(evaluator: OrderEvaluator, saved_s: Mapping[Variant, float]) -> Variant | None:
    """The best of each kind in one pipeline; None where there are not two.

    Args:
        evaluator: the pipeline.
        saved_s: changes that gain, and by how much, seconds per sample.
    """
    picked: list[Variant] = []
    for kind in ("order", "alternative", "decode", "batch"):
        gaining = [one for one in saved_s if one.kind == kind]
        for variant in sorted(gaining, key=lambda one: -saved_s[one]):
            if _fits(variant, picked):
                picked.append(variant)
    if len(picked) < 2:  # noqa: PLR2004 - one alone is a variant already
        return None
    recipe = picked[0].recipe
    for variant in picked[1:]:
        recipe = recipe.joined(variant.recipe)
    base_s = evaluator.base_s
    ops_s = base_s - sum(base_s - (one.ops_s or base_s) for one in picked)
    comparison = evaluator.judge(recipe)
    return Variant(
        "together",
        recipe,
        "; ".join(one.change for one in picked),
        "; ".join(dict.fromkeys(one.changes for one in picked if one.changes)),
        None if comparison.equivalence == FAILS else ops_s,
        comparison,
        {position: name for one in picked for position, name in one.names.items()},
    )


def _fits(variant: Variant, picked: list[Variant]) -> bool:
    """Whether a change can be made beside those that are picked."""
    replaced = {p for other in picked for p in other.recipe.replaced}
    if variant.kind == "alternative":
        return not replaced & set(variant.recipe.replaced)
    if any(other.kind == variant.kind for other in picked):
        return False
    if variant.kind == "batch":
        moved = variant.recipe.on_batch
        positions = (picked[0] if picked else variant).recipe.positions
        return positions[-len(moved) :] == moved and not replaced & set(moved)
    return True


def trials_table(evaluator: OrderEvaluator) -> pl.DataFrame:
    """One row a variant, columns of `result.TRIALS`."""
    rows = [
        (
            number,
            variant.kind,
            list(variant.recipe.positions),
            " → ".join(_names_in(evaluator, variant.recipe)),
            variant.change,
            variant.changes,
            None if variant.ops_s is None else evaluator.fixed.total_s + variant.ops_s,
            *variant.comparison[:-1],
            _is_gain(evaluator, variant),
            code_of(variant.recipe, evaluator.site, variant.names),
        )
        for number, variant in enumerate(evaluator.variants)
    ]
    return pl.DataFrame(rows, TRIALS, orient="row")


def _names_in(evaluator: OrderEvaluator, recipe: Recipe) -> Iterator[str]:
    """The ops as the column `order` shows them."""
    for position in recipe.positions:
        if position in recipe.replaced:
            yield _name_of(recipe.replaced[position])
        else:
            on_batch = " (on the batch)" if position in recipe.on_batch else ""
            yield evaluator.ops[position].name + on_batch


def parts_table(evaluator: OrderEvaluator) -> pl.DataFrame:
    """One row a part of a variant's predicted time, columns of `result.PARTS`."""
    rows = [
        (number, *part)
        for number, variant in enumerate(evaluator.variants)
        for part in _parts_of(evaluator, variant)
    ]
    return pl.DataFrame(rows, PARTS, orient="row")


def _parts_of(evaluator: OrderEvaluator, variant: Variant) -> list[tuple[str, float, str]]:
    """Name, seconds and kind of each part; none where they cannot be told apart."""
    recipe, fixed = variant.recipe, evaluator.fixed
    fails = variant.comparison.equivalence == FAILS
    if variant.ops_s is None or fails or recipe.cached:
        return []
    names = dict(zip(recipe.positions, _names_in(evaluator, recipe), strict=True))
    rewritten = {
        (position, id(op)): one.ops_s - evaluator.base_s + evaluator.outcomes[position].seconds
        for one in evaluator.variants
        if one.kind == "alternative" and one.ops_s is not None
        for position, op in one.recipe.replaced.items()
    }
    ops = [
        (
            names[position],
            rewritten.get((position, id(recipe.replaced.get(position))), seconds),
            "transform",
        )
        for position, _, seconds in evaluator.op_seconds(recipe.positions)
        if position not in recipe.on_batch
    ]
    # beside the ops either decoding is another one, or ops are somewhere else
    left_s = fixed.decode_s + variant.ops_s - sum(seconds for _, seconds, _ in ops)
    decode_s = fixed.decode_s if recipe.on_batch else left_s
    if min(decode_s, left_s - decode_s) < -_ROUNDING:
        return []
    moved = ", ".join(evaluator.ops[position].name for position in recipe.on_batch)
    parts = [
        (FETCH, fixed.fetch_s, "fetch"),
        (DECODE, decode_s, "decode"),
        *ops,
        (f"{moved} on the batch", left_s - decode_s, "collate"),
        (BATCH, fixed.batch_s, "collate"),
    ]
    return [part for part in parts if part[1] > _ROUNDING]
