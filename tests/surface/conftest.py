"""Goldens: what users see, written down; `pytest tests/surface --write-golden` writes it anew."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stallscope.charts import sheet

GOLDEN = Path(__file__).parent / "golden"
HOW = "if that is meant: pytest tests/surface --write-golden, and read the diff"


@dataclass(frozen=True)
class Golden:
    """Compares with the files in `golden`, or writes them."""

    writes: bool

    def text(self, name: str, found: str) -> None:
        """The very same text as in the file `name`."""
        found = "".join(f"{line.rstrip()}\n" for line in found.split("\n"))
        if self.writes:
            self._write(name, found)
        assert (GOLDEN / name).read_text(encoding="utf-8") == found, HOW

    def json(self, name: str, found: Any, rel_tol: float = 0.0) -> None:
        """The same value as in the file `name`; floats as near as `rel_tol`."""
        found = json.loads(json.dumps(found))
        if self.writes:
            self._write(name, _lined(found) + "\n")
        expected = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
        if rel_tol:
            expected = _near(expected, found, rel_tol)
        assert expected == found, HOW

    @staticmethod
    def _write(name: str, text: str) -> None:
        path = GOLDEN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _lined(value: Any, indent: str = "") -> str:
    """JSON with a line for each row, so that a diff can be read."""
    inner = f"{indent} "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(key)}: {_lined(one, inner)}" for key, one in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value):
        rows = [f"{inner}{json.dumps(one, ensure_ascii=False)}" for one in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def _near(expected: Any, found: Any, rel_tol: float) -> Any:
    """What is expected, with each float replaced by the found one if that is near enough."""
    if isinstance(expected, float) and isinstance(found, (float, int)):
        return found if math.isclose(expected, found, rel_tol=rel_tol, abs_tol=1e-15) else expected
    if isinstance(expected, dict) and isinstance(found, dict):
        return {key: _near(one, found.get(key), rel_tol) for key, one in expected.items()}
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = zip(expected, found, strict=True)
        return [_near(one, other, rel_tol) for one, other in pairs]
    return expected


@pytest.fixture(autouse=True, scope="module")
def coarse():
    """Pictures of few pixels: what stands in them is what counts here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sheet, "SHARP", 0.25)
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """What users saw before."""
    return Golden(request.config.getoption("--write-golden"))
