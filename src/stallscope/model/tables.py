"""What the accounting reads of a run: its tables, by the names that `run.result.Run` has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import polars as pl


class RunTables(Protocol):
    """The tables of a run; their columns stand in `run.result` and `model.attribution`."""

    @property
    def settings(self) -> Any:
        """What was asked for: `run.result.Settings`."""

    @property
    def machine(self) -> dict[str, Any]:
        """Where it was measured."""

    @property
    def batches(self) -> pl.DataFrame:
        """The batches that were recorded."""

    @property
    def deliveries(self) -> pl.DataFrame:
        """The way of each batch."""

    @property
    def side_spans(self) -> pl.DataFrame:
        """Spans beside the workers' own work."""

    @property
    def work_stages(self) -> pl.DataFrame:
        """Where the workers' time goes, columns of `run.summary.STAGES`."""

    def steps(self, *, steady: bool = True) -> pl.DataFrame:
        """Steps of the loop."""

    def parts(self) -> pl.DataFrame:
        """What each stall consists of."""

    def resources(self, *, steady: bool = True) -> pl.DataFrame:
        """What was used of the machine."""
