"""Base classes of all results: table, picture, panel, notebook and terminal view, saving.

A result imports its view on first use, so that reading a result in a script loads no matplotlib.
Pictures and panels have names; an error on a wrong name lists them.
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
    """Target and machine of a measurement."""

    name: str = ""
    """Target in the user's words."""
    num_workers: int = 0
    """Worker processes of the loader; 0: the main process loads."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Facts about the machine."""


@dataclass(frozen=True)
class LoopConditions(Conditions):
    """Conditions of a timed loop, with its step and device."""

    device: str = "CPU"
    """Device of the steps, in words."""
    simulated_step_s: float | None = None
    """Seconds of the simulated step; None without a simulation."""
    has_step: bool = True
    """True if the loop had a step."""

    @classmethod
    def of(cls, target: Any, **fields: Any) -> Self:
        """Return the conditions of a `targets.Target` on this machine; `fields` go before them."""
        of_target = {
            "name": target.name,
            "num_workers": target.num_workers,
            "machine": machine(),
            "simulated_step_s": target.simulated_step_s,
            "has_step": target.step is not None,
        }
        return cls(**of_target | fields)

    def step_notes(self, without: str) -> list[str]:
        """Return the note on a simulated step, or on a missing step (with the text `without`)."""
        if self.simulated_step_s is not None:
            behind = self.device.startswith("simulated device")
            where = f" on a {self.device}" if behind else ", no device"
            return [f"the step is simulated: a timer of {seconds(self.simulated_step_s)}{where}"]
        return [] if self.has_step else [f"no step was given: {without}"]


class Result:
    """Base of the results: frozen values with a view."""

    _view: ClassVar[str]
    """Module and name of the `views.document.View` that shows this result: "ladder.VIEW"."""

    def table(self) -> pl.DataFrame:
        """Return the result as one table; columns carry their unit in their name."""
        raise NotImplementedError

    def plot(self, kind: str | None = None) -> Figure:
        """Draw with matplotlib.

        Args:
            kind: name of the picture; the error on an unknown name lists all names.
        """
        view = self._face()
        chosen = _choose("picture", kind, view.pictures, view.whose)
        import_module("matplotlib.backends.backend_agg")  # a child's own import is lost with it
        figure: Figure = apart(lambda: view.plot(self, chosen))
        return figure

    def panel(self, kind: str | None = None) -> Any:
        """Return the result as widgets, for a notebook.

        Args:
            kind: name of the panel; the error on an unknown name lists all names.
        """
        view = self._face()
        return view.panel(self, _choose("panel", kind, view.panels or view.pictures, view.whose))

    def __str__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        view = self._face()
        document: Any = apart(lambda: view.document(self))
        plain, page = without_controls(document.text()), str(document.html())
        return {"text/plain": plain, "text/html": page}

    def _face(self) -> Any:
        return named("views", self._view)


def named(folder: str, name: str) -> Any:
    """Return what a name such as "ladder.VIEW" means in a folder of the package."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f"stallscope.{folder}.{module}"), attribute)


class SavedResult(Result):
    """Base of the results that can be saved, and that `ss.load` reads."""

    _noun: ClassVar[str]
    """Noun for an error message."""
    _left_alone: ClassVar[tuple[str, ...]] = ()
    """Names in a folder of the result that saving leaves alone."""

    def save(self, folder: str | Path) -> Path:
        """Write the result as JSON and Arrow files; `ss.load` reads it back.

        Args:
            folder: a new or empty folder, or a folder with an older result of this kind, which is
                replaced when the new result is complete.

        Returns:
            The folder.

        Raises:
            RunFormatError: the folder holds something else, or cannot be written.
        """
        return apart(lambda: store.save(self, Path(folder)))

    def redacted(self) -> Self:
        """Return a copy without names of your files, to share with others.

        `…` replaces paths, names of files, folders, machine and account, texts of exceptions and
        lines of code, in every view, picture, export and saved file. Names of functions, classes
        and stages stay, and all numbers, such as sizes and indices of samples.
        """
        copy: Self = named("views", "redact.redacted")(self)
        return copy

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a saved result. Runs no code from the folder.

        Args:
            folder: the folder.

        Raises:
            RunFormatError: no result of this kind, a damaged result, or another version.
        """
        return apart(lambda: store.read(cls, Path(folder)))


class NoSuchKindError(StallscopeError, ValueError):
    """An unknown name of a picture or panel; the text lists all names."""


def _choose(what: str, kind: str | None, kinds: Mapping[str, tuple[str, Any]], whose: str) -> str:
    if kind is not None and kind not in kinds:
        texts = [f"{name!r}: {shows}" for name, (shows, _) in kinds.items()]
        names = "; ".join([f"{texts[0]} (the default)", *texts[1:]])
        are = "is" if len(kinds) == 1 else "are"
        raise NoSuchKindError(f"there is no {what} {kind!r} of {whose}. There {are} {names}")
    return kind or next(iter(kinds))
