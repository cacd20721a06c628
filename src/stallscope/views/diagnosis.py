"""The face of a diagnosis: the verdict in a terminal and in a notebook, its pictures, its files.

`stallscope.diagnoses.Diagnosis` finds this module by its name when it is looked at. Most pictures
are those of what it was made from: its run, its ladder, its flamegraph.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from stallscope import result
from stallscope.diagnose.text import (
    NOT_TESTED,
    PICTURE_SOURCES,
    PICTURES,
    all_words,
    ended,
    headline,
    measured,
    outside_notes,
    phases,
    took,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stallscope.charts.sheet import Sheet
    from stallscope.diagnose.result import Diagnosis
    from stallscope.diagnose.text import FindingText


WIDTH: Final = 100
"""Columns of a line in a terminal."""


def plot(diagnosis: Diagnosis, kind: str | None = None) -> Sheet:
    """Draw one of the pictures.

    Args:
        diagnosis: what was found.
        kind: one of `KINDS`; what was not measured is a sheet that says so.

    Raises:
        NoSuchPictureError: there is no such kind.
    """
    name = result.resolve_kind(kind, PICTURES, "a diagnosis")
    from stallscope.charts import findings

    if name not in PICTURE_SOURCES:
        return findings.figure(diagnosis)
    source = PICTURE_SOURCES[name]
    part: Any = getattr(diagnosis, source.part)
    if part is None:
        return findings.missing(diagnosis, source.part)
    sheet: Sheet = part.plot(source.kind)
    return sheet


def panel(diagnosis: Diagnosis, kind: str | None = None) -> Any:
    """Widgets: the pictures behind the verdict, one at a time; see `views.diagnosispanel`."""
    from stallscope.views import result_panels

    return result_panels.diagnosis_panel(diagnosis, kind)


def html(diagnosis: Diagnosis) -> str:
    """The verdict as a compact page for a notebook; see `stallscope.views.verdictpage`."""
    from stallscope.views import verdict_page

    return verdict_page.html(diagnosis)


def export(diagnosis: Diagnosis, path: str | Path, *, redact: bool = False) -> Path:
    """Write a report, see `stallscope.views.report`."""
    from stallscope.views import report

    return report.export(diagnosis, path, redact=redact)


def text(diagnosis: Diagnosis) -> str:
    """The verdict for a terminal, then what else was found and what was measured."""
    verdict, *others = all_words(diagnosis)
    lines = [headline(diagnosis), "", *_about(verdict)]
    if others:
        lines += ["", "Also found"]
    for other in others:
        lines += [*_wrapped(other.title, "- ", "  "), *_about(other, "  ")]
    lines += ["", *_wrapped(f"measured: {measured(diagnosis)}"), *_spent(diagnosis)]
    lines += [line for note in outside_notes(diagnosis) for line in _wrapped(note)]
    return "\n".join(lines)


def _about(found: FindingText, indent: str = "") -> Iterator[str]:
    """What stands under a finding's sentence."""
    head = [f"verdict: {found.code}"] if not indent else [found.code]
    head += [found.costs] if found.costs else []
    head += [f"how sure: {found.sure}"] if found.sure else []
    yield from _wrapped(" · ".join(head), indent)
    if found.because:
        yield from _wrapped(f"because: {found.because}", indent)
    if not found.tested:
        yield f"{indent}{NOT_TESTED}"
    for step in found.steps:
        yield from _wrapped(f"next: {step}", indent, f"{indent}      ")


def _spent(diagnosis: Diagnosis) -> Iterator[str]:
    parts = [f"{one.name} {one.seconds:.1f} s" for one in phases(diagnosis)]
    if parts:
        why = f" · ended: {ended(diagnosis)}" if ended(diagnosis) else ""
        yield from _wrapped(f"spent {took(diagnosis)}: {' · '.join(parts)}{why}")


def _wrapped(told: str, first: str = "", rest: str | None = None) -> list[str]:
    """A sentence as lines of a terminal; a path or a command is never broken."""
    return textwrap.wrap(
        told,
        WIDTH,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
