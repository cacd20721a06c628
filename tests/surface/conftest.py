"""Goldens: saved texts and values that users see; `pytest tests/surface --write-golden` updates."""

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

    def text(self, name: str, actual: str) -> None:
        """Assert the same text as in the file `name`."""
        actual = "".join(f"{line.rstrip()}\n" for line in actual.split("\n"))
        if self.writes:
            self._write(name, actual)
        assert (GOLDEN / name).read_text(encoding="utf-8") == actual, HOW

    def json(self, name: str, actual: Any, rel_tol: float = 0.0) -> None:
        """Assert the same value as in the file `name`; floats may differ by `rel_tol`."""
        actual = json.loads(json.dumps(actual))
        if self.writes:
            self._write(name, _lined(actual) + "\n")
        expected = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
        if rel_tol:
            expected = _near(expected, actual, rel_tol)
        assert expected == actual, HOW

    @staticmethod
    def _write(name: str, text: str) -> None:
        path = GOLDEN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _lined(value: Any, indent: str = "") -> str:
    """JSON with a line for each row, so that a diff can be read."""
    inner = f"{indent} "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(key)}: {_lined(entry, inner)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(row, (dict, list)) for row in value):
        rows = [f"{inner}{json.dumps(row, ensure_ascii=False)}" for row in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def _near(expected: Any, actual: Any, rel_tol: float) -> Any:
    """Return `expected`, with each float replaced by the actual one if it is close enough."""
    if isinstance(expected, float) and isinstance(actual, (float, int)):
        return (
            actual if math.isclose(expected, actual, rel_tol=rel_tol, abs_tol=1e-15) else expected
        )
    if isinstance(expected, dict) and isinstance(actual, dict):
        return {key: _near(value, actual.get(key), rel_tol) for key, value in expected.items()}
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = zip(expected, actual, strict=True)
        return [_near(value, actual_value, rel_tol) for value, actual_value in pairs]
    return expected


@pytest.fixture(autouse=True, scope="module")
def coarse():
    """Draw pictures of few pixels: the tests read only their texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sheet, "SHARP", 0.25)
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Return the saved texts and values."""
    return Golden(request.config.getoption("--write-golden"))
