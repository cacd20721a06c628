"""The notebooks keep their form, and run from top to bottom, twice in one kernel."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_LINES = 11
MINE = """
from stallscope.demo import Scale, SlowFetchDataset
from torch.utils.data import DataLoader
from torchvision.transforms.v2 import Compose, RandomHorizontalFlip

def loader():
    data = SlowFetchDataset(64, 0.001, Compose([RandomHorizontalFlip(), Scale()]))
    return DataLoader(data, batch_size=4, num_workers=0)
"""

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def with_parameters(notebook, **values):
    """Replace what the cell tagged `parameters` sets; each of them has to be there."""
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    for name, value in values.items():
        cell.source, found = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value!r}", cell.source)
        assert 1 == found, f"{name} is not a parameter"
    return notebook


class TestForm:
    def test_is_committed_without_outputs(self, path):
        """No output and no number of execution is committed."""
        assert not any(cell.outputs or cell.execution_count for cell in code_cells(read(path)))

    def test_has_the_right_length(self, path):
        """A notebook has between 20 and 35 cells."""
        assert 20 <= len(read(path).cells) <= 35

    def test_starts_with_a_promise(self, path):
        """The first cell is prose under a heading."""
        first = read(path).cells[0]

        assert ("markdown", "# ") == (first.cell_type, first.source[:2])

    def test_has_short_code_without_definitions(self, path):
        """Code cells have a few lines; a spawned worker could not find a class of a cell."""
        for cell in code_cells(read(path)):
            assert len(cell.source.splitlines()) <= MOST_LINES
            assert not re.search(r"(?m)^\s*(def|class|async def) ", cell.source)

    def test_every_call_is_explained(self, path):
        """After at most three code cells in a row there is prose."""
        kinds = "".join(cell.cell_type[0] for cell in read(path).cells)

        assert "cccc" not in kinds

    def test_sets_target_and_budget_in_its_parameters(self, path):
        """One cell is tagged `parameters`; it sets the target and the budget."""
        with_parameters(read(path), TARGET="sample", BUDGET_S=1)

    def test_links_only_to_notebooks_that_exist(self, path):
        """A link to another notebook leads somewhere."""
        text = "\n".join(cell.source for cell in read(path).cells)

        for name in re.findall(r"\(([\w./-]+\.ipynb)\)", text):
            assert (path.parent / name).exists(), name


@pytest.mark.slow
class TestRun:
    @pytest.mark.skipif(shutil.which("chromium") is not None, reason="a browser runs them twice")
    def test_runs_twice_in_one_kernel(self, path, tmp_path, monkeypatch):
        """Running all cells works, also a second time, and every picture is a picture."""
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src")]))
        notebook = with_parameters(read(path), TARGET="sample", BUDGET_S=3)
        client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}})

        with client.setup_kernel():
            for _ in range(2):
                for number, cell in enumerate(notebook.cells):
                    client.execute_cell(cell, number)

        plots = [cell for cell in code_cells(notebook) if re.match(r"\w+\.plot\(", cell.source)]
        assert plots
        for cell in plots:
            assert any("image/png" in output.get("data", {}) for output in cell.outputs)
        said = [
            output.text for c in code_cells(notebook) for output in c.outputs if "text" in output
        ]
        assert not [text for text in said if "Traceback" in text or "Warning" in text]

    @pytest.mark.thorough
    def test_runs_with_a_target_that_knows_no_files(self, path, tmp_path, monkeypatch):
        """A target without files, images or indices in its samples works as well."""
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(tmp_path)]))
        (tmp_path / "mine.py").write_text(MINE)
        notebook = with_parameters(read(path), TARGET="mine:loader", BUDGET_S=2)

        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
