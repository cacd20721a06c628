"""A guided notebook in small, and a package that has it installed."""

import json
from pathlib import Path

NAME = "2_fetch_vs_transform.ipynb"
MODULE = 'import stallscope as ss\n\nTARGET = "sample"  # yours\n'
PARAMETERS = 'TARGET = "sample"  # yours\nBUDGET_S = 20'


def a_notebook(parameters=PARAMETERS, tags=("parameters",)):
    """Return a small notebook as `nbformat` writes it; importing `nbformat` takes seconds."""
    code = {"cell_type": "code", "execution_count": None, "outputs": [], "metadata": {}}
    cells = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# A promise"]},
        {
            **code,
            "id": "b",
            "metadata": {"tags": list(tags)},
            "source": parameters.splitlines(keepends=True),
        },
        {**code, "id": "c", "source": ["TARGET"]},
    ]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def write(notebook, path):
    Path(path).write_text(json.dumps(notebook, indent=1), encoding="utf-8")


def read(path):
    """Return a notebook with the source of each cell as one text."""
    notebook = json.loads(Path(path).read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


def install(site):
    """Install a package with a notebook; return its module that looks for notebooks."""
    folder = site / "stallscope" / "_share" / "notebooks"
    folder.mkdir(parents=True)
    write(a_notebook(), folder / NAME)
    (folder / "my_target.py").write_text(MODULE)
    return site / "stallscope" / "files.py"
