"""How often do real users' questions get their confirmed cause?

An answer is right if its code is that of the cause, its title names the place, and its next step
names what helped the author (`tests/real_questions`). Printed: each answer, then the rights by kind
of cause with Wilson's 95% interval.

    python tests/benchmarks/questions.py
    python tests/benchmarks/questions.py --only pandas --save answers.json
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

os.environ.setdefault("TQDM_DISABLE", "1")

from benchkit.command import Option, arguments, table
from real_questions import all_questions
from scipy.stats import binomtest

if TYPE_CHECKING:
    from real_questions.question import Question


@dataclass(frozen=True)
class Answer:
    """What was said of one question."""

    name: str
    kind: str
    """Folder of the question: its kind of cause."""
    missed: str
    """What the answer misses; '' where it is right."""
    code: str
    title: str
    next_step: str
    wall_s: float


def main() -> None:
    """Ask each question, and print what is said."""
    given = arguments(
        __doc__,
        budget=Option(30.0, 1.0, "of each, seconds"),
        only=Option("", "model-bound", "questions whose name holds this"),
        times=Option(1, 1, "ask each so many times"),
        save=Option("", "", "file for the answers, JSON"),
    )
    warnings.filterwarnings("ignore")
    answers = []
    for question in all_questions(given.only):
        for _ in range(given.times):
            answer = _ask(question, given.budget)
            if answer is not None:
                answers.append(answer)
                print(_as_text(question, answer), flush=True)
    if given.save:
        Path(given.save).write_text(json.dumps([asdict(answer) for answer in answers], indent=1))
    kinds = sorted({answer.kind for answer in answers})
    rows = [_row(kind, [answer for answer in answers if answer.kind == kind]) for kind in kinds]
    print(table(("kind", "right", "of", "95% CI"), [*rows, _row("all", answers)]))


def _ask(question: Question, budget_s: float) -> Answer | None:
    """Return the answer; None where a library is missing."""
    import stallscope as ss

    with TemporaryDirectory(prefix="questions-") as folder:
        try:
            loader = question.make(Path(folder))
        except ModuleNotFoundError as missing:
            print(f"{question.name} ({question.source}): left out, it needs {missing.name}")
            return None
        step = question.step() if question.step else ss.simulated_step(question.step_s)
        diagnosis = ss.diagnose(loader, step, budget_s=budget_s, prove=False)
    verdict = diagnosis.verdict
    return Answer(
        question.name,
        question.make.__module__.split(".")[1],
        question.missed_by(verdict.code, verdict.title, verdict.next_step),
        verdict.code,
        verdict.title,
        verdict.next_step,
        round(diagnosis.circumstances.wall_s, 1),
    )


def _as_text(question: Question, answer: Answer) -> str:
    judgement = f"WRONG: {answer.missed}" if answer.missed else "right"
    return (
        f"{answer.name} ({question.source}: {question.report})\n"
        f"    {judgement}, {answer.wall_s:.0f} s, {answer.code}\n"
        f"    {answer.title}\n    Next: {answer.next_step}"
    )


def _row(kind: str, answers: list[Answer]) -> tuple[str, ...]:
    right = sum(not answer.missed for answer in answers)
    if not answers:
        return kind, "0", "0", "-"
    interval = binomtest(right, len(answers)).proportion_ci(method="wilson")
    return kind, str(right), str(len(answers)), f"{interval.low:.0%} to {interval.high:.0%}"


if __name__ == "__main__":
    main()
