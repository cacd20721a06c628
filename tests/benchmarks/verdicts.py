"""Measure how often `ss.diagnose` is right, on loops with planted causes and healthy ones.

Each trial is a loop that no rule was ever tuned on: its numbers (step, batch, work, where the cause
sits, how strong it is) are drawn from seeds that nothing else uses. There are single causes, weak
ones near the threshold, and pairs of causes; and loops in which nothing is wrong: healthy from the
start, or a planted loop whose cause was taken away.

A trial runs in a process of its own (forked from one that has imported everything and nothing
else), and leaves one line of JSON in a file; started again, the benchmark goes on where it was.
Lines that other rules, thresholds or planted loops have left are not counted.

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
import tempfile
import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import chain, islice, repeat
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")  # of the trials' own bars; before tqdm is imported

from argparse import Namespace
from multiprocessing.connection import Connection

from benchkit import TESTS
from benchkit.command import Option, arguments
from benchkit.neighbour import neighbour
from benchkit.verdict_tables import AWAY, FAILED, HEALTHY, NEAR, PAIR, SINGLE, SOUND, Line, report
from planted import HEALTHY_CODE, PAIRS, PLANTED, Planted, plant, plant_pair
from tqdm import tqdm

import stallscope as ss
from stallscope.errors import UnsupportedError

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
NO_RULES = {"cli", "lab", "charts", "views"}
"""Folders of the package whose code does not decide what a trial says."""
PRELOADED = ["torchvision", "stallscope.verbs.diagnose.diagnose", "planted"]
"""Modules that take seconds to import, loaded once for all trials."""


@dataclass(frozen=True)
class Trial:
    """One loop."""

    kind: str
    causes: tuple[str, ...]
    seed: int
    strength: float

    @property
    def name(self) -> str:
        """Name of the trial, the same in every draw."""
        return f"{self.kind} {'+'.join(self.causes)} {self.seed} {self.strength}"

    def plant(self) -> Planted:
        """The loop."""
        if self.kind == PAIR:
            return plant_pair(*self.causes, self.seed, self.strength)
        planted = plant(self.causes[0], self.seed, self.strength)
        return planted.taken_away or planted if self.kind == AWAY else planted


def main() -> None:
    """Run what is missing, and print the tables."""
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
        run_and_report(options, Path(options.file or f"{folder}/verdicts.jsonl"))


def run_and_report(options: Namespace, file: Path) -> None:
    """Run what the file does not have, if that is asked for, and print the tables."""
    rules = rules_digest()
    if not options.report:
        run(trials(options), file, rules, options.budget)
    lines, others = read(file, rules, options.budget)
    print(report(lines, options.budget))
    if others:
        print(f"\n{others} lines of other rules or budgets are not counted")


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


def rules_digest() -> str:
    """Return a digest of all rules and thresholds that judge these loops."""
    package, loops = Path(ss.__file__).parent, Path(TESTS, "planted")
    files = chain(
        (
            file
            for file in package.rglob("*.py")
            if not NO_RULES & {*file.relative_to(package).parts}
        ),
        (file for file in loops.glob("*.py") if not file.name.startswith("test_")),
    )
    return sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:12]


# --- running --------------------------------------------------------------------------------------


def run(wanted: list[Trial], file: Path, rules: str, budget_s: float) -> None:
    """Run the trials that the file does not have yet."""
    done = {line["name"] for line in read(file, rules, budget_s)[0]}
    left = [trial for trial in wanted if trial.name not in done]
    done_before = len(wanted) - len(left)
    bar = tqdm(left, initial=done_before, total=len(wanted), unit="trial", disable=False)
    for trial in bar:
        bar.set_postfix_str(trial.name)
        about = {"rules": rules, "budget_s": budget_s, "name": trial.name, **asdict(trial)}
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
        "rules": rules_digest(),  # those that judged, which may have changed since the start
    }


def read(file: Path, rules: str, budget_s: float) -> tuple[list[Line], int]:
    """The lines of these rules and of this budget, and how many there are of others."""
    if not file.exists():
        return [], 0
    every = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    same = [line for line in every if (line["rules"], line.get("budget_s")) == (rules, budget_s)]
    return list({line["name"]: line for line in same}.values()), len(every) - len(same)


if __name__ == "__main__":
    main()
