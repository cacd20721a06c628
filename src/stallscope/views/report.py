"""A diagnosis as one HTML file for a colleague: no network, no kernel, printable; and as JSON.

Every text goes through the template's escaping. The page also forbids itself every request and
every script but its own, which it names by its digest, so that a name that got through would still
not run. With `redact`, there are no pictures, no flamegraph and no names of the user's files.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stallscope.files import __version__
from stallscope.units import printable, seconds
from stallscope.verbs.diagnose import text as words
from stallscope.verbs.flame.tree import of_flame
from stallscope.views.document import fill, static, write
from stallscope.views.flame_viewer import page_script, to_json
from stallscope.views.redact import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.verbs.diagnose.result import Diagnosis


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
    text: str = diagnosis._face().as_json(diagnosis)  # noqa: SLF001
    return text


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
    verdict, *others = words.all_words(diagnosis)
    flame = None if redact or diagnosis.flame is None else of_flame(diagnosis.flame)
    program = page_script() if flame else ""
    return fill(
        "report.html",
        rules=_rules(program),
        style=static("report.css") + static("viewer.css"),
        verdict=verdict,
        others=others,
        not_tested=words.NOT_TESTED,
        twice=words.TWICE,
        sections=list(_sections(diagnosis, redact=redact)),
        facts=_facts(diagnosis),
        phases=words.phases(diagnosis),
        ended=words.ended(diagnosis),
        notes=[*words.outside_notes(diagnosis), *([_NO_PICTURES] if redact else [])],
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
        part = getattr(diagnosis, words.PICTURE_SOURCES[name])
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
