"""How often do real users' questions get their confirmed cause?

An answer is right if its code is that of the cause, its title names the place, and its next step
names what helped the author (`tests/real_questions`, whose own command asks any tool). Printed:
each answer, then the rights by kind of cause with Wilson's 95% interval.

    python tests/benchmarks/questions.py
    python tests/benchmarks/questions.py --only pandas --answers answers.json
"""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from dataclasses import asdict
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

os.environ.setdefault("TQDM_DISABLE", "1")

from benchkit.command import Option, arguments, table
from real_questions import all_questions, judge

import stallscope as ss
from stallscope.units import BUDGET_S

if TYPE_CHECKING:
    from real_questions.question import Question

fork = multiprocessing.get_context("fork")


def main() -> None:
    """Ask each question, and print what is said."""
    given = arguments(
        __doc__,
        budget=Option(BUDGET_S, 1.0, "of each, seconds"),
        only=Option("", "model-bound", "questions whose name holds this"),
        every=Option(1, 1, "ask every k-th question"),
        times=Option(1, 1, "ask each so many times"),
        answers=Option("", "", "file for the answers, JSON"),
    )
    warnings.filterwarnings("ignore")
    answers = []
    for question in all_questions(given.only)[:: given.every]:
        for _ in range(given.times):
            answer = _ask(question, given.budget)
            if answer is not None:
                answers.append(answer)
                print(judge.text(question, answer), flush=True)
    if given.answers:
        Path(given.answers).write_text(json.dumps([asdict(answer) for answer in answers], indent=1))
    print(table(judge.HEAD, judge.rows(answers)))
    wrong = [
        # The expression itself says nothing to a reader of the table
        (answer.name, answer.code, answer.missed.partition(" does not name")[0])
        for answer in answers
        if answer.missed
    ]
    print(table(("wrong", "answered", "missed"), wrong))
    quartiles = [f"{value:.0f}" for value in quantiles([one.wall_s for one in answers] * 2)]
    print(
        table(("seconds to the verdict", "first quartile", "median", "third"), [("", *quartiles)])
    )


def _ask(question: Question, budget_s: float) -> judge.Answer | None:
    """Answer in a new process, as users do; None where it has no answer.

    Memory that earlier questions have freed would be taken for the dataset's.
    """
    ours, theirs = fork.Pipe()
    process = fork.Process(target=lambda: theirs.send(_answer(question, budget_s)))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:  # its error is printed
        return None
    finally:
        process.join()


def _answer(question: Question, budget_s: float) -> judge.Answer | None:
    """Diagnose the question's loop; None where a library is missing."""
    with TemporaryDirectory(prefix="questions-") as folder:
        try:
            loader = question.make(Path(folder))
        except ModuleNotFoundError as missing:
            print(f"{question.name} ({question.source}): left out, it needs {missing.name}")
            return None
        step = question.step() if question.step else ss.simulated_step(question.step_s)
        diagnosis = ss.diagnose(loader, step, budget_s=budget_s, prove=False)
    verdict = diagnosis.verdict
    said = {"code": verdict.code, "title": verdict.title, "next_step": verdict.next_step}
    return judge.judged(question, said, diagnosis.circumstances.wall_s)


if __name__ == "__main__":
    main()
