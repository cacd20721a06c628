"""A diagnosis in a notebook and a terminal: the verdict, its numbers, what to do, what it cost.

Styles stand on their elements and colours are the page's own, so that it is readable on a light and
on a dark ground, and in an exported notebook. Most pictures are those of the run, the ladder and
the flamegraph that the verdict was made from.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from stallscope import result
from stallscope.diagnose.text import (
    GUIDED,
    NOT_TESTED,
    PICTURE_SOURCES,
    PICTURES,
    TWICE,
    all_words,
    ended,
    headline,
    measured,
    notes_of,
    outside_notes,
    phases,
    took,
)
from stallscope.errors import StallscopeError
from stallscope.files import packaged_folder
from stallscope.units import count, words_of
from stallscope.views.document import Block, Document, Notes, html, join

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stallscope.charts.sheet import Sheet
    from stallscope.diagnose.result import Diagnosis
    from stallscope.diagnose.text import FindingText


PANELS: Final = {"evidence": "the pictures behind the verdict (the default)"}
"""Every panel of a diagnosis."""
FIRST: Final = "stages"
"""The picture that a panel begins with, where there is one: the verdict has just been read."""
WIDTH: Final = 100
"""Columns of a line in a terminal."""
_TRACK_PX: Final = 220
_TONES: Final = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#999999")
"""Of the phases, in turn; they stand for no stage."""
_FAINT: Final = "opacity:.75"
_CELL: Final = "padding:3px 12px 3px 0;border:none;text-align:left;vertical-align:top"
_TABLE: Final = (
    "border-collapse:collapse;color:inherit;font-size:inherit;font-variant-numeric:tabular-nums"
)


def plot(diagnosis: Diagnosis, kind: str | None = None) -> Sheet:
    """Draw one of the pictures.

    Args:
        diagnosis: what was found.
        kind: one of `PICTURES`; what was not measured is a sheet that says so.

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
    """Give widgets to choose a picture of what was measured.

    Args:
        diagnosis: what was found.
        kind: one of `PANELS`.

    Raises:
        NoSuchPanelError: there is no such kind.
    """
    result.resolve_panel(kind, PANELS, "a diagnosis")
    from stallscope.views.panels import dropdown, pick

    offered = [
        (says.removesuffix(" (the default)"), name)
        for name, says in PICTURES.items()
        if name not in PICTURE_SOURCES or getattr(diagnosis, PICTURE_SOURCES[name].part) is not None
    ]
    names = [name for _, name in offered]
    first = FIRST if FIRST in names else names[0]
    return pick(lambda name: (plot(diagnosis, name), ""), dropdown("Show", offered, first))


def export(diagnosis: Diagnosis, path: str | Path, *, redact: bool = False) -> Path:
    """Write a report, see `stallscope.views.report`."""
    from stallscope.views import report

    return report.export(diagnosis, path, redact=redact)


def document(diagnosis: Diagnosis) -> Document:
    """The verdict, what else was found, and what was measured."""
    verdict, *others = all_words(diagnosis)
    blocks = [Verdict(headline(diagnosis), verdict), Others(others), Measurement(diagnosis)]
    return Document("diagnosis", blocks, style="max-width:60em")


@dataclass(frozen=True)
class Verdict(Block):
    """The finding that matters most."""

    headline: str
    finding: FindingText

    def __str__(self) -> str:
        return "\n".join([self.headline, "", *_about(self.finding)])

    def __html__(self) -> Markup:
        found = self.finding
        # no line of a large title ends between a value and its unit
        words = (word.replace(" ", "\N{NO-BREAK SPACE}") for word in words_of(found.title))
        return html(
            "<div style='border-left:8px solid {};padding:.1em 0 .1em .9em'>"
            "<p style='margin:0;{}'>Verdict: <code>{}</code></p>"
            "<p style='margin:.15em 0 .4em;font-size:135%;font-weight:bold;line-height:1.25'>{}</p>"
            "{}{}{}</div>",
            found.colour,
            _FAINT,
            found.code,
            " ".join(words),
            _cost(found),
            _numbers(found),
            _next(found),
        )


@dataclass(frozen=True)
class Others(Block):
    """What else was found."""

    findings: Sequence[FindingText]

    def __str__(self) -> str:
        if not self.findings:
            return ""
        lines = ["Also found"]
        for found in self.findings:
            lines += [*_wrapped(found.title, "- ", "  "), *_about(found, "  ")]
        return "\n".join(lines)

    def __html__(self) -> Markup:
        if not self.findings:
            return html("")
        return html(
            "<p style='font-weight:bold;margin:1em 0 .2em'>Also found</p>"
            "<table style='{}'><tbody>{}</tbody></table>{}",
            _TABLE,
            join(_other(found) for found in self.findings),
            Notes([TWICE]),
        )


@dataclass(frozen=True)
class Measurement(Block):
    """What was measured, where the time of that went, and what to know about the numbers."""

    diagnosis: Diagnosis

    def __str__(self) -> str:
        diagnosis = self.diagnosis
        lines = _wrapped(f"measured: {measured(diagnosis)}")
        parts = [f"{phase.name} {phase.seconds:.1f} s" for phase in phases(diagnosis)]
        if parts:
            why = f" · ended: {ended(diagnosis)}" if ended(diagnosis) else ""
            lines += _wrapped(f"spent {took(diagnosis)}: {' · '.join(parts)}{why}")
        lines += [line for note in outside_notes(diagnosis) for line in _wrapped(note)]
        return "\n".join(lines)

    def __html__(self) -> Markup:
        notes = notes_of(self.diagnosis)
        return html(
            "<p style='margin:.8em 0 .2em'>Measured: {}</p>{}<details style='margin:.2em 0'>"
            "<summary>What to know about these numbers: {}</summary>{}</details>",
            measured(self.diagnosis),
            _budget(self.diagnosis),
            count(len(notes), "sentence"),  # pictures come next, and they are what is read
            Notes(notes),
        )


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


def _cost(found: FindingText) -> Markup:
    """What it costs as a bar of the loop's time, and how sure that is."""
    sure = f"how sure: {found.sure}" if found.sure else ""
    told = " · ".join(filter(None, (found.costs, sure)))
    bar = _bar(found, _TRACK_PX) if found.severity else ""
    if not told and found.tested:
        return html("")
    return html("<p style='margin:.2em 0'>{}{}{}</p>", bar, told, _tested(found))


def _tested(found: FindingText) -> Markup:
    return html("") if found.tested else html("<br><b>{}</b>", NOT_TESTED)


def _bar(found: FindingText, track_px: int) -> Markup:
    return html(
        "<span style='display:inline-block;width:{}px;height:.75em;margin-right:10px;"
        "background:#8883'><span style='display:block;height:100%;width:{:.1f}%;background:{}'>"
        "</span></span>",
        track_px,
        100 * found.severity,
        found.colour,
    )


def _numbers(found: FindingText) -> Markup:
    cells = join(
        html(
            "<span style='display:inline-block;margin:.2em 1.4em .2em 0'>"
            "<b style='font-size:115%'>{}</b> {}</span>",
            number.value,
            number.name,
        )
        for number in found.numbers
    )
    return html("<div>{}</div>", cells) if cells else cells


def _next(found: FindingText) -> Markup:
    """One step as a line, several as a list."""
    head = "margin:.4em 0 0"
    if not found.steps:
        return html("")
    if len(found.steps) == 1:
        return html("<p style='{}'><b>Next:</b> {}</p>", head, linked(found.steps[0]))
    items = join(html("<li>{}</li>", linked(step)) for step in found.steps)
    return html(
        "<p style='{}'><b>Next:</b></p><ul style='margin:0;padding-left:1.4em'>{}</ul>", head, items
    )


def linked(step: str) -> Markup:
    """A next step; the name of a guided notebook opens it, where it lies beside this."""
    return Markup(GUIDED.sub(_link, escape(step)))  # noqa: S704 - a link's name has no markup


def _link(name: re.Match[str]) -> str:
    there = f"{name[0].removesuffix('.ipynb')}.ipynb"
    return f"<a href='{there}'>{name[0]}</a>" if there in _guided() else name[0]


@cache
def _guided() -> frozenset[str]:
    """The names of the notebooks that come with this version."""
    try:
        return frozenset(path.name for path in packaged_folder("notebooks").glob("[0-9]*.ipynb"))
    except StallscopeError:  # a package without them still has its verdict
        return frozenset()


def _other(found: FindingText) -> Markup:
    because = html("<br><span style='{}'>{}</span>", _FAINT, found.because)
    sure = html("<br><span style='{}'>how sure: {}</span>", _FAINT, found.sure)
    return html(
        "<tr style='background:none'><td style='{};min-width:12em;max-width:12em'>{}<br>{}{}</td>"
        "<td style='{}'><b>{}</b>{}{}{}</td></tr>",
        _CELL,
        _bar(found, 80),
        found.costs,
        sure if found.sure else "",
        _CELL,
        found.title,
        because if found.because else "",
        _tested(found),
        _next(found),
    )


def _budget(diagnosis: Diagnosis) -> Markup:
    """Where the time of the measurement went; opens on a click."""
    spent = phases(diagnosis)
    if not spent:
        return html("")
    whole = max(sum(phase.seconds for phase in spent), diagnosis.circumstances.budget_s, 1e-9)
    tones = [_TONES[place % len(_TONES)] for place in range(len(spent))]
    pieces = join(
        html("<span style='width:{:.1f}%;background:{}'></span>", 100 * phase.seconds / whole, tone)
        for phase, tone in zip(spent, tones, strict=True)
    )
    rows = join(
        html(
            "<tr style='background:none'><td style='{0};white-space:nowrap'>"
            "<span style='display:inline-block;width:.7em;height:.7em;background:{1}'></span> {2}"
            "</td><td style='{0};text-align:right'>{3:.1f} s</td><td style='{0}'>{4}</td></tr>",
            _CELL,
            tone,
            phase.name,
            phase.seconds,
            phase.why,
        )
        for phase, tone in zip(spent, tones, strict=True)
    )
    why = html("<p style='margin:.2em 0'>Ended: {}</p>", ended(diagnosis))
    return html(
        "<details style='margin:.2em 0'><summary>{}: where it went "
        "<span style='display:inline-flex;width:{}px;height:.75em;margin-left:8px;"
        "background:#8883'>{}</span></summary>"
        "<table style='{}'><tbody>{}</tbody></table>{}</details>",
        took(diagnosis),
        _TRACK_PX,
        pieces,
        _TABLE,
        rows,
        why if ended(diagnosis) else "",
    )
