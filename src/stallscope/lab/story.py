"""Story of the notebooks: their shared run, and the speedup of each change.

Each notebook has a kernel of its own, so a folder beside the notebooks holds their shared data: one
run of the target, for the same numbers on every page, and a list of measured changes. Each change
was measured in turn with the current loader.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

import stallscope as ss
from stallscope.bench.comparison import AS_IT_IS, FASTER, OPEN, compared
from stallscope.bench.loops import InTurns
from stallscope.bench.measurement import Measurement
from stallscope.columns import NO_VALUE, Column, Schema
from stallscope.errors import StallscopeError
from stallscope.files import read_file, whole_file
from stallscope.isolation import isolated
from stallscope.loops.cached_loaders import going_on
from stallscope.loops.training_loop import TimedLoop
from stallscope.units import share, times
from stallscope.views.document import Document, Heading, Notes, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.run.result import Run
    from stallscope.targets.target import Target

FOLDER: Final = "stallscope-story"
"""Name of the folder beside the notebooks."""
CHANGES: Final = Schema(
    "One row per change, oldest first; gains are relative to the current loader.",
    Column("change", pl.String, "Name of the change.", "what you changed"),
    Column("gain_factor", pl.Float64, "Speedup of the loop, measured in turn.", "speedup", times),
    Column("gain_low", pl.Float64, "Lower end of the 95% interval.", "95% CI", "{:.2f}".format),
    Column("gain_high", pl.Float64, "Upper end of the 95% interval."),
    Column("says", pl.String, "Result of the comparison.", "that is"),
    Column("busy_before_share", pl.Float64, "Busy share of the device before; null if unknown."),
    Column(
        "busy_share", pl.Float64, "Busy share of the device with the change.", "device busy", share
    ),
)
_NARROW: Final = 0.06
"""Half width of an interval, relative to the gain, that is narrow enough to stop."""
_BATCHES: Final = 32
"""Batches of a new run: at least eight rounds of two to four workers."""


class Story:
    """Data on one target that the notebooks share.

    Args:
        target: measured by all notebooks.
        folder: folder for this target; created when the first data is saved.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self._target, self._folder = target, folder
        self._note = "each change was measured in turn with the current loader"

    @classmethod
    def open(cls, target: Target, folder: str | Path = FOLDER) -> Story:
        """Return the story of a target: its run and its changes so far."""
        step = target.simulated_step_s, target.step is not None, str(target.device)
        settings = json.dumps([target.name, target.batch_size, target.num_workers, *step])
        words = re.sub(r"[^A-Za-z0-9]+", "-", target.name)[:40].strip("-")
        digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
        return cls(target, Path(folder, f"{words}-{digest}"))

    def share(self, run: Run | None) -> Run:
        """Save a run for the other notebooks, and return it; None: record a new run.

        Raises:
            StallscopeError: the target cannot be recorded.
        """
        run = run or ss.record(self._target, batches=_BATCHES)
        run.save(self._folder / "run")
        return run

    def run(self, *, budget_s: float = 60.0, fresh: bool = False) -> Run:
        """Return the run that the notebooks share, or record it.

        Args:
            budget_s: time limit of a new recording, seconds.
            fresh: record a new run, for example after the dataset's code has changed.

        Raises:
            StallscopeError: the target cannot be recorded.
        """
        if not fresh:
            with suppress(StallscopeError):  # there is none yet, or a damaged one
                loaded: Run = ss.load(self._folder / "run")
                return loaded
        return self.share(ss.record(self._target, batches=_BATCHES, budget_s=budget_s))

    def try_change(self, name: str, loader: Any, *, budget_s: float = 20.0) -> None:
        """Measure another loader in turn with the target's own, and add the change to the story.

        Args:
            name: name of the change.
            loader: plain DataLoader with the same batch size.
            budget_s: time limit, seconds; a clear answer ends the measurement earlier.

        Raises:
            ArgumentError: `budget_s` is not a positive number.
            StallscopeError: the loader yielded no batch in its steady state.
        """
        measurement = Measurement("try_change", budget_s)
        turns = InTurns(measurement, {AS_IT_IS: "as it is", 1: name}, watches_device=True)
        changed = replace(self._target, loader=loader)
        with (
            isolated(self._target) as target,
            isolated(changed) as new,
            measurement.of(name),
        ):
            turns.add(AS_IT_IS, TimedLoop.in_turns(target, target.loader))
            turns.add(1, TimedLoop.in_turns(new, going_on(new.loader)))

            def is_open(reach: float) -> list[int]:
                factor = compared(turns.blocks, 1)
                return [1] if factor.says == OPEN or factor.half_width > reach else []

            turns.run(lambda: is_open(2 * _NARROW), lambda: is_open(_NARROW))
            factor = compared(turns.blocks, 1)
        if 1 in turns.failed:
            raise StallscopeError(f"{name!r} was not measured: {turns.failed[1]}")
        if factor.low is None:
            self._note = f"{name!r} was not measured: {budget_s:g} s were too short (budget_s)"
            return
        row = (name, *factor, turns.busy.get(AS_IT_IS), turns.busy.get(1))
        self._keep(dict(zip(CHANGES, row, strict=True)))

    def table(self) -> pl.DataFrame:
        """Return one row per change; columns of `CHANGES`."""
        return pl.DataFrame(self._saved_changes(), CHANGES)

    def _saved_changes(self) -> list[dict[str, Any]]:
        """Return the saved changes; empty if the file is missing or damaged."""
        try:
            rows = json.loads(read_file(self._folder / "changes.json"))
            table = pl.DataFrame(rows if isinstance(rows, list) else [], CHANGES)
            needed = ("change", "gain_factor", "says")
            return [row for row in table.to_dicts() if None not in map(row.get, needed)]
        except (OSError, ValueError, TypeError, pl.exceptions.PolarsError):
            return []

    def _keep(self, change: Mapping[str, Any]) -> None:
        """Save a change; it replaces an earlier change of the same name."""
        rows: list[Mapping[str, Any]] = [
            row for row in self._saved_changes() if row["change"] != change["change"]
        ]
        self._folder.mkdir(parents=True, exist_ok=True)
        with whole_file(self._folder / "changes.json") as file:
            file.write(json.dumps([*rows, change], indent=1).encode())

    def _document(self) -> Document:
        rows = self._saved_changes()
        if not rows:
            return Document("story", [Heading("Nothing was changed yet."), Notes([self._note])])
        faster = [row for row in rows if row["says"] == FASTER]
        title = "No change is significantly faster so far"
        if faster:
            best = max(faster, key=lambda row: row["gain_factor"])
            before, after = (
                NO_VALUE if best[name] is None else share(best[name])
                for name in ("busy_before_share", "busy_share")
            )
            title = (
                f"Best change so far: {best['change']}, {times(best['gain_factor'])} the "
                f"throughput (device busy {before} without it, {after} with it)"
            )
        table = Table.of(CHANGES.shown(), rows)
        return Document("story", [Heading(title), table, Notes([self._note])])

    def __str__(self) -> str:
        return self._document().text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        document = self._document()
        return {"text/plain": document.text(), "text/html": str(document.html())}
