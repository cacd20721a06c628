"""Measures the house: how large the package is, and how far a call travels in it.

    python tests/house.py                              # this checkout
    python tests/house.py --rev d683881 --trips        # beside another revision
    python tests/house.py --rev d683881 --trips --write

Lazy imports and those for types alone count as imports. A code line is one that is neither blank
nor a comment nor a docstring. A trip counts the modules whose functions run in the parent process;
what runs because a module is imported does not count.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "twelve_requests.md"
COMMAND = "python tests/house.py --rev d683881 --trips --write"
BEGIN, END = f"<!-- house: {COMMAND} -->", "<!-- /house -->"
SMALL = 80
"""Lines; a module with fewer needs two importers (tests/test_layers.py has the other rules)."""
TRIPS = {
    '`ss.record` + `run.plot("exposed")`': """
        run = ss.record("sample", ss.simulated_step(0.005), batches=20)
        run.plot("exposed")
    """,
    "`ss.diagnose` + its page": """
        diagnosis = ss.diagnose("sample", ss.simulated_step(0.005), budget_s=15)
        diagnosis._repr_mimebundle_()
    """,
}
WATCHED = """
import os, sys, threading
import stallscope as ss

home = os.path.dirname(ss.__file__) + os.sep
seen, importing = set(), {{}}

def watch(frame, event, argument):
    code, thread = frame.f_code, threading.get_ident()
    if event not in ("call", "return") or not code.co_filename.startswith(home):
        return
    if code.co_name == "<module>":
        importing[thread] = importing.get(thread, 0) + (1 if event == "call" else -1)
    elif event == "call" and not importing.get(thread):
        seen.add(code.co_filename)

os.register_at_fork(after_in_child=lambda: sys.setprofile(None))
threading.setprofile(watch)
sys.setprofile(watch)
{trip}
sys.setprofile(None)
threading.setprofile(None)
print("modules entered:", len(seen))
"""


@dataclass(frozen=True)
class Module:
    """A module of the package."""

    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def lines(self) -> int:
        return len(self.source.splitlines())

    @cached_property
    def code_lines(self) -> int:
        """Lines without blank ones, comments and docstrings, those under a field included."""
        code = set()
        nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}
        nothing |= {tokenize.INDENT, tokenize.DEDENT}
        for token in tokenize.generate_tokens(io.StringIO(self.source).readline):
            if token.type not in nothing:
                code |= set(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                code -= set(range(node.lineno, node.end_lineno + 1))
        return len(code)

    @cached_property
    def imports(self) -> set[str]:
        """Each name that it imports, with the module that it is imported from."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        return names

    @cached_property
    def classes(self) -> list[str]:
        return [node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]


class House:
    """The package as it stands in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        package = root / "src" / "stallscope"
        self.modules = {
            ".".join(path.relative_to(package).with_suffix("").parts): Module(
                path.read_text(encoding="utf-8")
            )
            for path in sorted(package.rglob("*.py"))
            if "_share" not in path.parts
        }

    def _ours(self, name: str) -> str | None:
        """The module that an imported name means, or None where it is another package's."""
        top, _, inside = name.partition(".")
        if top != "stallscope":
            return None
        tries = (inside, inside.rpartition(".")[0])
        return next(
            (found for t in tries for found in (t, f"{t}.__init__") if found in self.modules), None
        )

    @cached_property
    def edges(self) -> set[tuple[str, str]]:
        """Importer and imported; the package's front door names everything and is left out."""
        return {
            (importer, imported)
            for importer, module in self.modules.items()
            for name in module.imports
            if (imported := self._ours(name)) not in (None, importer)
            and "__init__" not in (importer, imported)
        }

    def circles(self) -> int:
        """How many groups of modules import each other, directly or by way of others."""
        after = {module: {b for a, b in self.edges if a == module} for module in self.modules}

        def reached(start: str) -> set[str]:
            seen, new = set(), {start}
            while new:
                new = set().union(*(after[module] for module in new)) - seen
                seen |= new
            return seen

        within = {module for module in self.modules if module in reached(module)}
        return len({frozenset(b for b in reached(a) if a in reached(b)) for a in within})

    def figures(self) -> dict[str, int | None]:
        """What is counted without running anything."""
        importers = Counter(imported for _, imported in self.edges)
        alone = [module for module in self.modules if importers[module] == 1]
        classes = Counter(name for module in self.modules.values() for name in module.classes)
        return {
            "modules": len(self.modules),
            "lines": sum(module.lines for module in self.modules.values()),
            "code lines": sum(module.code_lines for module in self.modules.values()),
            "import circles": self.circles(),
            "modules with one importer": len(alone),
            f"of these, under {SMALL} lines": sum(self.modules[m].lines < SMALL for m in alone),
            "class names that occur twice": sum(times > 1 for times in classes.values()),
            "imports upwards": self.upwards(),
        }

    def upwards(self) -> int | None:
        """Imports against the table of layers; None where the house has other folders."""
        from test_layers import LAYERS

        def layer(module: str) -> str:
            top = module.partition(".")[0]
            return next(
                (name for name, (homes, *_) in LAYERS.items() if top in homes.split()), "door"
            )

        folders = {module.partition(".")[0] for module in self.modules if "." in module}
        if not {home for homes, *_ in LAYERS.values() for home in homes.split()} >= folders - {
            "cli",
            "lab",
        }:
            return None
        return sum(
            layer(imported) not in (layer(importer), *LAYERS[layer(importer)][1].split())
            for importer, imported in self.edges
        )

    def trips(self) -> dict[str, int]:
        """How many modules each call enters, in a process of its own."""
        entered = {}
        for name, trip in TRIPS.items():
            lines = "\n".join(line.strip() for line in trip.strip().splitlines())
            with tempfile.TemporaryDirectory() as folder:
                printed = subprocess.run(
                    [sys.executable, "-c", WATCHED.format(trip=lines)],
                    cwd=folder,
                    env={
                        **os.environ,
                        "PYTHONPATH": str(self.root / "src"),
                        "MPLBACKEND": "agg",
                        "TQDM_DISABLE": "1",
                    },
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            entered[f"modules entered by {name}"] = int(printed.rpartition(":")[2])
        return entered


@contextlib.contextmanager
def checked_out(rev: str):
    """A folder that holds the files of a revision."""
    packed = subprocess.run(
        ["git", "archive", rev], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def table(columns: dict[str, dict[str, int | None]]) -> str:
    """The figures of each house in Markdown, side by side."""
    rows = [
        ["", *columns],
        ["---", *("---:" for _ in columns)],
        *(
            [
                name,
                *(
                    "—" if figures[name] is None else f"{figures[name]:,}"
                    for figures in columns.values()
                ),
            ]
            for name in next(iter(columns.values()))
        ),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree", nargs="?", type=Path, default=ROOT, help="default: this checkout")
    parser.add_argument("--rev", action="append", default=[], help="another revision beside it")
    parser.add_argument("--trips", action="store_true", help="also make the calls, a minute each")
    parser.add_argument("--write", action="store_true", help=f"put it into {PAGE.name}")
    wanted = parser.parse_args()
    columns = {}
    with contextlib.ExitStack() as folders:
        houses = {rev: House(folders.enter_context(checked_out(rev))) for rev in wanted.rev}
        houses["now"] = House(wanted.tree.resolve())
        for name, house in houses.items():
            columns[name] = house.figures() | (house.trips() if wanted.trips else {})
    print(table(columns))
    if wanted.write:
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        tail = rest.partition(END)[2]
        PAGE.write_text(f"{head}{BEGIN}\n{table(columns)}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
