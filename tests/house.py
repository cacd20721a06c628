"""Measures the house: lines and modules of the package and of its tests, by folder.

    python tests/house.py                  # this checkout
    python tests/house.py --rev 2108557    # beside another revision

Every line of a Python file counts: blank lines, comments and docstrings, too.
"""

import argparse
import contextlib
import io
import subprocess
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PARTS = {"src": "src/stallscope", "tests": "tests"}


class Size(NamedTuple):
    lines: int
    modules: int


def sizes(root: Path) -> dict[str, Size]:
    """Return the size of each folder of the package and the tests, and of both as a whole.

    Args:
        root: folder of a checkout.
    """
    lines: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for part, place in PARTS.items():
        for path in sorted((root / place).rglob("*.py")):
            folder = path.relative_to(root / place).parts[:-1]
            if folder[:1] == ("verbs",) and len(folder) > 1:  # each verb by itself
                folder = folder[1:]
            if "_share" in folder:
                continue
            number = len(path.read_text(encoding="utf-8").splitlines())
            for name in (part, f"{part}/{folder[0] if folder else '*.py'}"):
                lines[name] += number
                modules[name] += 1
    return {name: Size(lines[name], modules[name]) for name in lines}


def table(columns: dict[str, dict[str, Size]]) -> str:
    """Return the sizes of several checkouts side by side, in Markdown."""
    heads = [f"{name}: {what}" for name in columns for what in ("lines", "modules")]
    rows = [["folder", *heads], ["---", *("---:" for _ in heads)]]
    for folder in sorted({folder for column in columns.values() for folder in column}):
        sizes = [columns[name].get(folder, Size(0, 0)) for name in columns]
        rows.append([folder, *(f"{number:,}" for size in sizes for number in size)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


@contextlib.contextmanager
def checked_out(rev: str):
    """Yield a folder that holds the files of a revision."""
    packed = subprocess.run(
        ["git", "archive", rev, *PARTS.values()], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rev", action="append", default=[], help="another revision beside it")
    columns = {}
    for rev in parser.parse_args().rev:
        with checked_out(rev) as folder:
            columns[rev] = sizes(folder)
    print(table({**columns, "now": sizes(ROOT)}))


if __name__ == "__main__":
    main()
