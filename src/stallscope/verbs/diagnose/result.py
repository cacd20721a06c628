"""Verdict as a value, with the numbers behind it.

Everything before makes it, everything after reads it.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a field's type, which is checked on loading
from dataclasses import dataclass, field
from importlib import import_module
from math import isnan
from typing import TYPE_CHECKING, Any, ClassVar, Final

import polars as pl

from stallscope.apart import computed_apart, computed_once
from stallscope.columns import NAME, Column, Schema, interval, unit_of
from stallscope.errors import StallscopeError
from stallscope.result import LoopConditions, SavedResult
from stallscope.run.result import Run  # noqa: TC001 - of a field, like the next two
from stallscope.store import stored
from stallscope.verbs.diagnose.causes import CAUSES, Cause, handbook
from stallscope.verbs.flame.result import Flame  # noqa: TC001
from stallscope.verbs.ladder.result import Ladder  # noqa: TC001

if TYPE_CHECKING:
    from pathlib import Path

    from stallscope.verbs.tune.result import Tuning


TABLE: Final = Schema(
    "One row per finding, the verdict first; the fields of a `Finding`.",
    Column("code", pl.String, secret=NAME),
    Column("title", pl.String),
    Column("severity", pl.Float64),
    Column("evidence", pl.String, "its numbers as text"),
    Column("confidence", pl.Float64),
    Column("next_step", pl.String),
    Column("tested", pl.Boolean),
)

SPENT: Final = Schema(
    "One row per phase of the measurement, in order; the last one, `stop`, says why it ended.",
    Column("phase", pl.String),
    Column("seconds", pl.Float64),
    Column("why", pl.String, "why it was needed"),
    nullable="seconds why",
)

FIXES: Final = Schema(
    "One row per change that would help, largest predicted speedup first.",
    Column("fix", pl.String),
    Column("code", pl.String, 'finding that advises it; "": none by itself', secret=NAME),
    Column("predicted_gain", pl.Float64, "speedup of the loop, replayed from the run"),
    *interval("predicted_gain_low", doc="its interval"),
    Column("measurable", pl.Boolean, "whether `try_fix` can make or imitate it"),
    Column("outside", pl.String, "why that is outside of what was recorded"),
    Column("gain", pl.Float64, "measured speedup; null: not tried"),
    *interval("gain_low"),
    Column("says", pl.String, "word of `bench.comparison`"),
    nullable="gain gain_low gain_high says",
)

NOT_MEASURED: Final = "not measured"
IN_MEMORY: Final = "samples in memory"
"""Change that `try_fix` imitates: finished samples, with random transforms drawn once."""
STORE: Final = "compute once, beforehand, what is always the same in a sample, and store it"
"""Permanent form of that change."""


@dataclass(frozen=True)
class Finding:
    """A named cause and its evidence."""

    code: str
    """One of `CAUSES`."""
    title: str
    """A sentence with numbers."""
    severity: float = 0.0
    """Share (0 to 1) of the loop's time, over its steady state, that it costs; where epochs begin
    slowly, of an epoch's. 0 for `healthy`; for `inconclusive` what is left without a cause.
    Without a step: share of the time in which batches are made."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """The numbers behind it; each name ends in its unit, as columns of tables do."""
    confidence: float = 0.0
    """Confidence (0 to 1): the least of how clearly the rule is met, of the explained share of the
    stalls, and of how steady the measurement was. A heuristic from hand-set limits that orders
    findings, not a probability."""
    next_step: str = ""
    """Notebook, setting or line of the user's code (`file:line`)."""

    def __post_init__(self) -> None:
        if self.code not in CAUSES:
            raise ValueError(f"there is no cause {self.code!r}")

    @property
    def cause(self) -> Cause:
        """Row of the table of causes."""
        return CAUSES[self.code]

    @property
    def tested(self) -> bool:
        """True: the rule was tried on loaders with this cause."""
        return self.cause.tested


@dataclass(frozen=True)
class DiagnosisConditions(LoopConditions):
    """Measured target, machine and budget."""

    budget_s: float = 60.0
    """Budget, seconds; 0 for a recorded run."""
    wall_s: float = 0.0
    """Duration of the measurement or of the recorded run, seconds."""
    epoch_s: float | None = None
    """Length of an epoch at the pace of the recording, seconds; None where it has no length."""


@dataclass(frozen=True, eq=False)
class Diagnosis(SavedResult):
    """Diagnosis: why the loop waits for data, or that it does not, and the measurements."""

    _view: ClassVar[str] = "diagnosis.VIEW"
    _noun: ClassVar[str] = "diagnosis"

    findings: tuple[Finding, ...]
    """Verdict first, then the other findings, most costly first; never empty."""
    run: Run | None = None
    """Recording of the unchanged loop and its samples."""
    ladder: Ladder | None = None
    """The loop without each of the loader's costs; None where it was not needed."""
    flame: Flame | None = None
    """Stacks of the workers; None where they were not needed."""
    spent: pl.DataFrame = stored(SPENT)
    circumstances: DiagnosisConditions = field(default_factory=DiagnosisConditions)
    """Measured target, machine and budget."""
    notes: tuple[str, ...] = ()
    """Notes on omissions and caveats, in sentences."""
    fixes: pl.DataFrame = stored(FIXES)
    """Predictions; empty where there are none."""
    bench: Any = field(default=None, repr=False)
    """Bench for fixes (`fixes.FixBench`); None for a loaded result."""

    def __post_init__(self) -> None:
        if not self.findings:
            raise ValueError("a diagnosis has no finding")

    @property
    def verdict(self) -> Finding:
        """The first finding."""
        return self.findings[0]

    @computed_once
    def table(self) -> pl.DataFrame:
        """One row per finding, the verdict first; columns of `TABLE`."""
        rows = []
        for finding in self.findings:
            numbers = ", ".join(f"{name} {value:.3g}" for name, value in finding.evidence.items())
            rows.append({name: getattr(finding, name) for name in TABLE} | {"evidence": numbers})
        return pl.DataFrame(rows, TABLE)

    def try_fix(self, fix: Any, *, budget_s: float = 30.0) -> Tuning:
        """Measure a change beside the current loader, and compare with the prediction.

        Args:
            fix: the name of one of `fixes`, the code of a finding, or settings as for `ss.tune`
                (`{"num_workers": 4}`).
            budget_s: it is over after this time, seconds, and the batch that is under way then.

        Raises:
            ArgumentError: `budget_s` is no number that can be used.
            StallscopeError: there is no such fix, only you can make it, or there is no loader to
                measure with: this was loaded, is another kind of loader, or no batch was recorded.
        """
        if self.bench is None:
            raise StallscopeError(
                "there is no loader here to measure a change with: call ss.diagnose with a "
                "DataLoader in this process, and a budget_s long enough to record a batch; then "
                "call try_fix of its result"
            )
        tuning: Tuning = self.bench.try_fix(fix, budget_s)
        return tuning

    @staticmethod
    def causes() -> str:
        """Return all causes of verdicts as a table in Markdown.

        Columns: the sign, the remedy that helped others, and where they asked.
        """
        return handbook()

    @computed_apart
    def export(self, path: str | Path, *, redact: bool = False) -> Path:
        """Write it as a file for others; an older one is written over.

        Args:
            path: `.html`, a report that needs no network and can be printed; or `.json`.
            redact: leave out pictures, and names as `redacted` does.

        Returns:
            The path.

        Raises:
            StallscopeError: another ending, or it cannot be written there.
        """
        written: Path = import_module("stallscope.views.diagnosis").export(
            self, path, redact=redact
        )
        return written


_LIKELY: Final = 1.2
"""Predicted speedup from which on a change with an uncertain gain is tried."""


def first_to_try(fixes: pl.DataFrame) -> str | None:
    """Return the best change of a table of `FIXES` that needs no code change.

    Settings that promise a large gain come before samples in memory, which are no change that a
    training can keep; significant gains come before others. Beside other processes predictions are
    wide, so that only a measurement decides.
    """
    sure = pl.col("predicted_gain_low") > 1
    likely = pl.col("predicted_gain") > _LIKELY
    setting = likely & (pl.col("fix") != IN_MEMORY)
    able = fixes.filter("measurable", sure | likely)
    able = able.sort(setting, sure, descending=True, maintain_order=True)
    return next(iter(able["fix"]), None)


def with_tried(fixes: pl.DataFrame, tried: Mapping[str, Tuning]) -> pl.DataFrame:
    """Return a table of `FIXES` with what was measured of changes, by their names."""
    rows = {row["fix"]: row for row in fixes.iter_rows(named=True)}
    shown = [name for name in FIXES if "gain" in name or name == "says"]
    for name, tuning in tried.items():
        (measured,) = tuning.settings().filter(pl.col("trial") > 0).head(1).to_dicts()
        values = {key: measured[key] for key in shown if measured[key] is not None}
        new = {"fix": name, "code": "", "measurable": True, "outside": ""}
        rows[name] = {**rows.get(name, new), **values}
    return pl.DataFrame(list(rows.values()), FIXES)


def number_text(name: str, value: float | None) -> str:
    """Write a number with the unit that its name ends in."""
    return NOT_MEASURED if value is None or isnan(value) else unit_of(name)[1](value)
