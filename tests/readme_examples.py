"""Makes what the README shows: the picture from the real notebook and the example's real output.

python tests/readme_examples.py --write
"""

import argparse
import base64
import contextlib
import io
import os
import re
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURES = {
    # picture: the notebook that draws it, and the cell in it
    "verdict": ("1_start_here", "diagnosis.plot()"),
    "stages": ("2_fetch_vs_transform", "run.plot()"),
}
BEGIN, END = "<!-- example: python tests/readme_examples.py --write -->", "<!-- /example -->"


def example() -> str:
    shown = README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    return re.search(r"```python\n(.*?)```", shown, re.DOTALL)[1]


def output() -> str:
    """Return the example's output, run in a folder of its own."""
    printed, here = io.StringIO(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        os.chdir(folder)
        try:
            exec(compile(example(), "README.md", "exec"), {})  # noqa: S102 - it is ours
        finally:
            os.chdir(here)
    return printed.getvalue().strip()


def picture(name: str, source: str) -> bytes:
    """Return the picture of a cell, as a run of its notebook draws it."""
    import nbformat  # takes seconds: for those who run notebooks
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    wanted = next(i for i, cell in enumerate(notebook.cells) if cell.source == source)
    notebook.cells = notebook.cells[: wanted + 1]
    NotebookClient(notebook, timeout=300).execute()
    images = (out.get("data", {}).get("image/png") for out in notebook.cells[wanted].outputs)
    return base64.b64decode(next(filter(None, images)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put them where the README has them")
    write, code, printed = parser.parse_args().write, example(), output()
    print(printed)
    if write:
        head, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
        block = f"```python\n{code}```\n\n```text\n{printed}\n```\n"
        README.write_text(f"{head}{BEGIN}\n{block}{END}{rest.partition(END)[2]}", encoding="utf-8")
        for name, (notebook, source) in PICTURES.items():
            path = ROOT / "notebooks" / "pictures" / f"{name}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(picture(notebook, source))


if __name__ == "__main__":
    main()
