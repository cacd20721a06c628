"""Sentences about a pipeline's orders, shared by the table, the charts and the panel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.bench.comparison import FASTER, OPEN, SAME, SLOWER, open_title
from stallscope.stats import INTERVAL
from stallscope.units import LONGEST_NOTE, count, printable, seconds, share, speedup
from stallscope.verbs.orders.equivalence import BYTE
from stallscope.verbs.orders.result import PROMISING, op_names
from stallscope.verbs.orders.variant import (
    CACHE,
    DIFFERENT,
    EQUIVALENCES,
    FAILS,
    IDENTICAL,
    NEAR,
    ROUNDING,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stallscope.bench.comparison import Factor
    from stallscope.verbs.orders.result import Orders
    from stallscope.verbs.orders.variant import CostPart, Grade, Variant


_OUTPUT: Final = {
    IDENTICAL: "identical output",
    ROUNDING: "output that is identical up to rounding",
    NEAR: "output within 8-bit rounding",
}


def interval_text(factor: Factor | None) -> str:
    """Write a factor's interval in brackets, with a space before; "": there is none."""
    if factor is None or factor.low is None or factor.high is None:
        return ""
    return f" ({INTERVAL} {factor.low:.2f} to {factor.high:.2f})"


def sentence(orders: Orders) -> str:
    """Return the answer: the best pipeline and its speedup, or to keep the original."""
    best, near = orders.best_variant(), beyond(orders)
    if best is None and near:
        return f"{near}; {_only_samples(orders) or 'nothing is faster with identical output'}"
    if best is None:
        return _nothing(orders)
    output = _OUTPUT[best.grade.equivalence]
    if best.speedup is None:
        return f"{best.change}: {speedup(best.fast)} faster with {output} (predicted)"
    return (
        f"{best.change}: {best.fast:.2f}× faster with {output}{interval_text(best.speedup)}"
        f"{_in_loader(best)}"
    )


def beyond(orders: Orders) -> str:
    """Return the best pipeline within 8-bit rounding; "": it is not faster than the best."""
    best, near = orders.best_variant(), orders.best_variant(NEAR)
    if near is None or near.grade.equivalence != NEAR or near.speedup is None:
        return ""
    if best is not None and near.fast < PROMISING * best.fast:
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
        return "Keep the pipeline: no other was tried"
    if held_back := _only_samples(orders):
        return f"Keep the pipeline: {held_back}"
    safe = _safe(orders)
    first = next((variant for variant in safe if variant.says == OPEN), None)
    if first and first.speedup and first.fast > 1:
        highs = (variant.speedup.high for variant in safe if variant.speedup)
        took_s = orders.circumstances.took_s
        if title := open_title("order", first.change, first.speedup, highs, took_s):
            return title
    nearest = ""
    if safe and safe[0].fast > 1:
        ends = interval_text(safe[0].speedup)
        nearest = f"; best: {safe[0].change}, {safe[0].fast:.2f}×{ends}"
    return (
        f"Keep the pipeline: none of {others:,} others is faster with the same "
        f"output{nearest}{_for_memory(orders)}"
    )


def _only_samples(orders: Orders) -> str:
    """Return the best safe variant that makes samples faster but the loader slower; "": none."""
    for variant in _safe(orders):
        gain = variant.loader_gain
        if variant.says == FASTER and gain is not None and gain.says == SLOWER:
            return (
                f"{variant.change} makes samples {variant.fast:.2f}× faster"
                f"{interval_text(variant.speedup)}, but the loader slower: {gain.factor:.2f}×"
                f"{interval_text(gain)}"
            )
    return ""


def _safe(orders: Orders) -> list[Variant]:
    """Return measured variants within the tolerance that take no memory, the fastest first."""
    tolerance = orders.circumstances.tolerance
    measured = (variant for variant in orders.variants if variant.speedup and variant.kind != CACHE)
    safe = [variant for variant in measured if variant.grade.within(tolerance)]
    return sorted(safe, key=lambda variant: -variant.fast)


def _for_memory(orders: Orders) -> str:
    """Return the fastest cache, which costs memory and so is not recommended."""
    cached = [v for v in orders.variants if v.kind == CACHE and v.grade.equivalence == IDENTICAL]
    fast = max(cached, key=lambda v: v.fast * bool(v.speedup), default=None)
    if fast is None or fast.speedup is None or (fast.speedup.low or 0.0) <= PROMISING:
        return ""
    return f"; {fast.change}: {speedup(fast.fast)} faster"


def costliest(orders: Orders) -> str:
    """Return the op with the largest share of a sample's time; "": no op was timed."""
    parts = [part for variant in orders.variants if not variant.trial for part in variant.parts]
    ops = [part for part in parts if part.kind == "transform"]
    if not ops:
        return ""
    first = max(ops, key=lambda part: part.seconds)
    whole_s, decode_s = sum(part.seconds for part in parts), _decode_s(parts)
    text = f"{first.name} is the costliest op: {share(first.seconds / whole_s)} of a sample's time"
    return text + (f"; decoding the image takes {share(decode_s / whole_s)}" if decode_s else "")


def _decode_s(parts: Sequence[CostPart]) -> float:
    return sum(part.seconds for part in parts if part.kind == "decode")


def floor(orders: Orders) -> str:
    """Return the share of decoding, which no order removes; "": unknown."""
    best = orders.best_variant()
    if best is None or not _decode_s(best.parts):
        return ""
    took = share(_decode_s(best.parts) / sum(part.seconds for part in best.parts))
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
    shades = f"{BYTE * most:.2f}"
    text = f"{most:.1g} of the values' range" if shades == "0.00" else f"{shades}/{BYTE:.0f}"
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


def notes_of(orders: Orders) -> list[str]:
    """Return the caveats, a sentence each."""
    about = orders.circumstances
    where = f" of {printable(about.pipeline, 80)}" if about.pipeline else ""
    of = f"compared on {count(about.samples, 'sample')}{where}"
    if orders.pairs.height:
        of += f" · timed on {count(orders.pairs.height, 'pair')} of samples, in one process"
    changes = [
        f"{variant.change}: {variant.changes}"
        for variant in orders.variants
        if variant.changes and (orders.recommends(variant) or variant.kind == CACHE)
    ]
    took = [variant.predicted_s for variant in orders.variants if not variant.trial]
    whole = f"{seconds(took[0])} per sample as it is" if any(took) else ""
    top = " · ".join(filter(None, (costliest(orders), whole)))
    tried = " · ".join(filter(None, (summary(orders), search(orders))))
    notes = [top, floor(orders), of, tried, *changes, *orders.notes]
    return [printable(note, LONGEST_NOTE) for note in notes if note]
