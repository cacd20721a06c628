"""A diagnosis as JSON, for programs; it loads nothing that draws."""

from __future__ import annotations

import json
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final

from stallscope.views.findings import version
from stallscope.views.redaction import known_paths, redacted, value_without_paths

if TYPE_CHECKING:
    from stallscope.diagnoses import Diagnosis

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
        "stallscope": version(),
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
