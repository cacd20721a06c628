"""Measure how often `ss.diagnose` is right, on loops with planted causes and healthy ones.

Each trial is a loop that no rule was ever tuned on: its numbers (step, batch, work, where the cause
sits, how strong it is) are drawn from seeds that nothing else uses. There are single causes, weak
ones near the threshold, and pairs of causes; and loops in which nothing is wrong: healthy from the
start, or a planted loop whose cause was taken away.

A trial runs in a process of its own (forked from one that has imported everything and nothing
else), and leaves one line of JSON in a file; started again with that file, the benchmark goes on
where it was. Other rules need a new file.

Whether a loop starves is no matter of the plan alone: on a slow or busy machine a healthy one may
wait for its workers all the same. So each runs first by itself, without stallscope, and a stopwatch
tells how many times as long as its step a step takes: a healthy one above 1.1, or a planted one
below, is no trial.

A verdict is right at first choice if it is the planted cause; of a pair, the one that costs more. A
false alarm is a healthy loop that is said to have a cause. A diagnosis that fails is wrong. Every
miss is printed, and what this machine cannot plant, which is no trial.

    python tests/benchmarks/verdicts.py
    python tests/benchmarks/verdicts.py --report
    python tests/benchmarks/verdicts.py --neighbour --trials 0 --healthy 60 --file neighbour.jsonl
"""

import json
import os
import random
import statistics
import tempfile
import time
import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import chain, islice, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")  # of the trials' own bars; before tqdm is imported

from argparse import Namespace
from multiprocessing.connection import Connection

from benchkit.command import Option, arguments, table
from benchkit.neighbour import neighbour
from planted import HEALTHY_CODE, PAIRS, PLANTED, Planted, plant, plant_pair
from scipy.stats import binomtest
from tqdm import tqdm

import stallscope as ss
from stallscope.errors import UnsupportedError

Line = dict[str, Any]
"""Record of a trial."""
SINGLE, NEAR, PAIR, HEALTHY, AWAY = "single", "near", "pair", "healthy", "taken away"
"""Kinds of trials."""
PLANTED_KINDS, SOUND = (SINGLE, NEAR, PAIR), (HEALTHY, AWAY)
FAILED = "no verdict"
"""Verdict of a diagnosis that failed or did not end."""
NO_ALARM = (HEALTHY_CODE, "inconclusive", FAILED)
OVER = 1.1
"""Multiple of the budget after which a verdict is late."""
STRENGTH = {
    SINGLE: (1.6, 3.0),
    NEAR: (1.2, 1.4),
    PAIR: (1.8, 2.6),
    HEALTHY: (2.0, 2.0),
    AWAY: (1.6, 2.4),
}
"""Range of a step's duration with its wait, relative to the step alone."""
SHARES = {SINGLE: 0.62, NEAR: 0.23, PAIR: 0.15, HEALTHY: 0.5, AWAY: 0.5}
"""Shares of the planted trials, and of the healthy ones."""
GRACE_S = 120.0
ALONE_S, WARM_UP, STARVES = 3.0, 6, 1.1
"""Seconds of a loop without stallscope, batches before them, and the duration of a step, relative
to the step alone, from which on the loop counts as starving."""
PRELOADED = ["torchvision", "stallscope.verbs.diagnose.diagnose", "planted"]
"""Modules that take seconds to import, loaded once for all trials."""


@dataclass(frozen=True)
class Trial:
    kind: str
    causes: tuple[str, ...]
    seed: int
    strength: float

    @property
    def name(self) -> str:
        """Name of the trial, the same in every draw."""
        return f"{self.kind} {'+'.join(self.causes)} {self.seed} {self.strength}"

    def plant(self) -> Planted:
        if self.kind == PAIR:
            return plant_pair(*self.causes, self.seed, self.strength)
        planted = plant(self.causes[0], self.seed, self.strength)
        return planted.taken_away or planted if self.kind == AWAY else planted


def main() -> None:
    options = arguments(
        __doc__,
        trials=Option(212, 1, "with causes"),
        healthy=Option(60, 0, "without"),
        seed=Option(20_262, 20_262, "of the trials"),
        causes=Option([HEALTHY_CODE, *PLANTED], ["storage-latency"], "only loops with these"),
        budget=Option(60.0, 1.0, "of a diagnosis, seconds"),
        file=Option("verdicts.jsonl", "", "a line for each trial"),
        report=Option(False, False, "run nothing"),
        neighbour=Option(False, False, "beside a process that burns a core in bursts"),
    )
    beside = neighbour() if options.neighbour else nullcontext()
    with beside, tempfile.TemporaryDirectory(prefix="benchmark-verdicts-") as folder:
        file = Path(options.file or f"{folder}/verdicts.jsonl")
        if not options.report:
            run(trials(options), file, options.budget)
        print(report(read(file), options.budget))


def trials(options: Namespace) -> list[Trial]:
    """All trials, in an order in which any beginning of them is a fair sample."""
    draw = random.Random(options.seed)
    drawn = [
        *_draw(SINGLE, [(code,) for code in PLANTED], options.trials, draw),
        *_draw(NEAR, [(code,) for code in PLANTED], options.trials, draw),
        *_draw(PAIR, list(PAIRS), options.trials, draw),
        *_draw(HEALTHY, [(HEALTHY_CODE,)], options.healthy, draw),
        *_draw(AWAY, [(code,) for code in PLANTED], options.healthy, draw),
    ]
    draw.shuffle(drawn)
    return [trial for trial in drawn if {*trial.causes} & {*options.causes}]


def _draw(
    kind: str, causes: list[tuple[str, ...]], number: int, draw: random.Random
) -> list[Trial]:
    count = round(number * SHARES[kind])
    first = draw.randrange(10_000, 1_000_000)
    return [
        Trial(
            kind,
            causes[place % len(causes)],
            first + place,
            round(draw.uniform(*STRENGTH[kind]), 2),
        )
        for place in range(count)
    ]


# --- running --------------------------------------------------------------------------------------


def run(wanted: list[Trial], file: Path, budget_s: float) -> None:
    """Run the trials that the file does not have yet."""
    done = {line["name"] for line in read(file)}
    left = [trial for trial in wanted if trial.name not in done]
    done_before = len(wanted) - len(left)
    bar = tqdm(left, initial=done_before, total=len(wanted), unit="trial", disable=False)
    for trial in bar:
        bar.set_postfix_str(trial.name)
        about = {"name": trial.name, **asdict(trial)}
        line = {**about, "load": os.getloadavg()[0], **_in_a_fresh_process(trial, budget_s)}
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")


def _in_a_fresh_process(trial: Trial, budget_s: float) -> Line:
    """Return the verdict of a trial, or its failure."""
    fresh = get_context("forkserver")
    fresh.set_forkserver_preload(PRELOADED)
    here, there = fresh.Pipe(duplex=False)
    process = fresh.Process(target=_tell, args=(there, trial, budget_s))
    process.start()
    there.close()  # so that the end of the process ends the pipe
    began = time.perf_counter()
    try:
        outcome = here.recv() if here.poll(budget_s + GRACE_S) else {"error": "it did not end"}
    except EOFError:
        process.join()
        outcome = {"error": f"its process ended with {process.exitcode}"}
    process.kill()
    process.join()
    failed = {"found": [FAILED], "took_s": time.perf_counter() - began, "evidence": {}}
    return {**failed, "title": outcome["error"], "phases": []} if "error" in outcome else outcome


def _tell(there: Connection, trial: Trial, budget_s: float) -> None:
    """Send the verdict of a trial; runs in the fresh process."""
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    try:
        planted = trial.plant()
    except UnsupportedError as error:
        there.send({"not_planted": str(error)})
        return
    try:
        takes = takes_alone(planted)
        if (takes > STARVES) == (trial.kind in SOUND):
            there.send({"not_planted": f"without stallscope it takes {takes:.2f} times its step"})
            return
        there.send({**diagnosed(planted, budget_s), "takes_alone": takes})
    except Exception as error:  # noqa: BLE001 - a line of the table
        there.send({"error": f"{type(error).__name__}: {error}"})


def takes_alone(planted: Planted) -> float:
    """Return the duration of a step with its wait, relative to the step alone."""
    batches = chain.from_iterable(repeat(planted.loader))
    for batch in islice(batches, WARM_UP):
        planted.step(batch)
    began_s, steps = time.perf_counter(), 0
    while time.perf_counter() - began_s < ALONE_S:
        planted.step(next(batches))
        steps += 1
    return (time.perf_counter() - began_s) / steps / planted.recipe.step_s


def diagnosed(planted: Planted, budget_s: float) -> Line:
    """Return the diagnosis of a loop as a row."""
    began = time.perf_counter()
    diagnosis = ss.diagnose(planted.loader, planted.step, budget_s=budget_s, prove=False)
    took_s = time.perf_counter() - began
    return {
        "found": [finding.code for finding in diagnosis.findings],
        "title": diagnosis.verdict.title,
        "severity": diagnosis.verdict.severity,
        "confidence": diagnosis.verdict.confidence,
        "evidence": dict(diagnosis.verdict.evidence),
        "phases": diagnosis.spent["phase"].to_list(),
        "took_s": took_s,
    }


def read(file: Path) -> list[Line]:
    """Return the lines of a file, the latest of each trial."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return list({line["name"]: line for line in map(json.loads, lines)}.values())


# --- tables ---------------------------------------------------------------------------------------


def report(lines: list[Line], budget_s: float) -> str:
    """Return all tables, and every miss."""
    done = [line for line in lines if "found" in line]
    others = [f"- {line['name']}: {line['not_planted']}" for line in lines if "found" not in line]
    if not done:
        return "\n".join(["no trial yet", *others])
    parts = [
        _confusion(done),
        _shares(done),
        _times(done, budget_s),
        "\n".join(["misses:", *(_miss(line) for line in done if not _is_right(line))]),
        "\n".join(["not planted here:", *others]) if others else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _confusion(lines: list[Line]) -> str:
    """Return the table cause by verdict; of a pair, by the cause that costs more."""
    counts = Counter((_truth(line), line["found"][0]) for line in lines)
    verdicts = sorted({verdict for _, verdict in counts})
    rows = [
        (truth, *(str(counts[truth, verdict] or "·") for verdict in verdicts))
        for truth in sorted({truth for truth, _ in counts})
    ]
    return table(("planted \\ said", *verdicts), rows)


def _shares(lines: list[Line]) -> str:
    """Return the shares of right verdicts, each with its interval."""
    groups = {kind: [line for line in lines if line["kind"] == kind] for kind in PLANTED_KINDS}
    groups["all planted"] = [line for line in lines if line["kind"] not in SOUND]
    rows = []
    for name, group in groups.items():
        first = [_is_right(line) for line in group]
        second = [_truth(line) in line["found"][:2] for line in group]
        rows.append((f"{name}: right at first choice", *_share(first)))
        rows.append((f"{name}: among the first two", *_share(second)))
    both = [{*line["causes"]} <= {*line["found"][:2]} for line in groups[PAIR]]
    rows.append(("pairs: both among the first two", *_share(both)))
    healthy = [line for line in lines if line["kind"] in SOUND]
    alarms = [line["found"][0] not in NO_ALARM for line in healthy]
    rows.append(("healthy: said to be", *_share([_is_right(line) for line in healthy])))
    rows.append(("healthy: false alarms", *_share(alarms)))
    return table(("", "of", "share", "95% interval (Wilson)"), rows)


def _share(hits: list[bool]) -> tuple[str, str, str]:
    if not hits:
        return "0", "", ""
    interval = binomtest(sum(hits), len(hits)).proportion_ci(method="wilson")
    share = f"{sum(hits) / len(hits):.1%}"
    return str(len(hits)), share, f"[{interval.low:.1%}, {interval.high:.1%}]"


def _times(lines: list[Line], budget_s: float) -> str:
    took = sorted(line["took_s"] for line in lines)
    late = sum(seconds > OVER * budget_s for seconds in took)
    return (
        f"time to the verdict: median {statistics.median(took):.1f} s, 95% within "
        f"{took[int(0.95 * (len(took) - 1))]:.1f} s, longest {took[-1]:.1f} s; {late} of "
        f"{len(took)} over {OVER:g} × {budget_s:g} s"
    )


def _truth(line: Line) -> str:
    return HEALTHY_CODE if line["kind"] in SOUND else line["causes"][0]


def _is_right(line: Line) -> bool:
    return line["found"][0] == _truth(line)


def _miss(line: Line) -> str:
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in line["evidence"].items())
    return (
        f"- {line['name']} (load {line['load']:.1f}): said {', '.join(line['found'][:3])}; "
        f"{line['title']} [{numbers}; {line['took_s']:.0f} s: {' '.join(line['phases'])}]"
    )


if __name__ == "__main__":
    main()
