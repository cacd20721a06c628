"""Time each notebook, and count its words of prose, code cells and pictures.

And its headlines, the first line of each result, with the number of those that hedge.

    python tests/benchmarks/notebooks.py --html FOLDER

Runs them as they are, on the sample data or on `--target`, each in a kernel of its own, and prints
a row for each.
With `--html` it leaves what nbconvert makes of them, without widgets, in a folder.
"""

import re
import shutil
import tempfile
import time
from pathlib import Path

import nbclient
import nbformat
from benchkit.command import Option, arguments, met, table

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
HEAD = ("notebook", "seconds", "words", "code cells", "pictures")
MOST_S = 360
HEDGE = re.compile(
    r"not distinguishable|too (few|little)|inconclusive|cannot tell|predicted, not measured|unclear"
    r"|not settled|unknown|before the budget|could be tried|may be chance|record both again",
    re.IGNORECASE,
)
"""Words of a headline that asks for more time instead of an answer."""


def counted(notebook):
    """Words of prose, code cells, and those with a picture; a panel has one."""
    prose = " ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    pictures = [cell for cell in code if any(map(_is_picture, cell.outputs))]
    return len(re.findall(r"\w[\w'.-]*", prose)), len(code), len(pictures)


def headlines(notebook):
    """The first line of each result that a cell shows."""
    texts = [
        "".join(output["data"].get("text/plain", ""))
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "stallscope-" in output.get("data", {}).get("text/html", "")
    ]
    return [text.strip().partition("\n")[0] for text in texts]


def _is_picture(output):
    """A picture, or what a panel leaves where there are no widgets."""
    data = output.get("data", {})
    return "image/png" in data or "-still" in data.get("text/html", "")


def run(path, target, budget):
    """Seconds that a notebook takes with its kernel's start; it keeps its outputs."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = re.sub(r"(?m)^TARGET = .*", f"TARGET = {target!r}", cell.source)
        if budget:
            cell.source = re.sub(r"(?m)^BUDGET_S = .*", f"BUDGET_S = {budget}", cell.source)
    begin = time.perf_counter()
    where = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=where).execute()
    took_s = time.perf_counter() - begin
    nbformat.write(notebook, path)
    return took_s, notebook


def as_html(path, folder):
    """Write what a reader without a kernel gets."""
    from nbconvert import HTMLExporter

    folder.mkdir(parents=True, exist_ok=True)
    text, _ = HTMLExporter().from_filename(str(path))
    (folder / f"{path.stem}.html").write_text(text, encoding="utf-8")


def main():
    """Print a row for each notebook as it ends."""
    options = arguments(
        __doc__,
        times=Option(1, 1, "run each so often"),
        only=Option("", "05", "begin of a notebook's name"),
        budget=Option(0, 1, "seconds in place of each notebook's own BUDGET_S; 0: its own"),
        target=Option("sample", "sample", "what they measure: stallscope.demo:case_a"),
        html=Option("", "", "folder for what nbconvert makes of them"),
    )
    rows, hedges, whole_s = [], 0, 0.0
    for _ in range(options.times):
        with tempfile.TemporaryDirectory() as place:
            copied = Path(shutil.copytree(NOTEBOOKS, Path(place, "notebooks")))
            for path in sorted(copied.glob(f"{options.only}*.ipynb")):
                took_s, notebook = run(path, options.target, options.budget)
                whole_s += took_s
                rows.append((path.stem, f"{took_s:.0f}", *map(str, counted(notebook))))
                print(*rows[-1], flush=True)
                for headline in headlines(notebook):
                    hedges += bool(HEDGE.search(headline))
                    print("  ", headline, flush=True)
                if options.html:
                    as_html(path, Path(options.html))
    print(table(HEAD, rows))
    print(f"headlines that hedge: {hedges}, none wanted: {met(not hedges)}")
    each_s = whole_s / options.times
    print(f"all of it: {each_s:.0f} s, at most {MOST_S} s: {met(each_s <= MOST_S)}")


if __name__ == "__main__":
    main()
