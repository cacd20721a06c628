"""Sentences about a pipeline's orders, shared by the table, the charts and the panel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.bench import samples
from stallscope.bench.comparison import FASTER, OPEN, SAME, open_title
from stallscope.orders.result import op_names
from stallscope.orders.variant import (
    CACHE,
    DIFFERENT,
    EQUIVALENCES,
    FAILS,
    IDENTICAL,
    NEAR,
    ROUNDING,
)
from stallscope.stats import INTERVAL
from stallscope.units import count, printable, seconds, share, times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stallscope.bench.comparison import Factor
    from stallscope.orders.result import Orders
    from stallscope.orders.variant import Grade, Variant


TITLE: Final = 200
PIPELINE: Final = 80
"""Most characters of a title, and of a pipeline's place."""
_NOTE: Final = 600
_BYTE: Final = 255
_SHADE: Final = 0.01
"""Difference, of 255, below which the text gives it as a share of the range."""
_FINE: Final = 1.1
"""Speedup below which two decimals are written."""
_MUCH_FASTER: Final = 1.05
"""Speedup over the best from which a variant within 8-bit rounding is named, too."""
_OUTPUT: Final = {
    IDENTICAL: "identical output",
    ROUNDING: "output that is identical up to rounding",
    NEAR: "output within 8-bit rounding",
}


def factor_text(factor: float) -> str:
    """Write a factor: '1.8×', '1.04×'."""
    return times(factor) if factor >= _FINE else f"{factor:.2f}×"


def interval_text(factor: Factor | None) -> str:
    """Write a factor's interval in brackets, with a space before; "": there is none."""
    if factor is None or factor.low is None or factor.high is None:
        return ""
    return f" ({INTERVAL} {factor.low:.2f} to {factor.high:.2f})"


def sentence(orders: Orders) -> str:
    """Return the answer: the best pipeline and its speedup, or to keep the original."""
    best, near = orders.best_variant(), beyond(orders)
    if best is None and near:
        return f"{near}; nothing is faster with identical output"
    if best is None:
        return _nothing(orders)
    output = _OUTPUT[best.grade.equivalence]
    if best.speedup is None:
        return f"{best.change}: {factor_text(best.fast)} faster with {output} (predicted)"
    return (
        f"{best.change}: {best.fast:.2f}× faster with {output}{interval_text(best.speedup)}"
        f"{_in_loader(best)}"
    )


def beyond(orders: Orders) -> str:
    """Return the best pipeline within 8-bit rounding; "": it is not faster than the best."""
    best, near = orders.best_variant(), orders.best_variant(NEAR)
    if near is None or near.grade.equivalence != NEAR or near.speedup is None:
        return ""
    if best is not None and near.fast < _MUCH_FASTER * best.fast:
        return ""
    speed = f"{near.fast:.2f}× faster{interval_text(near.speedup)}"
    return f"{near.change}: {speed}, but the output {difference(near.grade)}"


def _in_loader(best: Variant) -> str:
    gain = best.loader_gain
    if gain is not None and gain.says == SAME:
        return "; the loader is no faster, as something else limits it"
    if gain is not None and gain.says == FASTER:
        return f"; {gain.factor:.2f}× the loader's throughput ({gain.low:.2f} to {gain.high:.2f})"
    return ""


def _nothing(orders: Orders) -> str:
    names = list(op_names(orders).values())
    others = len(orders.variants) - 1
    if len(names) == 1 and others <= 0:
        return f"The pipeline has a single op, {names[0]}, so there is no other order"
    if others <= 0 and orders.counts.unexplored:
        return "The budget ran out before another pipeline was tried: raise budget_s"
    if others <= 0:
        return "Keep the pipeline as it is: no other was tried"
    open_, unsettled = [variant for variant in _safe(orders) if variant.says == OPEN], ""
    if open_ and open_[0].fast > 1:
        unsettled = _unsettled(orders, open_[0])
    return unsettled or (
        f"Keep the pipeline as it is: none of {others:,} others is faster with the same output"
        f"{_nearest(orders)}{_for_memory(orders)}"
    )


def _unsettled(orders: Orders, variant: Variant) -> str:
    """Return the variant that may be faster, and the budget that would settle it."""
    speedup = samples.compared(samples.pairs_of(orders.pairs), variant.trial)
    took_s = orders.circumstances.took_s
    highs = (other.speedup.high for other in _safe(orders) if other.speedup)
    return open_title("order", variant.change, speedup, highs, took_s)


def _nearest(orders: Orders) -> str:
    """Return the variant with the largest speedup, which is not significant."""
    fast = [variant for variant in _safe(orders) if variant.fast > 1]
    if not fast:
        return ""
    return f"; best: {fast[0].change}, {fast[0].fast:.2f}×{interval_text(fast[0].speedup)}"


def _safe(orders: Orders) -> list[Variant]:
    """Return measured variants within the tolerance that take no memory, the fastest first."""
    tolerance = orders.circumstances.tolerance
    measured = (variant for variant in orders.variants if variant.speedup and variant.kind != CACHE)
    return _fastest(variant for variant in measured if variant.grade.within(tolerance))


def _for_memory(orders: Orders) -> str:
    """Return the fastest cache, which costs memory and so is not recommended."""
    cached = [variant for variant in orders.variants if variant.kind == CACHE and variant.speedup]
    fast = _fastest(variant for variant in cached if variant.grade.equivalence == IDENTICAL)
    if not fast or ((fast[0].speedup and fast[0].speedup.low) or 0.0) <= _FINE:
        return ""
    return f"; {fast[0].change}: {factor_text(fast[0].fast)} faster"


def _fastest(variants: Iterable[Variant]) -> list[Variant]:
    return sorted(variants, key=lambda variant: -variant.fast)


def costliest(orders: Orders) -> str:
    """Return the op with the largest share of a sample's time; "": no op was timed."""
    parts = [part for variant in orders.variants if not variant.trial for part in variant.parts]
    ops = [part for part in parts if part.kind == "transform"]
    whole = sum(part.seconds for part in parts)
    if not ops or not whole:
        return ""
    first = max(ops, key=lambda part: part.seconds)
    text = f"{first.name} is the costliest op: {share(first.seconds / whole)} of a sample's time"
    decode = sum(part.seconds for part in parts if part.kind == "decode")
    return text + (f"; decoding the image takes {share(decode / whole)}" if decode else "")


def floor(orders: Orders) -> str:
    """Return the share of decoding, which no order removes; "": unknown."""
    best = orders.best_variant()
    parts = best.parts if best else ()
    decode = sum(part.seconds for part in parts if part.kind == "decode")
    if not decode:
        return ""
    took = share(decode / sum(part.seconds for part in parts))
    return f"decoding the image takes {took} of the best pipeline; no order removes that"


def summary(orders: Orders) -> str:
    """Return the number of pipelines that were tried, by grade."""
    others = [variant.grade.equivalence for variant in orders.variants if variant.trial]
    if not others:
        return ""
    grades = [(others.count(grade), grade) for grade in EQUIVALENCES]
    listed = ", ".join(f"{number:,} {grade}" for number, grade in grades if number)
    return f"{count(len(others), 'other pipeline')} tried: {listed}"


def search(orders: Orders) -> str:
    """Return the extent of the search, and of an exhaustive one."""
    counts = orders.counts
    if not counts.measurements:
        return ""
    text = f"{count(counts.measurements, 'op')} timed in {count(counts.states, 'state')}"
    if counts.exhaustive > counts.measurements:
        text += f"; timing every order alone would take {counts.exhaustive:,}"
    return text


def difference(grade: Grade) -> str:
    """Return the largest difference of the data from the original's, in words."""
    most = grade.max_difference
    if most is None:
        return "differs"
    shades = _BYTE * most
    text = f"{shades:.2f}/255" if shades >= _SHADE else f"{most:.1g} of the values' range"
    psnr = "" if grade.psnr_db is None else f" (PSNR {grade.psnr_db:.0f} dB)"
    return f"differs by at most {text}{psnr}"


def verdict(grade: Grade) -> str:
    """Return the grade of the data, in words."""
    on = f" on {count(grade.compared, 'sample')}" if grade.compared and grade.works else ""
    text = {
        IDENTICAL: "identical: the same bits",
        ROUNDING: f"rounding: {difference(grade)}",
        NEAR: f"8-bit rounding: {difference(grade)}",
        DIFFERENT: "different data",
        FAILS: "fails",
    }[grade.equivalence]
    return f"{text}{on} ({grade.why})" if grade.why else f"{text}{on}"


def whole(orders: Orders) -> str:
    """Return the original's time per sample; "": unknown."""
    took = [
        variant.predicted_s
        for variant in orders.variants
        if not variant.trial and variant.predicted_s
    ]
    return f"{seconds(took[0])} per sample as it is" if took else ""


def notes_of(orders: Orders) -> list[str]:
    """Return the caveats, a sentence each."""
    about = orders.circumstances
    where = f" of {printable(about.pipeline, PIPELINE)}" if about.pipeline else ""
    of = f"compared on {count(about.samples, 'sample')}{where}"
    if orders.pairs.height:
        of += f" · timed on {count(orders.pairs.height, 'pair')} of samples, in one process"
    changes = [
        f"{variant.change}: {variant.changes}"
        for variant in orders.variants
        if variant.changes and (orders.recommends(variant) or variant.kind == CACHE)
    ]
    top = " · ".join(part for part in (costliest(orders), whole(orders)) if part)
    tried = " · ".join(part for part in (summary(orders), search(orders)) if part)
    notes = [top, floor(orders), of, tried, *changes, *orders.notes]
    return [printable(note, _NOTE) for note in notes if note]
