"""What all results share: a table, a picture, a panel, and a face in notebook and terminal.

A result knows the name of its view and imports it when it is looked at, so that reading a result
in a script costs no matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


class Result:
    """Base of the results; frozen values, whose views are found by name."""

    _view: ClassVar[str]
    """Module that draws this result: `plot`, `panel`, `text` and `html`, each of a result."""

    def table(self) -> pl.DataFrame:
        """The result as one table; columns carry their unit in their name."""
        raise NotImplementedError

    def plot(self, kind: str | None = None) -> Figure:
        """Draw with matplotlib.

        Args:
            kind: which picture; an unknown name lists the ones that there are.
        """
        figure: Figure = self._face().plot(self, kind)
        return figure

    def panel(self, kind: str | None = None) -> Any:
        """The result as widgets, for a notebook.

        Args:
            kind: which panel; an unknown name lists the ones that there are.
        """
        return self._face().panel(self, kind)

    def __str__(self) -> str:
        return str(self._face().text(self))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._face().html(self)}

    def _face(self) -> Any:
        return import_module(self._view)
