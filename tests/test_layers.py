"""The house: imports go down only, also those inside functions and for types alone.

Ground floor < probe < measure < analyze < experiments < views < door. Each storey also has its
list of foreign packages. What is not Python's own and not listed is forbidden.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import stallscope

ROOT = Path(stallscope.__file__).parent
STOREYS = {
    # storey: (storeys that it may use, packages that it may use)
    "ground": ("ground", "numpy polars matplotlib:types"),
    "probe": ("ground probe", "numpy torch typing_extensions:types"),
    "measure": (
        "ground probe measure",
        "line_profiler numpy torch torchvision PIL psutil pynvml tqdm typing_extensions:types",
    ),
    "analyze": ("ground analyze", "numpy polars"),
    "experiments": ("ground probe measure analyze experiments", "numpy polars psutil torch tqdm"),
    "views": (
        "ground analyze views",
        "jinja2 numpy polars matplotlib ipywidgets anywidget traitlets PIL",
    ),
    "door": (
        "ground probe measure analyze experiments views door",
        "numpy torch PIL torchvision nbformat typer jupyter_core webdataset",
    ),
}
GROUND = {
    *("afterimport", "diagnoses", "errors", "eventlog", "flamefile", "flames", "interrupts"),
    *(
        "ladders",
        "listings",
        "mapped",
        "marks",
        "packaged",
        "resources",
        "result",
        "run",
        "runfile",
    ),
    *("stages", "tracefile", "units"),
}
ROOMS = ("probe", "measure", "analyze", "experiments", "views")

ALLOWED = {
    ("run", "stallscope.analyze.tables"): "a run's tables; imported when they are asked for",
    ("run", "stallscope.analyze.stalls.standing"): "a type",
    ("ladders", "stallscope.analyze.headroom"): "a ladder's tables; imported when asked for",
    ("listings", "stallscope.analyze.hotlines"): "a table of lines; imported when asked for",
    ("flames", "stallscope.analyze.stacks"): "a flame's tables; imported when asked for",
    ("run", "stallscope.analyze.trace.timeline"): "its events; imported when they are written",
    ("views.findings", "stallscope"): "the version, which a report names",
    ("runfile", "stallscope.analyze.spans"): "the columns that a run's tables must have",
}
"""Each import upwards, with its reason."""
BY_NAME = {"__init__", "result"}
"""Modules that import upwards by name: the public names, and a result's view."""

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted(ROOT.rglob("*.py"))
    if "_share" not in path.parts
}


def storey(module):
    """Where a module lives; `module` without the leading `stallscope.`."""
    top = module.partition(".")[0]
    return top if top in ROOMS else "ground" if top in GROUND else "door"


def imports(path):
    """Every imported module of a file, and whether it is for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typed = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in typed) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                name = full if full.removeprefix("stallscope.") in MODULES else node.module
                yield name, id(node) in typed


def forbidden(module):
    """The imports of a module that its storey does not allow."""
    rooms, packages = (set(words.split()) for words in STOREYS[storey(module)])
    for name, typed in imports(MODULES[module]):
        top, _, inside = name.partition(".")
        if top == "stallscope":
            allowed = (module, name) in ALLOWED or module == "__init__"
            if not allowed and storey(inside or "__init__") not in rooms:
                yield name
        elif top not in sys.stdlib_module_names and top not in packages:
            needed = not typed or f"{top}:types" not in packages
            yield from [name] * needed


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down_only(module):
    """A module imports its own storey, those below, and the packages of its storey."""
    assert list(forbidden(module)) == []


@pytest.mark.parametrize("module", sorted(set(MODULES) - BY_NAME))
def test_nothing_is_imported_by_name(module):
    """Outside of the two that must, a module is imported by name from the same room only."""
    calls = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
    ]
    room = f"stallscope.{module.partition('.')[0]}."
    assert not [call for call in calls if "stallscope" in call and room not in call]


@pytest.mark.parametrize(("module", "name"), ALLOWED)
def test_exceptions_are_still_needed(module, name):
    """An exception to the layers that nobody uses any more is deleted from the list."""
    assert name in [imported for imported, _ in imports(MODULES[module])]


@pytest.mark.parametrize(("module", "name"), ALLOWED)
def test_exceptions_are_lazy(module, name):
    """An import upwards stands inside a function, so that loading the module does not follow it."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    at_top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert name not in {getattr(node, "module", None) for node in at_top}


HEAVY = {"torch", "polars", "matplotlib", "ipywidgets", "pandas", "nbformat", "stallscope.views"}


def loaded_by(statement):
    """Which heavy packages a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    environment = {"PYTHONPATH": str(ROOT.parent)}
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    return HEAVY & set(out.stdout.split())


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import stallscope", set()),
        ("import stallscope.cli", set()),
        ("import stallscope.eventlog", set()),
        ("import stallscope.probe.install", {"torch"}),
        ("import stallscope.measure.target", {"torch"}),
        ("import stallscope.analyze.summary", {"polars"}),
        ("import stallscope.run", {"polars"}),
        ("import stallscope.runfile", {"polars"}),
    ],
)
def test_loads_no_more_than_it_needs(statement, heavy):
    """Importing a storey loads its own packages and none of the storeys above.

    A worker that touches polars hangs, so what runs in workers must not load it.
    """
    assert loaded_by(statement) == heavy
