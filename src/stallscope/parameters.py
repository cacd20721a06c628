"""Pointing a notebook at a target: the value of TARGET in its cell tagged `parameters`."""

from __future__ import annotations

import ast
import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stallscope.errors import StallscopeError
from stallscope.measure.factory import is_factory

_NAME: Final = "TARGET"
_GLOB: Final = frozenset("*?[{")


@dataclass(frozen=True)
class Aim:
    """A target in words that hold wherever the notebook lies."""

    target: str
    """As for `ss.target`; paths are absolute."""
    import_from: str | None = None
    """Folder that holds the module of a `package.module:factory`; None where it is installed."""

    @classmethod
    def of(cls, target: str) -> Aim:
        """What a user typed in the current folder.

        Raises:
            StallscopeError: it is a path, and there is nothing.
        """
        if target == "sample":
            return cls(target)
        path = plain_path(target)
        try:
            is_there = path.exists()
        except PermissionError as error:
            raise StallscopeError(f"{error.filename!r} cannot be read") from error
        if is_factory(target) and not is_there:
            return cls(target, _holder(target))
        if not target or not (_GLOB & set(target) or is_there):
            raise StallscopeError(
                f"there is no {target!r} (looked in {str(Path.cwd())!r}): a target is 'sample', a "
                "folder of images, tar shards, or 'package.module:factory'",
            )
        return cls(str(path))


def plain_path(path: str | Path) -> Path:
    """An absolute path without `~` and `..`; symbolic links stay what they are."""
    return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - resolve follows links


def set_target(notebook: Any, aim: Aim, name: str) -> Any:
    """A copy of a notebook, pointed at a target.

    Args:
        notebook: as nbformat reads it.
        aim: what to point it at.
        name: the notebook's, for the error.

    Raises:
        StallscopeError: no cell is tagged `parameters`, or it does not set TARGET.
    """
    pointed = copy.deepcopy(notebook)
    cell = _parameters(pointed)
    if cell is None:
        raise StallscopeError(f"{name} has no code cell tagged 'parameters' to put {_NAME} into")
    value = _value(cell.source)
    if value is None:
        raise StallscopeError(f"{name}: the cell tagged 'parameters' has no line {_NAME} = ...")
    if ast.unparse(value) != repr(aim.target):  # else the notebook keeps its own quotes
        cell.source = _replaced(cell.source, value, repr(aim.target))
    cell.source = _importing(aim) + cell.source
    return pointed


def target_of(notebook: Any) -> str:
    """The line that sets the target, such as `TARGET = 'sample'`; for a sentence."""
    cell = _parameters(notebook)
    value = None if cell is None else _value(cell.source)
    text = None if value is None else ast.get_source_segment(cell.source, value)
    return f"no {_NAME}" if text is None else f"{_NAME} = {text}"


def _parameters(notebook: Any) -> Any:
    for cell in notebook.cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", ()):
            return cell
    return None


def _value(source: str) -> ast.expr | None:
    """The expression that TARGET is set to."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:  # a magic, or a cell that somebody is in the middle of writing
        return None
    for statement in statements:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == _NAME:
            return statement.value
    return None


def _replaced(source: str, old: ast.expr, new: str) -> str:
    """The source with one expression replaced; what stands around it, comments too, stays."""
    lines = source.encode().splitlines(keepends=True)  # ast counts columns in bytes
    last = (old.end_lineno or old.lineno) - 1
    before = b"".join(lines[: old.lineno - 1]) + lines[old.lineno - 1][: old.col_offset]
    after = lines[last][old.end_col_offset :] + b"".join(lines[last + 1 :])
    return before.decode() + new + after.decode()


def _importing(aim: Aim) -> str:
    """Lines that make the user's module importable from wherever the notebook runs."""
    if aim.import_from is None:
        return ""
    return f"import sys\n\nsys.path.insert(0, {aim.import_from!r})  # your module is here\n"


def _holder(target: str) -> str | None:
    top = target.partition(":")[0].partition(".")[0]
    here = Path.cwd()
    return str(here) if (here / top).is_dir() or (here / f"{top}.py").is_file() else None
