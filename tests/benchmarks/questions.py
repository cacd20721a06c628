"""Are real users' questions answered? Each as asked, with the verdict beside the confirmed cause.

Right is a verdict whose code is that of the cause, whose title names the place, and whose next step
names what helped its author (`tests/real_questions/questions.py`).

    python tests/benchmarks/questions.py
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("TQDM_DISABLE", "1")

from benchkit.command import Option, arguments
from real_questions.questions import KINDS, QUESTIONS, Question


def main() -> None:
    """Ask each, and print what is said."""
    given = arguments(
        __doc__,
        budget=Option(30.0, 1.0, "of each, seconds"),
        only=Option("", "model-bound", "questions whose name holds this"),
        times=Option(1, 1, "ask each so many times"),
    )
    warnings.filterwarnings("ignore")
    for what, questions in (("questions", QUESTIONS), ("further kinds", KINDS)):
        wanted = [one for one in questions if given.only in one.name] * given.times
        answers = [_ask(question, given.budget) for question in wanted]
        rights = [right for right in answers if right is not None]
        if rights:
            print(f"{what}: {sum(rights)} of {len(rights)} are right at the first place\n")


def _ask(question: Question, budget_s: float) -> bool | None:
    """Print what is said, and whether it is right; None where a library is missing."""
    import stallscope as ss

    with TemporaryDirectory(prefix="questions-") as folder:
        try:
            loader = question.make(Path(folder))
        except ModuleNotFoundError as missing:
            print(f"{question.name} ({question.asked}): left out, it needs {missing.name}")
            return None
        step = question.step() if question.step else ss.simulated_step(question.step_s)
        found = ss.diagnose(loader, step, budget_s=budget_s, prove=False)
    missed = question.missed_by(found.verdict)
    took_s = found.circumstances.wall_s
    print(f"{question.name} ({question.asked}), was {question.before}")
    print(
        f"    {'right' if not missed else 'WRONG: ' + missed}, {took_s:.0f} s, {found.verdict.code}"
    )
    print(f"    {found.verdict.title}\n    Next: {found.verdict.next_step}")
    sys.stdout.flush()
    return not missed


if __name__ == "__main__":
    main()
