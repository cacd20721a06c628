"""The face of a diagnosis: the verdict in a terminal and in a notebook, its pictures, its files.

`stallscope.diagnoses.Diagnosis` finds this module by its name when it is looked at. Most pictures
are those of what it was made from: its run, its ladder, its flamegraph.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stallscope.views import kinds
from stallscope.views.findings import (
    NOT_TESTED,
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

    from stallscope.diagnoses import Diagnosis
    from stallscope.views.charts.style import Sheet
    from stallscope.views.findings import Words

WIDTH: Final = 100
"""Columns of a line in a terminal."""


class Source(NamedTuple):
    """Whose picture it is."""

    part: str
    """Field of the diagnosis."""
    kind: str | None
    """The picture's name there."""


KINDS: Final = {
    "findings": "the verdict, and what else was found, by what it costs (the default)",
    "exposed": "what the loop stood still for",
    "stages": "where a sample's time goes",
    "timeline": "workers and loop over a few seconds: who was waited for",
    "waits": "every step's wait, and the patterns in them",
    "resources": "what the machine did meanwhile",
    "ladder": "how fast the loop is without each of the loader's costs",
    "flame": "the merged stacks of the workers",
}
"""Every picture of a diagnosis."""
SOURCES: Final = {
    "ladder": Source("ladder", None),
    "flame": Source("flame", None),
    **{kind: Source("run", kind) for kind in ("exposed", "stages", "timeline", "waits")},
    "resources": Source("run", "resources"),
}
"""Those that are of a part of it."""


def plot(diagnosis: Diagnosis, kind: str | None = None) -> Sheet:
    """Draw one of the pictures.

    Args:
        diagnosis: what was found.
        kind: one of `KINDS`; what was not measured is a sheet that says so.

    Raises:
        NoSuchPictureError: there is no such kind.
    """
    name = kinds.picture(kind, KINDS, "a diagnosis")
    from stallscope.views.charts import findings

    if name not in SOURCES:
        return findings.figure(diagnosis)
    source = SOURCES[name]
    part: Any = getattr(diagnosis, source.part)
    if part is None:
        return findings.missing(diagnosis, source.part)
    sheet: Sheet = part.plot(source.kind)
    return sheet


def panel(diagnosis: Diagnosis, kind: str | None = None) -> Any:
    """Widgets: the pictures behind the verdict, one at a time; see `views.diagnosispanel`."""
    from stallscope.views import diagnosispanel

    return diagnosispanel.panel(diagnosis, kind)


def html(diagnosis: Diagnosis) -> str:
    """The verdict as a compact page for a notebook; see `stallscope.views.verdictpage`."""
    from stallscope.views import verdictpage

    return verdictpage.html(diagnosis)


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


def _about(found: Words, indent: str = "") -> Iterator[str]:
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
