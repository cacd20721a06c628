"""Story of the notebooks: their shared run, and a staircase of measured changes.

Each notebook has a kernel of its own, so a folder beside the notebooks holds their shared data: one
run of the target, for the same numbers on every page, and a list of measured changes. A change that
is faster is kept: the next one is made to the loader with it, and measured in turn with that one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

import stallscope as ss
from stallscope.bench.comparison import AS_IT_IS, FASTER, OPEN, compared
from stallscope.bench.loops import InTurns
from stallscope.bench.measurement import Measurement
from stallscope.columns import Column, Schema
from stallscope.errors import StallscopeError
from stallscope.files import read_file, whole_file
from stallscope.isolation import isolated
from stallscope.loops.cached_loaders import going_on
from stallscope.loops.training_loop import TimedLoop
from stallscope.model.settings import Setting, given_settings, setting_of, with_setting
from stallscope.targets.loaders import copied
from stallscope.targets.sample import sample_loader
from stallscope.units import count, seconds, share, times
from stallscope.verbs.orders.pipeline import places
from stallscope.verbs.orders.result import Orders, op_names
from stallscope.verbs.tune.result import Tuning
from stallscope.views.document import Document, Heading, Notes, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stallscope.bench.comparison import LoopBlock
    from stallscope.run.result import Run
    from stallscope.targets.target import Target

FOLDER: Final = "stallscope-story"
"""Name of the folder beside the notebooks."""
CHANGES: Final = Schema(
    "One row per change, oldest first; a gain is relative to the loader with the rows before it.",
    Column("change", pl.String, "Name of the change.", "what you changed"),
    Column("predicted", pl.Float64, "Predicted speedup; null if unknown.", "predicted", times),
    Column("gain_factor", pl.Float64, "Speedup of the loop, measured in turn.", "measured", times),
    Column("gain_low", pl.Float64, "Lower end of the 95% interval.", "95% CI", "{:.2f}".format),
    Column("gain_high", pl.Float64, "Upper end of the 95% interval."),
    Column("says", pl.String, "Result of the comparison.", "that is"),
    Column("busy_before_share", pl.Float64, "Busy share of the device before; null if unknown."),
    Column(
        "busy_share", pl.Float64, "Busy share of the device with the change.", "device busy", share
    ),
    Column("makes", pl.String, "How to make the change again, as JSON; null if only by hand."),
)
_NOT_MADE: Final = (StallscopeError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions of changes that cannot be made again: edited, or of a folder that is gone."""
_NARROW: Final = 0.1
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
        self._notes = ["each change was measured in turn with the loader that has those above it"]
        if target.simulated_step_s is not None:
            timer = f"a timer of {seconds(target.simulated_step_s)} a batch"
            self._notes.append(f"the device is simulated: {timer}")
        self._loader: Any = None
        """The loader with the changes that were kept; None: not made yet."""

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

    @property
    def target(self) -> Target:
        """The target with all changes so far that were faster.

        What can be made again is: arguments of the sample's loader, another row of a compose's ops,
        and settings of a loader. A loader of your own is known only to the notebook that made it.
        """
        if self._loader is None:
            self._loader = self.without("").loader
        return replace(self._target, loader=self._loader)

    def without(self, argument: str) -> Target:
        """Return the target with the changes that were faster, but for those of one argument.

        A notebook measures what it has changed before without that, so that a second run of it
        gives the same answer: "order" of the ops, "folder" of the sample.
        """
        rows = [row for row in self._kept() if argument not in _arguments(row["makes"])]
        with suppress(*_NOT_MADE):
            return replace(self._target, loader=_with_changes(self._target.loader, rows))
        return self._target

    def try_change(
        self, name: str, change: Any, predicted: float | None = None, *, budget_s: float = 40.0
    ) -> None:
        """Measure a change in turn with the loader so far, and keep it if it is faster.

        Then the earlier changes that were not faster are measured again, in what is left of the
        budget: without the slower part, they may be.

        Args:
            name: name of the change.
            change: `ss.orders` or `ss.tune`'s result, arguments of a DataLoader as for `ss.tune`,
                those of `sample_loader`, or another plain DataLoader with the same batch size.
            predicted: speedup that was predicted, for the table.
            budget_s: time limit of all, seconds; clear answers end it earlier.

        Raises:
            ArgumentError: `budget_s` is not a positive number.
        """
        whole = Measurement("try_change", budget_s)
        makes = _recipe(change)
        rows = self._saved_changes()
        others = [row for row in rows if not _is_replaced(row, name, makes)]
        if len(others) < len(rows):  # tried before: the loader so far is one without it
            self._save(others)
            self._loader = None
        if isinstance(change, dict):
            loader = self._made_again(str(makes))
        else:
            loader = change.apply(self.target.loader) if hasattr(change, "apply") else change
        if not self._measure(name, loader, makes, predicted, budget_s):
            return
        for row in self._saved_changes():  # what was hidden by a slower part may count now
            if row["says"] != FASTER and row["makes"] and not whole.has_used(0.5):
                with suppress(*_NOT_MADE):
                    loader, left_s = self._made_again(row["makes"]), whole.left_s
                    self._measure(row["change"], loader, row["makes"], row["predicted"], left_s)

    def _made_again(self, makes: str) -> Any:
        """Return the loader so far with one more change that can be made again."""
        row = {"makes": makes}
        if "sample" in json.loads(makes):
            return _with_changes(self._target.loader, [*self._kept(), row])
        return _with_changes(self.target.loader, [row])

    def _measure(
        self, name: str, loader: Any, makes: str | None, predicted: float | None, budget_s: float
    ) -> bool:
        """Measure a loader in turn with the one so far; return whether it is faster and kept."""
        measurement, so_far = Measurement("try_change", budget_s), self.target
        turns = InTurns(measurement, {AS_IT_IS: "so far", 1: name})
        with (
            warnings.catch_warnings(),
            isolated(so_far) as target,
            isolated(replace(so_far, loader=loader)) as new,
            measurement.of(name),
        ):
            # A simulated device is no accelerator to torch, though its copies are faster, too
            warnings.filterwarnings("ignore", "'pin_memory' argument is set")
            turns.add(AS_IT_IS, TimedLoop.in_turns(target, target.loader))
            turns.add(1, TimedLoop.in_turns(new, going_on(new.loader)))

            def is_open(reach: float) -> list[int]:
                factor = compared(turns.blocks, 1)
                return [1] if factor.says == OPEN or factor.half_width > reach else []

            turns.run(lambda: is_open(math.inf), lambda: is_open(_NARROW))
            factor = compared(turns.blocks, 1)
        if factor.low is None:
            why = turns.failed.get(1, f"{budget_s:g} s were too short (budget_s)")
            self._notes.append(f"{name!r} was not measured: {why}")
            return False
        busy = _busy(turns.blocks, AS_IT_IS), _busy(turns.blocks, 1)
        row = (name, predicted, *factor, *busy, makes)
        others = [each for each in self._saved_changes() if each["change"] != name]
        self._save([*others, dict(zip(CHANGES, row, strict=True))])
        if factor.says == FASTER:
            self._loader = loader
        return factor.says == FASTER

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

    def _kept(self) -> list[dict[str, Any]]:
        return [row for row in self._saved_changes() if row["says"] == FASTER]

    def _save(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with whole_file(self._folder / "changes.json") as file:
            file.write(json.dumps(rows, indent=1).encode())

    def _document(self) -> Document:
        rows, faster = self._saved_changes(), self._kept()
        if not rows:
            title = "No change was tried yet; the next notebooks keep each that is faster"
            return Document("story", [Heading(title)])
        title = "No change was faster: keep the loader as it is"
        if unsettled := [row["change"] for row in rows if row["says"] == OPEN]:
            title = f"Tried, and tried again after the next faster change: {', '.join(unsettled)}"
        if faster:
            gain = math.prod(row["gain_factor"] for row in faster)
            title = f"{count(len(faster), 'change')} made the loop {times(gain)} as fast"
            before, after = faster[0]["busy_before_share"], faster[-1]["busy_share"]
            if None not in (before, after):
                title = f"Device busy {share(before)} at the start, {share(after)} now: {title}"
        return Document(
            "story", [Heading(title), Table.of(CHANGES.shown(), rows), Notes(self._notes)]
        )

    def __str__(self) -> str:
        return self._document().text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        document = self._document()
        return {"text/plain": document.text(), "text/html": str(document.html())}


def _busy(blocks: Sequence[LoopBlock], variant: int) -> float | None:
    """Return the share of a variant's time in which a step ran; None: no step."""
    mine = [block for block in blocks if block.variant == variant]
    if any(block.step_s is None for block in mine):
        return None
    return sum(block.step_s or 0.0 for block in mine) / sum(block.seconds for block in mine)


def _recipe(change: Any) -> str | None:
    """Return how another notebook makes a change again, as JSON; None: it cannot."""
    if isinstance(change, dict):
        is_setting = change.keys() <= vars(Setting()).keys()
        return json.dumps({"setting" if is_setting else "sample": change})
    if isinstance(change, Tuning) and change.best["trial"]:
        return json.dumps({"setting": vars(change.setting(change.best["trial"]))})
    if isinstance(change, Orders) and (best := change.best_variant()) and best.kind == "order":
        ops = [name for _, name in sorted(op_names(change).items())]
        return json.dumps({"ops": ops, "order": best.positions})
    return None


def _arguments(makes: str | None) -> set[str]:
    """Return the names of what a change sets, from how it is made again; empty if only by hand."""
    with suppress(ValueError, AttributeError):
        recipe = json.loads(makes or "{}")
        return set(recipe.get("sample") or recipe.get("setting") or recipe)
    return set()


def _is_replaced(row: Mapping[str, Any], name: str, makes: str | None) -> bool:
    """Return whether a change takes the place of an earlier one, as another order does."""
    arguments = _arguments(makes)
    return row["change"] == name or (bool(arguments) and _arguments(row["makes"]) == arguments)


def _with_changes(loader: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a loader with the changes that can be made again."""
    recipes = [json.loads(row["makes"]) for row in rows if row["makes"]]
    if arguments := {
        name: each["sample"][name] for each in recipes for name in each.get("sample", ())
    }:
        loader = sample_loader(**arguments)
    for each in recipes:
        if "setting" in each:
            *_, setting = given_settings(setting_of(loader), [each["setting"]], ())
            loader = with_setting(loader, setting)
        if "order" in each:
            loader = _reordered(loader, each["ops"], each["order"])
    return loader


def _reordered(loader: Any, names: list[str], order: list[int]) -> Any:
    """Return a loader whose compose of these ops has them in another order."""
    for place in places(loader.dataset):
        ops = getattr(place.value, "transforms", None)
        if isinstance(ops, (list, tuple)) and [type(op).__name__ for op in ops] == names:
            compose = copy.copy(place.value)
            compose.transforms = [ops[position] for position in order]
            return copied(loader, dataset=place.filled(loader.dataset, compose))
    return loader
