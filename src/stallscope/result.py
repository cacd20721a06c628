"""What all results share: a table, a picture, a panel, a face in notebook and terminal, a folder.

A result knows the name of its view and imports it when it is looked at, so that reading a result
in a script costs no matplotlib. Pictures and panels are asked for by name; a wrong name is answered
with those that there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stallscope import store
from stallscope.apart import apart
from stallscope.errors import StallscopeError
from stallscope.machine import machine
from stallscope.units import seconds, without_controls

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl
    from matplotlib.figure import Figure
    from typing_extensions import Self


@dataclass(frozen=True)
class Conditions:
    """What was measured, and where."""

    name: str = ""
    """What the user pointed at, in the user's words."""
    num_workers: int = 0
    """Worker processes of the loader; 0: the main process loads."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Where it was measured."""


@dataclass(frozen=True)
class LoopConditions(Conditions):
    """What a loop was that was timed, and on what it computed."""

    device: str = "CPU"
    """What computes the steps, in words."""
    simulated_step_s: float | None = None
    """How long the step was simulated to take, seconds; None where nothing was simulated."""
    has_step: bool = True
    """Whether there was a step at all."""

    @classmethod
    def of(cls, target: Any, **more: Any) -> Self:
        """Return the conditions of a `targets.Target` on this machine, with `more` fields."""
        return cls(
            name=target.name,
            num_workers=target.num_workers,
            machine=machine(),
            simulated_step_s=target.simulated_step_s,
            has_step=target.step is not None,
            **more,
        )

    def step_notes(self, without: str) -> list[str]:
        """Return the note on a step that is simulated, or missing (then `without` says more)."""
        if self.simulated_step_s is not None:
            behind = self.device.startswith("simulated device")
            where = f" on a {self.device}" if behind else ", no device"
            return [f"the step is simulated: a timer of {seconds(self.simulated_step_s)}{where}"]
        return [] if self.has_step else [f"no step was given: {without}"]


class Result:
    """Base of the results; frozen values, whose views are found by name."""

    _view: ClassVar[str]
    """Module and name of the `views.document.View` that shows this result: "ladder.VIEW"."""

    def table(self) -> pl.DataFrame:
        """Return the result as one table; columns carry their unit in their name."""
        raise NotImplementedError

    def plot(self, kind: str | None = None) -> Figure:
        """Draw with matplotlib.

        Args:
            kind: which picture; an unknown name lists the ones that there are.
        """
        view = self._face()
        chosen = _choose("picture", kind, view.pictures, view.whose)
        import_module("matplotlib.backends.backend_agg")  # a child's own import is lost with it
        figure: Figure = apart(lambda: view.plot(self, chosen))
        return figure

    def panel(self, kind: str | None = None) -> Any:
        """Return the result as widgets, for a notebook.

        Args:
            kind: which panel; an unknown name lists the ones that there are.
        """
        view = self._face()
        return view.panel(self, _choose("panel", kind, view.panels or view.pictures, view.whose))

    def __str__(self) -> str:
        return without_controls(self._document().text())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        document = self._document()
        plain, page = without_controls(document.text()), str(document.html())
        return {"text/plain": plain, "text/html": page}

    def _document(self) -> Any:
        view = self._face()
        return apart(lambda: view.document(self))

    def _face(self) -> Any:
        module, _, name = self._view.rpartition(".")
        return getattr(import_module(f"stallscope.views.{module}"), name)


class SavedResult(Result):
    """Base of the results that can be saved: all that `ss.load` reads."""

    _contents: ClassVar[store.Contents]
    """What it consists of on disk."""

    def save(self, folder: str | Path) -> Path:
        """Write it as JSON and Arrow files; `ss.load` reads it back.

        Args:
            folder: a new or empty folder, or one with an older result of this kind, which is
                replaced when the new one is whole.

        Returns:
            The folder.

        Raises:
            RunFormatError: the folder holds something else, or cannot be written.
        """
        return apart(lambda: store.save(self, self._contents, Path(folder)))

    def redacted(self) -> Self:
        """Return the result without names of your files, for others to read.

        Paths, names of files and folders, of the machine and the account, what exceptions said and
        lines of code become `…`, in all that is shown, drawn, exported or saved of it. Names of
        functions, classes and stages stay, and numbers, which sizes and indices of samples are.
        """
        found: Self = import_module("stallscope.views.redact").redacted(self)
        return found

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote. Runs nothing that the folder says.

        Args:
            folder: the folder.

        Raises:
            RunFormatError: there is none of this kind, a damaged one, or one of another version.
        """
        return apart(lambda: store.read(cls, cls._contents, Path(folder)))


class NoSuchKindError(StallscopeError, ValueError):
    """There is no picture or panel of that name; the text lists the ones that there are."""


def _choose(what: str, kind: str | None, kinds: Mapping[str, tuple[str, Any]], whose: str) -> str:
    if kind is not None and kind not in kinds:
        texts = [f"{name!r}: {shows}" for name, (shows, _) in kinds.items()]
        known = "; ".join([f"{texts[0]} (the default)", *texts[1:]])
        are = "is" if len(kinds) == 1 else "are"
        raise NoSuchKindError(f"there is no {what} {kind!r} of {whose}. There {are} {known}")
    return kind or next(iter(kinds))
