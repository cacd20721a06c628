"""A diagnosis as one HTML file for a colleague: no network, no kernel, printable.

Every text goes through the template's escaping. The page also forbids itself every request and
every script but its own, which it names by its digest, so that a name that got through would still
not run. With `redact`, there are no pictures, no flamegraph and no paths.

A diagnosis as JSON, for programs; it loads nothing that draws.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2

from stallscope.diagnose.text import (
    NOT_TESTED,
    PICTURE_SOURCES,
    TWICE,
    all_words,
    ended,
    outside_notes,
    phases,
)
from stallscope.files import __version__
from stallscope.flame.tree import of_flame
from stallscope.units import printable, seconds
from stallscope.views.document import write
from stallscope.views.flame_viewer import script, static
from stallscope.views.redact import html_without_paths, known_paths, redacted, value_without_paths

if TYPE_CHECKING:
    from stallscope.diagnose.result import Diagnosis, DiagnosisConditions


SCHEMA_VERSION: Final = 1
"""A number or a name that changes its meaning gets another one."""


def as_json(diagnosis: Diagnosis, *, redact: bool = False) -> str:
    """The findings and what they stand on, for programs.

    Args:
        diagnosis: what was found.
        redact: leave out paths.
    """
    known = known_paths(diagnosis)
    diagnosis = redacted(diagnosis) if redact else diagnosis
    told = diagnosis.circumstances
    values = {
        "schema_version": SCHEMA_VERSION,
        "stallscope": __version__,
        "verdict": diagnosis.verdict.code,
        "findings": [
            {
                **{name: getattr(found, name) for name in ("code", "title", "severity")},
                "evidence": dict(found.evidence),
                **{name: getattr(found, name) for name in ("confidence", "next_step", "tested")},
            }
            for found in diagnosis.findings
        ],
        "spent": diagnosis.spent.to_dicts(),
        "circumstances": {name: getattr(told, name) for name in vars(told)},
        "notes": list(diagnosis.notes),
    }
    values = value_without_paths(values, known) if redact else values
    return json.dumps(_plain(values), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    """As JSON has it: numbers of numpy are numbers, and infinity and nan are null."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if isfinite(value) else None
    return str(value)


_MOUNT: Final = """
mountFlame(document.getElementById("flame"),
  JSON.parse(document.getElementById("data").textContent));
"""
TITLES: Final = {
    "exposed": "What the loop waits for",
    "ladder": "The loop without each of the loader's costs",
    "stages": "Where a sample's time goes",
    "timeline": "Workers and loop",
    "flame": "The workers' code",
}
"""The sections, in order; named like the pictures."""
_MACHINE: Final = {"device": "GPU of the machine"}
"""What is called otherwise than in `Circumstances.machine`: the step's device may be another."""
_NO_PICTURES: Final = "pictures, the flamegraph and paths are left out of this report"


@dataclass(frozen=True)
class Section:
    """A picture, a table, or both."""

    name: str
    title: str
    alt: str = ""
    """The picture's answer."""
    picture: str = ""
    """PNG in base64; empty without one."""
    table: str = ""
    """HTML whose texts are escaped."""
    is_viewer: bool = False
    """Whether the flamegraph stands here; the picture is for paper then."""


def export(diagnosis: Diagnosis, path: str | Path, *, redact: bool = False) -> Path:
    """Write a report; an older file is written over.

    Args:
        diagnosis: what was found.
        path: `.html`, or `.json` for programs.
        redact: leave out paths and pictures.

    Returns:
        The path.

    Raises:
        ExportError: another ending, or it cannot be written there.
    """
    makers = {
        ".html": lambda: page(diagnosis, redact=redact),
        ".json": lambda: as_json(diagnosis, redact=redact),
    }
    return write(Path(path), makers)


def page(diagnosis: Diagnosis, *, redact: bool = False) -> str:
    """The report.

    Args:
        diagnosis: what was found.
        redact: leave out paths and pictures.
    """
    known = known_paths(diagnosis)
    diagnosis = redacted(diagnosis) if redact else diagnosis
    verdict, *others = all_words(diagnosis)
    flame = None if redact or diagnosis.flame is None else of_flame(diagnosis.flame)
    program = f"{script()}{_MOUNT}" if flame else ""
    made = _template().render(
        rules=_rules(program),
        style=static("report.css") + static("viewer.css"),
        verdict=verdict,
        others=others,
        not_tested=NOT_TESTED,
        twice=TWICE,
        sections=_sections(diagnosis, redact=redact),
        facts=_facts(diagnosis),
        phases=phases(diagnosis),
        ended=ended(diagnosis),
        notes=[*outside_notes(diagnosis), *([_NO_PICTURES] if redact else [])],
        version=__version__,
        written=f"{datetime.now().astimezone():%Y-%m-%d %H:%M %z}",
        # the only way out of such an element is "</"
        flame=json.dumps(flame, separators=(",", ":")).replace("<", "\\u003c") if flame else "",
        script=program,
    )
    return html_without_paths(made, known) if redact else made  # those of tables, too


@cache
def _template() -> jinja2.Template:
    """Autoescaping is always on; a name that is missing is an error, not an empty text."""
    rooms = jinja2.PackageLoader("stallscope.views", "templates")
    environment = jinja2.Environment(
        loader=rooms,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def _rules(program: str) -> str:
    """What the page may do: nothing but show itself, and run this one script."""
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode("ascii")
    allowed = f"'sha256-{digest}'" if program else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sections(diagnosis: Diagnosis, *, redact: bool) -> list[Section]:
    """Those for which something was measured."""
    return [
        _section(diagnosis, name, redact=redact)
        for name in TITLES
        if _part(diagnosis, name) is not None and not (redact and not _table(diagnosis, name))
    ]


def _part(diagnosis: Diagnosis, name: str) -> Any:
    return getattr(diagnosis, PICTURE_SOURCES[name].part)


def _section(diagnosis: Diagnosis, name: str, *, redact: bool) -> Section:
    table, is_viewer = _table(diagnosis, name), name == "flame"
    if redact:
        return Section(name, TITLES[name], table=table)
    sheet: Any = diagnosis.plot(name)
    picture = base64.b64encode(sheet.png()).decode("ascii")
    return Section(name, TITLES[name], sheet.title, picture, table, is_viewer)


def _table(diagnosis: Diagnosis, name: str) -> str:
    """The numbers of a section; the run's table stands under its stages, once."""
    if name in {"exposed", "timeline"}:
        return ""
    return str(_part(diagnosis, name)._repr_mimebundle_()["text/html"])


def _facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Name and value of what was measured, and on what."""
    told = diagnosis.circumstances
    simulated = told.simulated_step_s
    step = "yours" if told.has_step else "none was given: the loader alone"
    if simulated is not None:
        step = f"simulated: a timer of {seconds(simulated)}, no device"
    facts = {
        "target": told.name or "—",
        "workers": str(told.num_workers or "none: the main process loads"),
        "batch size": _batch_size(diagnosis),
        "step": step,
        "device": "none: the step is simulated" if simulated is not None else told.device,
        **{_MACHINE.get(name, name): _said(value) for name, value in _machine(told)},
        "budget": f"{told.budget_s:.0f} s, of which {told.wall_s:.1f} s were used",
    }
    return [(printable(name), printable(value, 300)) for name, value in facts.items() if value]


def _machine(told: DiagnosisConditions) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in told.machine.items() if value is not None]


def _batch_size(diagnosis: Diagnosis) -> str:
    size = diagnosis.run.settings.batch_size if diagnosis.run else None
    return "" if size is None else f"{size:,}"


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return f"{value}"
