"""Copies of the guided notebooks in a folder of the user's, set to a target.

A copy belongs to the user: changed cells are never overwritten, and notebooks with outputs are
moved aside first. Outputs alone are no change, as users run and save notebooks. A small file beside
the copies holds their digests.

The target is in one file, `my_target.py`, with the training step and the device; the cell tagged
`parameters` of each notebook names that file's function as its TARGET.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from functools import partial
from importlib.machinery import PathFinder, all_suffixes
from pathlib import Path
from typing import Any, Final

import nbformat

from stallscope.errors import StallscopeError
from stallscope.files import packaged_folder, read_file, whole_file
from stallscope.targets.factory import is_address, is_factory
from stallscope.targets.target import IN_NOTEBOOKS

_NAME: Final = "TARGET"
_MODULE: Final = "my_target.py"
"""File with the target of all notebooks; users may edit their copy."""
_GLOB: Final = frozenset("*?[{")
_CODE: Final = tuple(all_suffixes())
"""Suffixes of modules."""


@dataclass(frozen=True)
class Aim:
    """Target that does not depend on the notebook's folder."""

    target: str
    """Target as for `ss.target`; paths are absolute."""
    import_from: str | None = None
    """Folder of the module of a `package.module:factory`; None: it is installed."""

    @classmethod
    def of(cls, target: str) -> Aim:
        """Resolve a target that a user typed in the current folder.

        Raises:
            StallscopeError: the target is a path that does not exist.
        """
        if target == "sample" or is_address(target):
            return cls(target)
        path = plain_path(target)
        try:
            is_there = path.exists()
        except PermissionError as error:
            raise StallscopeError(f"{error.filename!r} cannot be read") from error
        if is_factory(target) and not is_there:
            here, top = Path.cwd(), target.partition(":")[0].partition(".")[0]
            is_here = (here / top).is_dir() or (here / f"{top}.py").is_file()
            return cls(target, str(here) if is_here else None)
        if not target or not (_GLOB & set(target) or is_there):
            raise StallscopeError(
                f"there is no {target!r} (looked in {str(Path.cwd())!r}): a target is 'sample', a "
                "folder of images, tar shards, an address (s3://...), or 'package.module:factory'",
            )
        return cls(str(path))


def plain_path(path: str | Path) -> Path:
    """Return an absolute path without `~` and `..`; symbolic links are kept."""
    return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - resolve follows links


def _set_target(source: str, target: str, name: str) -> str:
    """Return Python source with another TARGET; `name` is for the error.

    Raises:
        StallscopeError: the source does not set TARGET.
    """
    value = _value(source)
    if value is None:
        raise StallscopeError(f"{name} has no line {_NAME} = ...")
    if ast.unparse(value) == repr(target):  # unchanged: the source keeps its quotes
        return source
    return _replaced(source, value, repr(target))


def _pointed_notebook(path: Path) -> str:
    """Return a guided notebook that measures the target of `my_target.py`.

    Raises:
        StallscopeError: no cell is tagged `parameters`, or the cell does not set TARGET.
    """
    notebook = nbformat.reads(read_file(path).decode(), as_version=4)  # type: ignore[no-untyped-call,unused-ignore]
    cell = _parameters(notebook)
    if cell is None:
        raise StallscopeError(
            f"{path.name} has no code cell tagged 'parameters' to put {_NAME} into"
        )
    cell.source = _set_target(
        cell.source, IN_NOTEBOOKS, f"{path.name}: the cell tagged 'parameters'"
    )
    return str(nbformat.writes(notebook))  # type: ignore[no-untyped-call,unused-ignore]


def _pointed_module(path: Path, aim: Aim) -> str:
    """Return the source of `my_target.py` for a target.

    Raises:
        StallscopeError: the source does not set TARGET.
    """
    source = _set_target(read_file(path).decode(), aim.target, path.name)
    if aim.import_from is None:
        return source
    ours = "import stallscope as ss\n"
    here = f"\nsys.path.insert(0, {aim.import_from!r})  # your module is here\n"
    return source.replace(ours, f"import sys\n\n{ours}{here}", 1)


def _parameters(notebook: Any) -> Any:
    for cell in notebook.cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", ()):
            return cell
    return None


def _value(source: str) -> ast.expr | None:
    try:
        statements = ast.parse(source).body
    except SyntaxError:  # a magic, or an unfinished cell
        return None
    for statement in statements:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == _NAME:
            return statement.value
    return None


def _replaced(source: str, old: ast.expr, new: str) -> str:
    """Replace one expression in source; the rest stays, comments too."""
    lines = source.encode().splitlines(keepends=True)  # ast counts columns in bytes
    last = (old.end_lineno or old.lineno) - 1
    before = b"".join(lines[: old.lineno - 1]) + lines[old.lineno - 1][: old.col_offset]
    after = lines[last][old.end_col_offset :] + b"".join(lines[last + 1 :])
    return before.decode() + new + after.decode()


_MEMORY: Final = ".stallscope.json"
_ASIDE: Final = "earlier"


@dataclass(frozen=True)
class Copies:
    """User's folder of notebooks, with notes on replaced and kept files."""

    folder: Path
    notebooks: tuple[Path, ...]
    """All guided notebooks in the folder, sorted by name."""
    notes: tuple[str, ...]
    """Sentences on files that were kept, replaced or moved aside."""


def copy_notebooks(folder: Path, target: str | None = None, *, force: bool = False) -> Copies:
    """Copy the guided notebooks into a folder, and `my_target.py`, which sets their target.

    Args:
        folder: created if necessary.
        target: string as for `ss.target`; None: the target of the last time, else "sample".
        force: replace notebooks that the user changed, too, after moving them aside.

    Raises:
        StallscopeError: the folder cannot be written, the target does not exist, or a notebook
            has no TARGET to set.
    """
    folder, source = plain_path(folder), packaged_folder("notebooks")
    if folder.resolve() == source.resolve():
        raise StallscopeError(f"{folder} holds stallscope's own notebooks: give another folder")
    _check_no_module_hides_ours(folder)
    memory = _recall(folder)
    last = Aim(memory.get("target", "sample"), memory.get("import_from"))
    aim = last if target is None else Aim.of(target)
    guided = sorted(source.glob("*.ipynb"))
    wanted = {path.name: _pointed_notebook(path) for path in guided}
    wanted[_MODULE] = _pointed_module(source / _MODULE, aim)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        notes = [_about_last(last, folder)] if target is None else []
        place = partial(_place, memory=memory, force=force, new_target=aim != last)
        notes += [place(folder / name, text) for name, text in wanted.items()]
        memory.update(target=aim.target, import_from=aim.import_from)
        with whole_file(folder / _MEMORY) as file:
            file.write(json.dumps(memory, indent=2).encode())
    except OSError as error:
        raise StallscopeError(
            f"the notebooks cannot be copied into {folder}: {error.strerror or error}",
        ) from error
    notebooks = tuple(folder / path.name for path in guided)
    return Copies(folder, notebooks, tuple(filter(None, notes)))


def _check_no_module_hides_ours(folder: Path) -> None:
    """Refuse a folder whose modules would hide installed modules from a notebook.

    Python searches the notebook's folder first, and a downloaded folder may contain any file.

    Raises:
        StallscopeError: a file there has the name of an installed module.
    """
    paths = folder.iterdir() if folder.is_dir() else ()
    for path in sorted(paths):
        module = path.name.partition(".")[0]
        is_module = path.name.endswith(_CODE) or (path / "__init__.py").exists()
        if is_module and _is_installed(module):
            raise StallscopeError(
                f"the notebooks would import {path} instead of the installed {module!r}: "
                "rename the file, or give another folder"
            )


def _is_installed(module: str) -> bool:
    """Return True if Python finds this module outside the current folder."""
    if module in sys.stdlib_module_names:
        return True
    here = {"", str(Path.cwd())}
    return PathFinder.find_spec(module, [path for path in sys.path if path not in here]) is not None


def _about_last(aim: Aim, folder: Path) -> str:
    """Return a note on a target that is reused from the last time; empty for the sample."""
    if aim.target == "sample":
        return ""
    module = f", imported from {aim.import_from}" if aim.import_from else ""
    return f"TARGET = {aim.target!r}{module}: the target of the last time, from {folder / _MEMORY}"


@dataclass(frozen=True)
class _Copy:
    """Content of a notebook or a module."""

    cells: tuple[tuple[str, str], ...]
    """Types and sources of the cells, without outputs."""
    target: str
    """Line that sets the target, such as `TARGET = 'sample'`; for a note."""
    has_outputs: bool = False

    @classmethod
    def of(cls, text: str, name: str) -> _Copy:
        """Parse a file's text."""
        if name == _MODULE:
            return cls((("module", text),), _target_line(text))
        notebook = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call,unused-ignore]
        cell = _parameters(notebook)
        return cls(
            tuple((cell.cell_type, cell.source) for cell in notebook.cells),
            _target_line("" if cell is None else cell.source),
            any(cell.get("outputs") for cell in notebook.cells),
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the cells."""
        return hashlib.sha256(json.dumps(self.cells).encode()).hexdigest()


def _target_line(source: str) -> str:
    value = _value(source)
    text = None if value is None else ast.get_source_segment(source, value)
    return f"no {_NAME}" if text is None else f"{_NAME} = {text}"


def _place(path: Path, text: str, *, memory: dict[str, Any], force: bool, new_target: bool) -> str:
    """Write a file if that loses nothing; return a note if there was a different file.

    With a new target, notebooks with outputs of the old target are moved aside, too.
    """
    written, old, new, note = memory["notebooks"], _read_copy(path), _Copy.of(text, path.name), ""
    same = old is not None and old.digest == new.digest and not (new_target and old.has_outputs)
    changed = path.exists() and (old is None or old.digest != written.get(path.name))
    if changed and not same and not force:
        at = "" if old is None else f", with {old.target}"
        return f"{path.name} is kept as you changed it{at}; --force replaces the file"
    if not same:
        if changed or (old is not None and old.has_outputs):
            note = f"{path.name} is new; the file before is now {_put_aside(path)}"
        with whole_file(path) as file:
            file.write(text.encode())
    written[path.name] = new.digest
    return note


def _put_aside(path: Path) -> Path:
    folder = path.parent / _ASIDE
    folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise StallscopeError(
            f"{folder} is a link, so files cannot be moved there: give another folder"
        )
    number = 1
    while os.path.lexists(aside := folder / f"{path.stem}.{number}{path.suffix}"):
        number += 1
    path.rename(aside)
    return aside.relative_to(path.parent)


def _read_copy(path: Path) -> _Copy | None:
    """Return the user's copy; None: the file is missing or no longer a notebook."""
    try:
        return _Copy.of(read_file(path).decode(), path.name)
    except (OSError, ValueError, AttributeError, nbformat.ValidationError):
        return None


def _recall(folder: Path) -> dict[str, Any]:
    """Return the saved digests and target of the folder; empty if they are unreadable."""
    try:
        memory = json.loads(read_file(folder / _MEMORY))
        is_valid = (
            isinstance(memory["notebooks"], dict)
            and isinstance(memory["target"], str)
            and isinstance(memory["import_from"], str | None)
        )
    except (OSError, ValueError, KeyError, TypeError):
        is_valid = False
    return memory if is_valid else {"schema_version": 1, "notebooks": {}}
