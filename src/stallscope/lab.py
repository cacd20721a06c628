"""The guided notebooks in a folder of the user's.

The user works in copies, and a copy is the user's: what they changed is not written over, and
outputs that would be lost are put aside first. Only a changed cell counts as a change, because
running a notebook and saving it is what it is for. A small file beside the copies remembers what
was written.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import nbformat

from stallscope.errors import StallscopeError
from stallscope.packaged import packaged
from stallscope.parameters import Aim, plain_path, set_target, target_of

if TYPE_CHECKING:
    from pathlib import Path

_MEMORY: Final = ".stallscope.json"
_ASIDE: Final = "earlier"


@dataclass(frozen=True)
class Copies:
    """The user's folder of notebooks, and what was done there."""

    folder: Path
    """Where they are."""
    notebooks: tuple[Path, ...]
    """All guided notebooks in it, in name order."""
    notes: tuple[str, ...]
    """What was kept, replaced or put aside, in sentences."""


def copy_notebooks(folder: Path, target: str | None = None, *, force: bool = False) -> Copies:
    """Copy the guided notebooks into a folder, pointed at a target.

    Args:
        folder: made where it does not exist.
        target: a string as for `ss.target`; None takes the one of the last time, else "sample".
        force: replace notebooks that the user changed, too; they are put aside.

    Raises:
        StallscopeError: the folder cannot be written, the target is not there, or a notebook has
            no TARGET to set.
    """
    folder, source = plain_path(folder), notebooks_folder()
    if folder.resolve() == source.resolve():
        raise StallscopeError(f"{folder} holds stallscope's own notebooks: give another folder")
    memory = _recall(folder)
    aim = Aim(memory.get("target", "sample"), memory.get("import_from"))
    aim = aim if target is None else Aim.of(target)
    wanted = {path.name: set_target(_read(path), aim, path.name) for path in _guided(source)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        notes = [_place(folder / name, new, memory, force=force) for name, new in wanted.items()]
        memory.update(target=aim.target, import_from=aim.import_from)
        _write(folder / _MEMORY, json.dumps(memory, indent=2))
    except OSError as error:
        raise StallscopeError(
            f"the notebooks cannot be copied into {folder}: {error.strerror or error}",
        ) from error
    return Copies(folder, tuple(folder / name for name in wanted), tuple(filter(None, notes)))


def notebooks_folder() -> Path:
    """The folder of the guided notebooks, see `packaged`."""
    return packaged("notebooks")


def _guided(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.ipynb"))


def _place(path: Path, new: Any, memory: dict[str, Any], *, force: bool) -> str:
    """Write a notebook where that loses nothing; a sentence where there was another."""
    written, old, note = memory["notebooks"], _read_copy(path), ""
    same = old is not None and _digest(old) == _digest(new)
    changed = path.exists() and (old is None or _digest(old) != written.get(path.name))
    if changed and not same and not force:
        at = "" if old is None else f", with {target_of(old)}"
        return f"{path.name} is kept as you changed it{at}; --force puts it aside"
    if not same:
        if changed or _has_outputs(old):
            note = f"{path.name} is new; the one before is {_put_aside(path)}"
        _write(path, nbformat.writes(new))
    written[path.name] = _digest(new)
    return note


def _put_aside(path: Path) -> Path:
    folder = path.parent / _ASIDE
    folder.mkdir(exist_ok=True)
    number = 1
    while (aside := folder / f"{path.stem}.{number}.ipynb").exists():
        number += 1
    path.rename(aside)
    return aside.relative_to(path.parent)


def _read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call,unused-ignore]


def _read_copy(path: Path) -> Any:
    """The user's copy; None where there is none, or no notebook any more."""
    try:
        return _read(path)
    except (OSError, ValueError, AttributeError, nbformat.ValidationError):
        return None


def _digest(notebook: Any) -> str:
    """What a notebook says, without what running it adds."""
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def _has_outputs(notebook: Any) -> bool:
    return notebook is not None and any(cell.get("outputs") for cell in notebook.cells)


def _recall(folder: Path) -> dict[str, Any]:
    """What was written into the folder before; where that is unreadable, nothing was."""
    try:
        memory = json.loads((folder / _MEMORY).read_text(encoding="utf-8"))
        known = isinstance(memory["notebooks"], dict) and isinstance(memory["target"], str)
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    return memory if known else {"schema_version": 1, "notebooks": {}}


def _write(path: Path, text: str) -> None:
    """Write a whole file or none."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
