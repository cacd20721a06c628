"""The verdict as a compact page for a notebook: the answer, its numbers, what to do, what it cost.

Styles stand on their elements and colours are the page's own, so that it is readable on a light and
on a dark ground, and in an exported notebook. Every text is escaped.
"""

from __future__ import annotations

from functools import cache
from html import escape
from typing import TYPE_CHECKING, Final

from stallscope.diagnose.text import (
    GUIDED,
    NOT_TESTED,
    TWICE,
    all_words,
    ended,
    measured,
    notes_of,
    phases,
    took,
)
from stallscope.errors import StallscopeError
from stallscope.packaged import packaged
from stallscope.units import count, words_of
from stallscope.views.document import html_note

if TYPE_CHECKING:
    import re

    from stallscope.diagnose.result import Diagnosis
    from stallscope.diagnose.text import FindingText, Phase


_FAINT: Final = "opacity:.75"
_TRACK_PX: Final = 220
_TONES: Final = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#999999")
"""Of the phases, in turn; they stand for no stage."""
_CELL: Final = "padding:3px 12px 3px 0;border:none;text-align:left;vertical-align:top"


def html(diagnosis: Diagnosis) -> str:
    """The page; see the module."""
    verdict, *others = all_words(diagnosis)
    parts = [
        _verdict(verdict),
        *([_others(others)] if others else []),
        f"<p style='margin:.8em 0 .2em'>{escape(f'Measured: {measured(diagnosis)}')}</p>",
        _budget(diagnosis),
        _notes(diagnosis),
    ]
    return f"<div class='stallscope-diagnosis' style='max-width:60em'>{''.join(parts)}</div>"


def linked(told: str) -> str:
    """A next step as HTML; the name of a guided notebook opens it, where it lies beside this."""
    return GUIDED.sub(_link, escape(told))


def _link(name: re.Match[str]) -> str:
    there = f"{name[0].removesuffix('.ipynb')}.ipynb"
    return f"<a href='{there}'>{name[0]}</a>" if there in _guided() else name[0]


@cache
def _guided() -> frozenset[str]:
    """The names of the notebooks that come with this version."""
    try:
        return frozenset(path.name for path in packaged("notebooks").glob("[0-9]*.ipynb"))
    except StallscopeError:  # a package without them still has its verdict
        return frozenset()


def _verdict(found: FindingText) -> str:
    return (
        f"<div style='border-left:8px solid {found.colour};padding:.1em 0 .1em .9em'>"
        f"<p style='margin:0;{_FAINT}'>Verdict: <code>{escape(found.code)}</code></p>"
        "<p style='margin:.15em 0 .4em;font-size:135%;font-weight:bold;line-height:1.25'>"
        f"{escape(_unbroken(found.title))}</p>"
        f"{_cost(found)}{_numbers(found)}{_next(found)}</div>"
    )


def _cost(found: FindingText) -> str:
    """What it costs as a bar of the loop's time, and how sure that is."""
    sure = f" · how sure: {found.sure}" if found.sure else ""
    told = escape(f"{found.costs}{sure}".removeprefix(" · "))
    tested = "" if found.tested else f"<br><b>{escape(NOT_TESTED)}</b>"
    bar = _bar(found, _TRACK_PX) if found.severity else ""
    return f"<p style='margin:.2em 0'>{bar}{told}{tested}</p>" if told or tested else ""


def _bar(found: FindingText, track_px: int) -> str:
    return (
        f"<span style='display:inline-block;width:{track_px}px;height:.75em;margin-right:10px;"
        "background:#8883'>"
        f"<span style='display:block;height:100%;width:{100 * found.severity:.1f}%;"
        f"background:{found.colour}'></span></span>"
    )


def _numbers(found: FindingText) -> str:
    cells = "".join(
        "<span style='display:inline-block;margin:.2em 1.4em .2em 0'>"
        f"<b style='font-size:115%'>{escape(one.value)}</b> {escape(one.name)}</span>"
        for one in found.numbers
    )
    return f"<div>{cells}</div>" if cells else ""


def _next(found: FindingText) -> str:
    """One step as a line, several as a list."""
    if not found.steps:
        return ""
    head = "margin:.4em 0 0"
    if len(found.steps) == 1:
        return f"<p style='{head}'><b>Next:</b> {linked(found.steps[0])}</p>"
    items = "".join(f"<li>{linked(step)}</li>" for step in found.steps)
    return f"<p style='{head}'><b>Next:</b></p><ul style='margin:0;padding-left:1.4em'>{items}</ul>"


def _unbroken(told: str) -> str:
    """No line of a large title ends between a value and its unit."""
    return " ".join(word.replace(" ", "\N{NO-BREAK SPACE}") for word in words_of(told))


def _notes(diagnosis: Diagnosis) -> str:
    """The small print, which opens on a click: pictures come next, and they are what is read."""
    notes = notes_of(diagnosis)
    return (
        "<details style='margin:.2em 0'><summary>What to know about these numbers: "
        f"{count(len(notes), 'sentence')}</summary>{''.join(map(html_note, notes))}</details>"
    )


def _others(others: list[FindingText]) -> str:
    rows = "".join(_other(found) for found in others)
    return (
        "<p style='font-weight:bold;margin:1em 0 .2em'>Also found</p>"
        "<table style='border-collapse:collapse;color:inherit;font-size:inherit'>"
        f"<tbody>{rows}</tbody></table>{html_note(TWICE)}"
    )


def _other(found: FindingText) -> str:
    because = f"<br><span style='{_FAINT}'>{escape(found.because)}</span>" if found.because else ""
    tested = "" if found.tested else f"<br><b>{escape(NOT_TESTED)}</b>"
    sure = f"<br><span style='{_FAINT}'>how sure: {escape(found.sure)}</span>" if found.sure else ""
    return (
        f"<tr style='background:none'><td style='{_CELL};min-width:12em;max-width:12em'>"
        f"{_bar(found, 80)}<br>{escape(found.costs)}{sure}</td>"
        f"<td style='{_CELL}'><b>{escape(found.title)}</b>{because}{tested}{_next(found)}</td></tr>"
    )


def _budget(diagnosis: Diagnosis) -> str:
    """Where the time of the measurement went; opens on a click."""
    found = phases(diagnosis)
    if not found:
        return ""
    whole = max(sum(one.seconds for one in found), diagnosis.circumstances.budget_s, 1e-9)
    pieces = "".join(_piece(one, place, whole) for place, one in enumerate(found))
    rows = "".join(_phase(one, place) for place, one in enumerate(found))
    last = f"<p style='margin:.2em 0'>Ended: {escape(ended(diagnosis))}</p>"
    return (
        f"<details style='margin:.2em 0'><summary>{escape(took(diagnosis))}: where it went "
        f"<span style='display:inline-flex;width:{_TRACK_PX}px;height:.75em;margin-left:8px;"
        f"background:#8883'>{pieces}</span></summary>"
        "<table style='border-collapse:collapse;color:inherit;font-size:inherit;"
        f"font-variant-numeric:tabular-nums'><tbody>{rows}</tbody></table>"
        f"{last if ended(diagnosis) else ''}</details>"
    )


def _tone(place: int) -> str:
    return _TONES[place % len(_TONES)]


def _piece(one: Phase, place: int, whole: float) -> str:
    wide = 100 * one.seconds / whole
    return f"<span style='width:{wide:.1f}%;background:{_tone(place)}'></span>"


def _phase(one: Phase, place: int) -> str:
    square = f"<span style='display:inline-block;width:.7em;height:.7em;background:{_tone(place)}'>"
    return (
        f"<tr style='background:none'><td style='{_CELL};white-space:nowrap'>{square}</span> "
        f"{escape(one.name)}</td><td style='{_CELL};text-align:right'>{one.seconds:.1f} s</td>"
        f"<td style='{_CELL}'>{escape(one.why)}</td></tr>"
    )
