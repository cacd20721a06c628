"""Diagnosis in words, the same for terminal, notebook, picture, report and JSON.

Nothing here draws: a verdict in a terminal loads no matplotlib.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from stallscope.bench.comparison import FASTER, SAME
from stallscope.columns import FACTOR, unit_of
from stallscope.model.thresholds import CLEAR, LIKELY, OTHERS, SMALL, WORTH_A_LINE
from stallscope.run.resources import find_saturated
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.stats import INTERVAL
from stallscope.units import (
    LONGEST_TITLE,
    count,
    duration,
    printable,
    seconds,
    share,
    times,
    used_of,
)
from stallscope.verbs.diagnose.causes import HEALTHY, INCONCLUSIVE, START_UP
from stallscope.verbs.diagnose.result import IN_MEMORY, STORE, number_text, with_tried

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stallscope.verbs.diagnose.result import Diagnosis, Finding


LONGEST_NAME: Final = 120
_ENDS: Final = ("_low", "_high")
"""Ends of an interval, shown beside their number."""


class Number(NamedTuple):
    """A number behind a finding: its name in words, and its value with unit and interval."""

    name: str
    value: str


def numbers_of(evidence: Mapping[str, float]) -> Iterator[Number]:
    """Yield the numbers of an evidence, each with its interval."""
    for name, value in evidence.items():
        if name.removesuffix(_ENDS[0]).removesuffix(_ENDS[1]) in evidence and name.endswith(_ENDS):
            continue
        end, form = unit_of(name)
        low, high = (evidence.get(f"{name}{side}") for side in _ENDS)
        text = number_text(name, value)
        if low is not None and high is not None:
            text += f" ({form(low)} to {form(high)})"
            if end == FACTOR and low < 1 < high:  # digits of it would look like a gain
                text = SAME
        yield Number(printable(name.removesuffix(end).replace("_", " "), LONGEST_NAME), text)


LONGEST_WORD: Final = 60
STOP: Final = "stop"
"""The phase that says why the measurement ended."""
SIMULATED: Final = "the step is simulated"
TWICE: Final = "Findings can overlap. Fix the first, then run the diagnosis again"
OPENS: Final = (
    "names like 2_fetch_vs_transform are guided notebooks: `stallscope lab` opens them. In a "
    "terminal: `stallscope lines` (the slow lines), `orders`, `tune`, `storage`"
)
NOT_TESTED: Final = "this rule is not tested: no loader with this cause was built"
HOW_SURE: Final = "Confidence is a heuristic from 0 to 1, not a probability"
SHARES: Final = (
    "Shares of the stall time exclude waiting for a CPU core; the panel of a single stall and the "
    "trace include it"
)
_OF_STALLS: Final = "_exposed_share"
"""End of the names of such shares."""

NOTEBOOKS: Final = (
    "1_start_here",
    "2_fetch_vs_transform",
    "3_cached_baseline",
    "4_worker_flamegraphs",
    "5_transform_orders",
    "6_your_training",
    "a_storage",
    "b_when_data_is_not_it",
)
"""Guided notebooks that verdicts and reports name and link."""
GUIDED: Final = re.compile(rf"(?<![\w/])(?:{'|'.join(NOTEBOOKS)})(?:\.ipynb)?")
"""Name of a guided notebook in a sentence."""
_AND_OR: Final = re.compile(r"^(and|or) ")
"""Link between two next steps; each step is shown on its own."""


class Phase(NamedTuple):
    """A part of the budget."""

    name: str
    seconds: float
    why: str


@dataclass(frozen=True)
class FindingText:
    """A finding as text; nothing of it is escaped yet."""

    code: str
    title: str
    costs: str
    severity: float
    sure: str
    """Confidence as a word and a number; empty for a loop that cannot be judged."""
    numbers: tuple[Number, ...]
    steps: tuple[str, ...]
    """Next steps, one action each."""
    tested: bool
    colour: str

    @property
    def because(self) -> str:
        """Its evidence in one line; empty without any."""
        return " · ".join(f"{number.name} {number.value}" for number in self.numbers)


def words(finding: Finding, diagnosis: Diagnosis) -> FindingText:
    """Return a finding of a diagnosis as text."""
    parts = [printable(part, LONGEST_TITLE) for part in finding.next_step.split("; ")]
    steps = [_AND_OR.sub("", part) for part in parts if part]
    sure = finding.confidence
    word = "clear" if sure >= CLEAR else "likely" if sure >= LIKELY else "weak"
    return FindingText(
        code=finding.code,
        title=sentence(finding.title),
        costs=_costs(finding, diagnosis),
        severity=min(finding.severity, 1.0) if finding.severity >= SMALL else 0.0,
        sure="" if finding.code == INCONCLUSIVE.code else f"{word} ({sure:.2f})",
        numbers=tuple(numbers_of(finding.evidence)),
        # A notebook that is only named is opened
        steps=tuple(f"open {each}" if GUIDED.fullmatch(each) else each for each in steps),
        tested=finding.tested,
        colour=COLOURS.get(finding.cause.kind, STALL_COLOUR),
    )


def all_words(diagnosis: Diagnosis) -> list[FindingText]:
    """Return every finding as text, the verdict first; its first step is what proved to help.

    What samples in memory gain comes last: it is no change to keep, and steps of one remedy belong
    together.
    """
    texts = [words(each, diagnosis) for each in diagnosis.findings]
    run = diagnosis.run
    has_steps = run is not None and not run.all_steps.is_empty()
    others = (find_saturated(run).others_share or 0.0) if run and has_steps else 0.0
    if texts[0].sure and others >= OTHERS:
        beside = f"other processes had {share(others)} of the cores: read shares, not milliseconds"
        texts[0] = replace(texts[0], sure=f"{texts[0].sure}; {beside}")
    if proved := proof(diagnosis):
        steps = texts[0].steps
        steps = (*steps, proved) if proved.startswith(STORE) else (proved, *steps)
        texts[0] = replace(texts[0], steps=steps)
    return texts


def proof(diagnosis: Diagnosis) -> str:
    """Name the change that was measured to gain most; '' where none gains anything."""
    gains = [row for row in fix_rows(diagnosis) if row["says"] == FASTER]
    best = max(gains, key=lambda row: float(row["gain"]), default=None)
    if best is None:
        return ""
    interval = f"{INTERVAL} {best['gain_low']:.2f} to {best['gain_high']:.2f}"
    stalls = diagnosis.verdict.evidence.get("stall_share", 1.0)
    is_more = best["gain_low"] * (1 - stalls) > 1
    beyond = ": more than the stalls, as the step gets faster, too" if is_more else ""
    gain = f"{times(best['gain'])} faster ({interval}), measured"
    if best["fix"] == IN_MEMORY:
        gain = f"up to {gain} with {IN_MEMORY}"
    return f"{STORE if best['fix'] == IN_MEMORY else best['fix']}: {gain}{beyond}"


def _costs(finding: Finding, diagnosis: Diagnosis) -> str:
    """Say what it costs: a share of what it is."""
    part = share(finding.severity)
    simulated = diagnosis.circumstances.simulated_step_s is not None
    step = ", with a simulated step" if simulated else ""
    if finding.code == HEALTHY.code:
        return f"almost nothing to gain in the loader{step}"
    if finding.code == INCONCLUSIVE.code:
        return f"the loop stalls {part} of the time" if finding.severity >= SMALL else ""
    if any(each.code == START_UP.code for each in diagnosis.findings):
        return f"costs {part} of an epoch's time{step}"
    if not diagnosis.circumstances.has_step:
        return f"{part} of the time in which batches are made"
    stalls, gain = (finding.evidence.get(name) for name in ("stall_share", "headroom_factor"))
    if gain and finding.severity > (stalls or 0.0) + SMALL:  # the step is slower for it, too
        step = f", as it is {times(gain)} as fast with everything cached{step}"
    return f"costs {part} of the loop's time{step}"


def sentence(title: str) -> str:
    """Make a sentence fit to be broken into lines: names of the user's may be of any length."""
    return " ".join(
        printable(word, LONGEST_WORD) for word in printable(title, LONGEST_TITLE).split(" ")
    )


WOULD_HELP: Final = (
    "What would help (predicted; diagnosis.try_fix(name) measures it; 3_cached_baseline)"
)
_MOST_HELPING: Final = 4


def helping(diagnosis: Diagnosis) -> list[str]:
    """List the changes that promise most, each with its predicted and its measured gain."""
    lines, epoch_s = [], diagnosis.circumstances.epoch_s
    rows = [row for row in fix_rows(diagnosis) if row["gain"] or _promises(row)]
    for row in rows[:_MOST_HELPING]:
        line = "not predicted"
        if row["predicted_gain"] is not None:
            low, high = row["predicted_gain_low"], row["predicted_gain_high"]
            line = f"predicted {row['predicted_gain']:.2f}× ({low:.2f} to {high:.2f})"
        if row["gain"] is not None:
            line += f", measured {row['gain']:.2f}×"
        gain = row["gain"] or row["predicted_gain"]
        is_sure = row["gain"] is not None or (row["predicted_gain_low"] or 0.0) > 1
        if is_sure and epoch_s and gain and duration(epoch_s / gain) != duration(epoch_s):
            line += f"; an epoch in {duration(epoch_s / gain)} instead of {duration(epoch_s)}"
        own = "" if row["measurable"] else "; needs a code change"
        lines.append(f"{printable(row['fix'], LONGEST_WORD)}: {line}{own}")
    return lines


def _promises(row: dict[str, Any]) -> bool:
    """Return whether a gain is predicted of a change for sure, or nothing is known of it."""
    gain, low = row["predicted_gain"], row["predicted_gain_low"]
    return gain is None or (gain >= WORTH_A_LINE and (low or 0.0) > 1)


def fix_rows(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return the changes that would help, and others that were tried, with what was measured."""
    bench = diagnosis.bench
    return with_tried(diagnosis.fixes, bench.tried if bench else {}).to_dicts()


def measured(diagnosis: Diagnosis) -> str:
    """Say what was measured, on which machine and for how long, in one line."""
    circumstances = diagnosis.circumstances
    parts = [printable(circumstances.name, LONGEST_NAME)] if circumstances.name else []
    parts.append(
        count(circumstances.num_workers, "worker") if circumstances.num_workers else "no workers"
    )
    step = f"your step, on {printable(circumstances.device)}"
    if circumstances.simulated_step_s is not None:
        step = f"{SIMULATED}: a timer of {seconds(circumstances.simulated_step_s)}, no device"
    elif not circumstances.has_step:
        step = "no step was given: the loader alone"
    parts.append(step)
    machine = dict(circumstances.machine)
    cores = [count(machine["cores"], "core")] if machine.get("cores") else []
    system = [printable(str(machine["system"]))] if machine.get("system") else []
    named = [
        f"{each} {printable(str(machine[each]))}"
        for each in ("python", "torch")
        if machine.get(each)
    ]
    return " · ".join(filter(None, [*parts, ", ".join([*cores, *system, *named]), took(diagnosis)]))


def is_measured(diagnosis: Diagnosis) -> bool:
    """Return whether it was measured for the verdict, and not recorded before."""
    return bool(diagnosis.circumstances.budget_s)


def took(diagnosis: Diagnosis) -> str:
    """Say how much of the budget was used, or how long the recorded run is."""
    circumstances = diagnosis.circumstances
    if not is_measured(diagnosis):
        return f"{circumstances.wall_s:.0f} s recorded"
    return used_of(circumstances.wall_s, circumstances.budget_s)


def phases(diagnosis: Diagnosis) -> list[Phase]:
    """List what the budget went to, in order, without the reason why it ended."""
    rows = diagnosis.spent.filter(pl.col("phase") != STOP).fill_null(0.0).fill_null("")
    return [
        Phase(printable(name), took_s, printable(why, LONGEST_TITLE))
        for name, took_s, why in rows.iter_rows()
    ]


def ended(diagnosis: Diagnosis) -> str:
    """Say why the measurement ended; '' where that is not known."""
    why = diagnosis.spent.filter(phase=STOP)["why"].to_list()
    return printable(why[0] or "", LONGEST_TITLE) if why else ""


def notes_of(diagnosis: Diagnosis) -> list[str]:
    """List the caveats; without those that `measured` states."""
    notes = (printable(note, 1000) for note in diagnosis.notes)
    named = (name for finding in diagnosis.findings for name in finding.evidence)
    shares = [SHARES] if any(name.endswith(_OF_STALLS) for name in named) else []
    return [*(note for note in notes if not note.startswith(SIMULATED)), *shares, HOW_SURE]


def outside_notes(diagnosis: Diagnosis) -> list[str]:
    """List the same where a guided notebook is no link."""
    named = any(GUIDED.search(finding.next_step) for finding in diagnosis.findings)
    return [*notes_of(diagnosis), *([OPENS] if named else [])]
