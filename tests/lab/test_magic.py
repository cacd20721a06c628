"""`%%stallscope` in a real kernel: the cell behaves as without it, and the verdict follows."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SRC = Path(__file__).parents[2] / "src"
SETUP = """
%load_ext stallscope
import time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(3)
def loader():
    return DataLoader(Slow(), batch_size=8, num_workers=2)
"""
RAISES = """%%stallscope
for number, _ in enumerate(loader()):
    if number == 20:
        raise KeyError(1)"""


@pytest.fixture
def outputs_of(tmp_path, monkeypatch):
    """Run cells in a kernel, and return each one's outputs."""
    nbclient = pytest.importorskip("nbclient")
    from nbformat import v4

    monkeypatch.setenv("PYTHONPATH", str(SRC))

    def run(*cells):
        notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in (SETUP, *cells)])
        where = {"metadata": {"path": tmp_path}}
        nbclient.NotebookClient(notebook, timeout=120, allow_errors=True, resources=where).execute()
        return [cell.outputs for cell in notebook.cells[1:]]

    return run


def text_of(outputs):
    plain = [output.get("data", {}).get("text/plain", "") for output in outputs]
    return "\n".join([*plain, *(output.get("text", "") for output in outputs)])


def test_the_verdict_and_the_timeline_follow_the_cell(outputs_of, tmp_path):
    """The cell's names, its last value and the loop's own error are as without the magic."""
    watched, value, raised, debugged = outputs_of(
        "%%stallscope --save run --html report.html\nfor batch in loader():\n    x = 5\nx",
        "x",
        RAISES,
        "import sys\nsys.last_value",
    )

    assert "verdict:" in text_of(watched)
    assert ["5", "5"] == [watched[0]["data"]["text/plain"], value[0]["data"]["text/plain"]]
    assert any("image/png" in output.get("data", {}) for output in watched)
    assert (tmp_path / "run" / "run.json").exists()
    assert (tmp_path / "report.html").exists()
    assert "KeyError" == raised[-1]["ename"]
    assert "stallscope" not in "".join(raised[-1]["traceback"])
    assert 1 == sum("ename" in output for output in raised)
    assert "KeyError(1)" in text_of(debugged)
    assert "verdict:" in text_of(raised)


def test_a_cell_without_a_loader_says_so(outputs_of):
    """One sentence, and no red cell."""
    (outputs,) = outputs_of("%%stallscope\ny = 3")

    assert "the cell iterated no DataLoader" in text_of(outputs)
    assert not [output for output in outputs if output.output_type == "error"]


def test_an_unknown_option_is_one_line_and_the_cell_does_not_run(outputs_of):
    wrong, value = outputs_of("%%stallscope --bogus\ny = 3", "'y' in globals()")

    assert "unrecognized arguments: --bogus" in text_of(wrong)
    assert not [output for output in wrong if "SystemExit" == output.get("ename")]
    assert "False" in text_of(value)


def test_an_error_before_any_loader_stands_alone(outputs_of):
    (outputs,) = outputs_of("%%stallscope\nraise OSError(2)")

    assert ["OSError"] == [output.get("ename") for output in outputs]


def test_errors_that_the_cell_survives_are_shown(outputs_of):
    survived = "get_ipython().run_cell('raise OSError(2)')\nprint('went on')"
    (outputs,) = outputs_of(f"%%stallscope\n{survived}")

    assert ["OSError"] == [output["ename"] for output in outputs if "ename" in output]
    assert "went on" in text_of(outputs)
