"""A guided notebook in small, and a package that has it installed."""

import nbformat
from nbformat import v4

NAME = "2_fetch_vs_transform.ipynb"
MODULE = 'import stallscope as ss\n\nTARGET = "sample"  # yours\n'
PARAMETERS = 'TARGET = "sample"  # yours\nBUDGET_S = 20'


def a_notebook(parameters=PARAMETERS, tags=("parameters",)):
    cells = [v4.new_markdown_cell("# A promise"), v4.new_code_cell(parameters)]
    cells[1].metadata["tags"] = list(tags)
    return v4.new_notebook(cells=[*cells, v4.new_code_cell("TARGET")])


def install(site):
    """The file of the module that looks for notebooks, in a package that holds one."""
    folder = site / "stallscope" / "_share" / "notebooks"
    folder.mkdir(parents=True)
    nbformat.write(a_notebook(), folder / NAME)
    (folder / "my_target.py").write_text(MODULE)
    return site / "stallscope" / "files.py"
