"""The notebooks keep their form, and run from top to bottom, also twice in one kernel."""

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_LINES = 11
SHORTER = {
    r"number > 30": "number > 8",
    r"\bSTEP_S = [\d.]+": "STEP_S = 0.002",
    r"\bbatches=\d+": "batches=4",
    r"\brange\(24\)": "range(12)",
    r"\bbatch_size=8\b": "batch_size=2",
}
"""Shorter measurements than a person needs: here it counts that every cell runs."""
NOT_IN_CIS_BROWSER = ("2", "6", "b")
"""Notebooks without a test in a browser of their own: each takes minutes."""
NO_PICTURES = {"4_worker_flamegraphs"}
"""Their panels are the picture."""
by_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path):
    import nbformat  # takes seconds: for those who run notebooks

    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def with_parameters(notebook, **values):
    """Replace the values in the cell tagged `parameters`; each name must be there."""
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    for name, value in values.items():
        cell.source, replacements = re.subn(
            rf"(?m)^{name} = .*$", f"{name} = {value!r}", cell.source
        )
        assert 1 == replacements, f"{name} is not a parameter"
    return notebook


def shortened(path, **parameters):
    """Return the notebook, shortened to measure as little as possible."""
    notebook = with_parameters(read(path), **parameters)
    for cell in code_cells(notebook):
        for usual, shorter in SHORTER.items():
            cell.source = re.sub(usual, shorter, cell.source)
    return notebook


@by_notebook
def test_keeps_its_form(path):
    """Prose under a heading first, 20 to 35 cells, short code without definitions, no outputs.

    A spawned worker could not find a class of a cell. After at most three code cells in a row there
    is prose; a link to another notebook leads somewhere; the target and the budget are parameters.
    """
    notebook = read(path)
    first, code = notebook.cells[0], code_cells(notebook)

    assert ("markdown", "# ") == (first.cell_type, first.source[:2])
    assert 20 <= len(notebook.cells) <= 35
    assert "cccc" not in "".join(cell.cell_type[0] for cell in notebook.cells)
    for cell in code:
        assert not (cell.outputs or cell.execution_count)
        assert len(cell.source.splitlines()) <= MOST_LINES
        assert not re.search(r"(?m)^\s*(def|class|async def) ", cell.source)
    text = "\n".join(cell.source for cell in notebook.cells)
    for name in re.findall(r"\(([\w./-]+\.ipynb)\)", text):
        assert (path.parent / name).exists(), name
    with_parameters(notebook, TARGET="sample", BUDGET_S=1)


@pytest.mark.slow
@by_notebook
def test_runs_in_a_kernel(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    if shutil.which("chromium") and path.stem[0] not in NOT_IN_CIS_BROWSER:
        pytest.skip("a browser runs it")

    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    notebook = shortened(path, TARGET="sample", BUDGET_S=1)
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": tmp_path}}
    )

    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)

    plots = [cell for cell in code_cells(notebook) if re.match(r"\w+\.plot\(", cell.source)]
    assert plots or path.stem in NO_PICTURES
    for cell in plots:
        assert any("image/png" in output.get("data", {}) for output in cell.outputs)
    texts = [output.text for c in code_cells(notebook) for output in c.outputs if "text" in output]
    assert not [text for text in texts if "Traceback" in text or "Warning" in text]


@pytest.mark.slow
def test_a_page_without_widgets_shows_what_they_showed(tmp_path, monkeypatch):
    """A page by nbconvert shows the first picture of each panel, and no progress bar."""
    nbclient, nbconvert = pytest.importorskip("nbclient"), pytest.importorskip("nbconvert")
    from nbformat import v4

    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    cells = [
        "import stallscope as ss\nrun = ss.record('sample', batches=20, budget_s=10)\nrun.panel()",
        "panel = ss.flame('sample', seconds=2).panel()\npanel",
    ]
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells])
    where = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, timeout=120, resources=where).execute()
    del notebook.metadata["widgets"]  # as JupyterLab saves it

    page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)

    texts = [out.data.get("text/plain", "") for cell in notebook.cells for out in cell.outputs]
    assert not [text for text in texts if "batch/s" in text or "s/s]" in text]
    assert 2 == len(re.findall(r"<div class=.stallscope-\w+-still.>", page))
    assert re.search(r"-still.>\s*<img alt=[^>]* src=.data:image/png", page)
