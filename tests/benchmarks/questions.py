"""Ask real users' questions, and count how often they get their confirmed cause.

An answer is right if its code is that of the cause, its title names the place, and its next step
names what helped the author (`tests/real_questions`, whose own command asks any tool). Printed:
each answer, then the rights by kind of cause with Wilson's 95% interval.

    python tests/benchmarks/questions.py
    python tests/benchmarks/questions.py --only pandas --answers answers.json
    python tests/benchmarks/questions.py --every 4 --prove      # and try the changes that help
    python tests/benchmarks/questions.py --only glob zarr --times 5     # the same cause each time?
"""

import json
import multiprocessing
import os
import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

from benchkit.command import Option, arguments, table
from real_questions import all_questions, judge
from real_questions.question import Question

import stallscope as ss
from stallscope.units import BUDGET_S

Answered = tuple[judge.Answer, list[tuple[str, ...]]]

SAME_HEAD = ("asked again", "causes", "the same", "of")
FIX_HEAD = ("question", "verdict", "change", "predicted", "measured", "intervals meet", "says")
fork = multiprocessing.get_context("fork")


def main() -> None:
    options = arguments(
        __doc__,
        budget=Option(BUDGET_S, 1.0, "of each, seconds"),
        only=Option([""], ["model-bound"], "questions whose name holds one of these"),
        every=Option(1, 1, "ask every k-th question"),
        times=Option(1, 1, "ask each so many times"),
        answers=Option("", "", "file for the answers, JSON"),
        prove=Option(False, False, "measure the change that helps most, too"),
    )
    warnings.filterwarnings("ignore")
    answers: list[judge.Answer] = []
    tried: list[tuple[str, ...]] = []
    asked = [
        question
        for question in all_questions()
        if any(part in question.name for part in options.only)
    ]
    for question in asked[:: options.every]:
        for _ in range(options.times):
            answered = _ask(question, options.budget, options.prove)
            if answered is not None:
                answer, fixes = answered
                answers.append(answer)
                tried += [(question.name, answer.code, *fix) for fix in fixes]
                print(judge.text(question, answer), flush=True)
    if options.answers:
        Path(options.answers).write_text(
            json.dumps([asdict(answer) for answer in answers], indent=1)
        )
    print(table(judge.HEAD, judge.rows(answers)))
    wrong = [
        # The expression itself says nothing to a reader of the table
        (answer.name, answer.code, answer.missed.partition(" does not name")[0])
        for answer in answers
        if answer.missed
    ]
    print(table(("wrong", "answered", "missed"), wrong))
    if options.times > 1:
        print(table(SAME_HEAD, _repeated(answers)))
    if options.prove:
        print(table(FIX_HEAD, tried))
    quartiles = [f"{value:.0f}" for value in quantiles([answer.wall_s for answer in answers] * 2)]
    print(
        table(("seconds to the verdict", "first quartile", "median", "third"), [("", *quartiles)])
    )


def _repeated(answers: list[judge.Answer]) -> list[tuple[str, ...]]:
    """Return how often each question got its most frequent cause."""
    codes: dict[str, Counter[str]] = {}
    for answer in answers:
        codes.setdefault(answer.name, Counter())[answer.code] += 1
    rows = [(name, ", ".join(verdicts), *_most(verdicts)) for name, verdicts in codes.items()]
    same, of = (sum(int(row[place]) for row in rows) for place in (2, 3))
    return [*rows, ("all", "", str(same), str(of))]


def _most(verdicts: Counter[str]) -> tuple[str, str]:
    return str(max(verdicts.values())), str(verdicts.total())


def _ask(question: Question, budget_s: float, prove: bool) -> Answered | None:
    """Answer in a new process, as users do; None where it has no answer.

    Memory that earlier questions have freed would be taken for the dataset's.
    """
    ours, theirs = fork.Pipe()
    process = fork.Process(target=lambda: theirs.send(_answer(question, budget_s, prove)))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:  # its error is printed
        return None
    finally:
        process.join()


def _answer(question: Question, budget_s: float, prove: bool) -> Answered | None:
    """Diagnose the question's loop; None where a library is missing."""
    with TemporaryDirectory(prefix="questions-") as folder:
        try:
            loader = question.make(Path(folder))
        except ModuleNotFoundError as missing:
            print(f"{question.name} ({question.source}): left out, it needs {missing.name}")
            return None
        step = question.step() if question.step else ss.simulated_step(question.step_s)
        diagnosis = ss.diagnose(loader, step, budget_s=budget_s, prove=prove)
    verdict = diagnosis.verdict
    answer = {"code": verdict.code, "title": verdict.title, "next_step": verdict.next_step}
    fixes = [
        (
            fix["fix"],
            _gain(fix, "predicted_gain"),
            _gain(fix, "gain"),
            "yes" if _meet(fix) else "no",
            fix["says"],
        )
        for fix in diagnosis.fixes.to_dicts()
        if fix["gain_low"] is not None
    ]
    return judge.judged(question, answer, diagnosis.circumstances.wall_s), fixes


def _meet(fix: dict[str, Any]) -> bool:
    above = fix["gain_low"] > fix["predicted_gain_high"]
    return not above and fix["gain_high"] >= fix["predicted_gain_low"]


def _gain(fix: dict[str, Any], name: str) -> str:
    return f"{fix[name]:.2f} [{fix[f'{name}_low']:.2f}, {fix[f'{name}_high']:.2f}]"


if __name__ == "__main__":
    main()
