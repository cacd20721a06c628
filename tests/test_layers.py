"""The layers: imports go down only, also inside functions and for types alone.

A module may import its own layer and those above it in the table, and the packages of its layer.
"""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import stallscope

ROOT = Path(stallscope.__file__).parent
LAYERS = {
    # layer: (its folders and modules, layers below that it may use, packages that it may use)
    "words": (
        (
            "apart columns errors files interrupts machine pyspy_calls result stages "
            "stats store units"
        ),
        "",
        "fsspec numpy polars psutil scipy torch matplotlib:types typing_extensions:types",
    ),
    "hooks": ("hooks", "words", "numpy torch typing_extensions:types"),
    "loops": (
        "targets isolation loops",
        "words hooks",
        "numpy torch torchvision PIL psutil pynvml tqdm IPython typing_extensions:types",
    ),
    "run": (
        "run model",
        "words hooks loops",
        "numpy polars psutil pynvml torch tqdm typing_extensions:types",
    ),
    "bench": (
        "bench",
        "words hooks loops run",
        "numpy polars psutil scipy torch typing_extensions:types",
    ),
    "verbs": (
        "ladder flame orders lines experiments",
        "words hooks loops run bench",
        "cv2 line_profiler numpy polars psutil PIL torch torchvision tqdm typing_extensions:types",
    ),
    "diagnose": (
        "diagnose compare tune storage",
        "words hooks loops run bench verbs",
        "numpy polars psutil torch tqdm PIL",
    ),
    "charts": ("charts", "words run bench verbs diagnose", "numpy polars matplotlib PIL"),
    "views": (
        "views",
        "words run bench verbs diagnose charts",
        "jinja2 markupsafe numpy polars matplotlib ipywidgets anywidget traitlets IPython PIL",
    ),
    "door": (
        "*",
        "words hooks loops run bench verbs diagnose charts views",
        (
            "numpy polars torch PIL scipy torchvision typer jupyterlab "
            "webdataset IPython lazy_loader typing_extensions:types"
        ),
    ),
}


def _imports(path):
    """Yield each name that a file imports, with the line and whether it is for types alone."""
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
            assert not node.level, f"{path} imports relatively"
            yield from ((f"{node.module}.{alias.name}", id(node) in typed) for alias in node.names)


FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
    if "_share" not in path.parts
}
IMPORTS = {module: list(_imports(path)) for module, path in FILES.items()}


def _layer(module):
    top = module.removeprefix("verbs.").partition(".")[0]
    return next((name for name, (homes, *_) in LAYERS.items() if top in homes.split()), "door")


def _ours(name):
    """Return the imported module of the package, or None."""
    inside = name.removeprefix("stallscope").removeprefix(".")
    if not name.startswith("stallscope"):
        return None
    return next((m for m in (inside, inside.rpartition(".")[0]) if m in FILES), "__init__")


def _edges():
    """Yield importer and imported module within the package, except from its front door."""
    for module, imports in IMPORTS.items():
        for name, _ in imports:
            imported = _ours(name)
            if imported and module not in ("__init__", imported):
                yield module, imported


def test_imports_go_down_only():
    upwards = {
        f"{module} {imported}"
        for module, imported in _edges()
        if _layer(imported) not in (_layer(module), *LAYERS[_layer(module)][1].split())
    }

    assert not upwards


def test_each_layer_has_its_packages():
    foreign = [
        f"{module}: {name}"
        for module, imports in IMPORTS.items()
        for name, typed in imports
        if not _ours(name)
        and (top := name.partition(".")[0]) not in sys.stdlib_module_names
        and top not in (packages := LAYERS[_layer(module)][2].split())
        and not (typed and f"{top}:types" in packages)
    ]

    assert not foreign


def test_no_module_imports_itself_through_others():
    graph = {module: set() for module in FILES}
    for module, imported in _edges():
        graph[module].add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


HEAVY = {"torch", "polars", "matplotlib", "ipywidgets", "pandas", "nbformat", "stallscope.views"}


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("stallscope, stallscope.cli.main, stallscope.hooks.event_log", set()),
        ("stallscope.hooks.probe, stallscope.targets.target", {"torch"}),
        ("stallscope.run.result, stallscope.store, stallscope.run.summary", {"polars"}),
    ],
)
def test_loads_no_more_than_it_needs(modules, heavy):
    """Importing a layer loads its own packages and none of the layers above.

    A worker that touches polars hangs, so what runs in workers must not load it.
    """
    out = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT.parent)},
    )

    assert HEAVY & set(out.stdout.split()) == heavy


def test_a_class_has_a_name_of_its_own():
    trees = (ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for path in FILES.values())
    names = [node.name for tree in trees for node in tree if isinstance(node, ast.ClassDef)]

    assert sorted(set(names)) == sorted(names)
