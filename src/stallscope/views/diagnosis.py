"""A diagnosis in a notebook, in a terminal, and as a report: one HTML file, or JSON.

Most pictures come from the run, the ladder and the flamegraph behind the verdict.

A report needs no network and no kernel. Every text goes through the template's escaping. The page
also forbids itself every request and every script but its own, which it names by its digest, so
that a name that got through would still not run. With `redact`, there are no pictures, no
flamegraph and no names of the user's files.
"""

from __future__ import annotations

import base64
import hashlib
import textwrap
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from stallscope.errors import StallscopeError
from stallscope.files import __version__, packaged_folder
from stallscope.units import printable, seconds, unbroken
from stallscope.verbs.diagnose import text
from stallscope.views.code import page_script, to_json, viewer_data
from stallscope.views.document import Document, Notes, View, fill, static, write
from stallscope.views.redact import redacted

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

    from stallscope.verbs.diagnose.result import Diagnosis
    from stallscope.verbs.diagnose.text import FindingText


WIDTH: Final = 100
"""Columns of a line in a terminal."""
_BRIEF: Final = 9
"""Most lines at the end of a script's own output."""
_TONES: Final = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#999999")
"""Colours of the phases, in turn; they are not stages' colours."""


def panel(diagnosis: Diagnosis) -> Any:
    """Return widgets to choose a picture of the measurements."""
    from stallscope.views.panels import pictures

    offered = {
        name: shows
        for name, (shows, _) in VIEW.pictures.items()
        if name not in OF_PARTS or getattr(diagnosis, OF_PARTS[name][1]) is not None
        if name != "fixes" or diagnosis.fixes.height
    }
    # the verdict has just been read, so the panel begins with another picture where there is one
    first = "stages" if "stages" in offered else next(iter(offered))
    return pictures(diagnosis, offered, first)


def document(diagnosis: Diagnosis) -> Document:
    """Return the verdict, the other findings, and the measurements."""
    return Document("diagnosis", [Findings(diagnosis)])


@dataclass(frozen=True)
class Findings:
    """The verdict, the other findings, and the measurements behind them."""

    diagnosis: Diagnosis

    def __str__(self) -> str:
        diagnosis = self.diagnosis
        verdict, *others = text.all_words(diagnosis)
        lines = [verdict.title, "", *_about(verdict), ""]
        if others:
            lines.append("Also found")
            for finding in others:
                lines += [*_wrapped(finding.title, "- ", "  "), *_about(finding, "  ")]
            lines.append("")
        if helps := text.helping(diagnosis):
            lines.append(text.WOULD_HELP)
            lines += [line for gain in helps for line in _wrapped(gain, "- ", "  ")] + [""]
        lines += _wrapped(f"measured: {text.measured(diagnosis)}")
        if not text.is_measured(diagnosis):
            lines += _wrapped(text.ended(diagnosis))
        elif parts := [f"{phase.name} {phase.seconds:.1f} s" for phase in text.phases(diagnosis)]:
            why = f" · ended: {text.ended(diagnosis)}" if text.ended(diagnosis) else ""
            lines += _wrapped(f"spent {text.took(diagnosis)}: {' · '.join(parts)}{why}")
        lines += [line for note in text.outside_notes(diagnosis) for line in _wrapped(note)]
        return "\n".join(lines)

    def __html__(self) -> Markup:
        diagnosis = self.diagnosis
        verdict, *others = text.all_words(diagnosis)
        notes, spent = text.notes_of(diagnosis), text.phases(diagnosis)
        whole = max(sum(phase.seconds for phase in spent), diagnosis.circumstances.budget_s, 1e-9)
        return fill(
            "diagnosis.html",
            verdict=verdict,
            # no line of a large title ends between a value and its unit
            title=unbroken(verdict.title),
            others=others,
            helps=text.helping(diagnosis),
            would_help=text.WOULD_HELP,
            not_tested=text.NOT_TESTED,
            twice=Notes([text.TWICE]),
            linked=linked,
            measured=text.measured(diagnosis),
            took=text.took(diagnosis),
            phases=[
                (_TONES[place % len(_TONES)], 100 * phase.seconds / whole, phase)
                for place, phase in enumerate(spent)
            ],
            ended=text.ended(diagnosis),
            notes=Notes(notes, shown=0),
        )


def brief(diagnosis: Diagnosis) -> list[str]:
    """Return the verdict alone, in a few lines of a terminal."""
    verdict = text.all_words(diagnosis)[0]
    lines = [*_wrapped(verdict.title), *_about(replace(verdict, numbers=()))]
    return lines[:_BRIEF]


def _about(finding: FindingText, indent: str = "") -> Iterator[str]:
    sure = f"confidence: {finding.sure}" if finding.sure else ""
    code = finding.code if indent else f"verdict: {finding.code}"
    yield from _wrapped(" · ".join(filter(None, (code, finding.costs, sure))), indent)
    if finding.because:
        yield from _wrapped(f"because: {finding.because}", indent)
    if not finding.tested:
        yield f"{indent}{text.NOT_TESTED}"
    for step in finding.steps:
        yield from _wrapped(f"next: {step}", indent, f"{indent}      ")


def _wrapped(sentence: str, first: str = "", rest: str | None = None) -> list[str]:
    """Break a sentence into lines of a terminal; keep paths, commands and quantities whole."""
    lines = textwrap.wrap(
        unbroken(sentence),
        WIDTH,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\xa0", " ") for line in lines]


def linked(step: str) -> Markup:
    """Return a next step as HTML; the name of a guided notebook beside this page opens it."""
    return Markup(text.GUIDED.sub(_link, escape(step)))  # noqa: S704 - a link's name has no markup


def _link(name: re.Match[str]) -> str:
    there = f"{name[0].removesuffix('.ipynb')}.ipynb"
    return f"<a href='{there}'>{name[0]}</a>" if there in _guided() else name[0]


@cache
def _guided() -> frozenset[str]:
    try:
        return frozenset(path.name for path in packaged_folder("notebooks").glob("*.ipynb"))
    except StallscopeError:  # a package without them still has its verdict
        return frozenset()


# ---- a report: one HTML file for a colleague, and JSON -------------------------------------------

SCHEMA_VERSION: Final = 1
"""Version of the JSON; changes when a number or a name changes its meaning."""


def values(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the findings and their evidence, for programs."""
    names = ("code", "title", "severity", "evidence", "confidence", "next_step", "tested")
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": diagnosis.verdict.code,
        "findings": [
            {name: getattr(finding, name) for name in names} for finding in diagnosis.findings
        ],
        "spent": diagnosis.spent.to_dicts(),
    }


def as_json(diagnosis: Diagnosis, *, redact: bool = False) -> str:
    """Return a diagnosis for programs, with or without names, see `views.redact`."""
    diagnosis = redacted(diagnosis) if redact else diagnosis
    written: str = diagnosis._face().as_json(diagnosis)  # noqa: SLF001
    return written


TITLES: Final = {
    "exposed": "What the loop waits for",
    "ladder": "The loop without each of the loader's costs",
    "stages": "Where a sample's time goes",
    "timeline": "Workers and loop",
    "flame": "The workers' code",
}
"""The sections, in order; named like the pictures."""
_NO_PICTURES: Final = "pictures, the flamegraph and names of files are left out of this report"


def export(diagnosis: Diagnosis, path: str | Path, *, redact: bool = False) -> Path:
    """Write a report; see `Diagnosis.export`."""
    makers = {
        ".html": lambda: page(diagnosis, redact=redact),
        ".json": lambda: as_json(diagnosis, redact=redact),
    }
    return write(Path(path), makers)


def page(diagnosis: Diagnosis, *, redact: bool = False) -> str:
    """Return the report; without pictures and names if redacted, see `views.redact`."""
    diagnosis = redacted(diagnosis) if redact else diagnosis
    verdict, *others = text.all_words(diagnosis)
    flame = None if redact or diagnosis.flame is None else viewer_data(diagnosis.flame)
    program = page_script() if flame else ""
    return fill(
        "report.html",
        rules=_rules(program),
        style=static("report.css") + static("viewer.css"),
        verdict=verdict,
        others=others,
        helps=text.helping(diagnosis),
        would_help=text.WOULD_HELP,
        not_tested=text.NOT_TESTED,
        twice=text.TWICE,
        sections=list(_sections(diagnosis, redact=redact)),
        facts=_facts(diagnosis),
        phases=text.phases(diagnosis),
        ended=text.ended(diagnosis),
        notes=[*text.outside_notes(diagnosis), *([_NO_PICTURES] if redact else [])],
        version=__version__,
        written=f"{datetime.now().astimezone():%Y-%m-%d %H:%M %z}",
        flame=to_json(flame) if flame else "",
        script=program,
    )


def _rules(program: str) -> str:
    """Return the permissions of the page: show itself, and run this script."""
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode("ascii")
    allowed = f"'sha256-{digest}'" if program else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sections(diagnosis: Diagnosis, *, redact: bool) -> Iterator[dict[str, str]]:
    """Yield what was measured: a picture and, as HTML whose texts are escaped, a table."""
    for name, title in TITLES.items():
        part = getattr(diagnosis, OF_PARTS[name][1])
        shown = {"name": name, "title": title, "table": "", "alt": "", "picture": ""}
        if part is None:
            continue
        if name not in {"exposed", "timeline"}:  # the run's table stands under its stages, once
            shown["table"] = part._repr_mimebundle_()["text/html"]
        if not redact:
            sheet: Any = diagnosis.plot(name)
            shown["alt"] = sheet.title
            shown["picture"] = sheet.png_text()
        if shown["table"] or shown["picture"]:
            yield shown


def _facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    conditions = diagnosis.circumstances
    simulated, device = conditions.simulated_step_s, conditions.device
    step = "yours" if conditions.has_step else "none was given: the loader alone"
    if simulated is not None:
        step = f"simulated: a timer of {seconds(simulated)}, no device"
        device = "none: the step is simulated"
    size = diagnosis.run.settings.batch_size if diagnosis.run else None
    here = {name: str(value) for name, value in conditions.machine.items() if value is not None}
    # the step's device may be another
    machine = {"GPU of the machine": here.pop("device", ""), **here}
    facts = {
        "target": conditions.name or "—",
        "workers": str(conditions.num_workers or "none: the main process loads"),
        "batch size": "" if size is None else f"{size:,}",
        "step": step,
        "device": device,
        **machine,
        "budget": f"{conditions.budget_s:.0f} s, of which {conditions.wall_s:.1f} s were used",
    }
    return [(printable(name), printable(value, 300)) for name, value in facts.items() if value]


def _draw(kind: str, diagnosis: Diagnosis) -> Any:
    from stallscope.charts import results

    source = OF_PARTS[kind][1]
    part: Any = getattr(diagnosis, source)
    return results.missing(diagnosis, source) if part is None else part.plot(kind)


OF_PARTS: Final = {
    "exposed": ("what the loop stalled for", "run"),
    "stages": ("where a sample's time goes", "run"),
    "timeline": ("workers and loop over a few seconds: which worker the loop waited for", "run"),
    "waits": ("every step's wait, and the patterns in them", "run"),
    "resources": ("what the machine did meanwhile", "run"),
    "ladder": ("how fast the loop is without each of the loader's costs", "ladder"),
    "flame": ("the merged stacks of the workers", "flame"),
}
"""Pictures of parts of a diagnosis: what each shows, and the part, which has it under that name."""
VIEW: Final = View(
    "a diagnosis",
    document,
    {
        "findings": (
            "the verdict and the other findings, by their cost",
            "results.findings_figure",
        ),
        **{kind: (shows, partial(_draw, kind)) for kind, (shows, _) in OF_PARTS.items()},
        "fixes": (
            "what would help: predicted, and measured where it was tried",
            "results.fixes_figure",
        ),
    },
    {"evidence": ("the pictures behind the verdict", "diagnosis.panel")},
    values,
)
