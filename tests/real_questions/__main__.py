"""Ask a tool the questions, each in a process of its own, and print how many it gets right.

    python tests/real_questions --tool "stallscope diagnose {target} --json"
    python tests/real_questions --tool "{python} {here}/adapters/ask_torch_profiler.py {target}"

{target} is `question_target:loader_and_step`, a function in the tool's working folder that returns
the loader and the step. {python} is this interpreter, {here} this folder.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from real_questions import all_questions, judge  # noqa: E402

if TYPE_CHECKING:
    from real_questions.question import Question

TARGET = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from real_questions import all_questions

QUESTION = next(one for one in all_questions() if one.name == {name!r})

class Timer:
    def __call__(self, batch):
        time.sleep({step_s!r})

def loader_and_step():
    Path("data").mkdir()
    step = QUESTION.step() if QUESTION.step else Timer()
    try:
        return QUESTION.make(Path("data")), step
    except ModuleNotFoundError as missing:
        Path("missing").write_text(missing.name)
        raise
"""
"""The step is a plain timer on the host: no tool knows more of it than the others."""


def main() -> None:
    """Ask each question, print each answer, and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tool", default="stallscope diagnose {target} --json")
    parser.add_argument("--only", default="", help="questions whose name holds this")
    parser.add_argument("--every", type=int, default=1, help="every k-th question (1)")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a question (120)")
    parser.add_argument("--save", default="", help="file for the answers, JSON")
    options = parser.parse_args()
    answers = []
    for question in all_questions(options.only)[:: options.every]:
        answer = _asked(options.tool, question, options.limit)
        if answer is None:
            continue
        answers.append(answer)
        print(judge.text(question, answer), flush=True)
    if options.save:
        saved = {
            "tool": options.tool,
            "command": " ".join(
                ["python", "tests/real_questions", *map(shlex.quote, sys.argv[1:])]
            ),
            "date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
            "answers": [asdict(answer) for answer in answers],
        }
        Path(options.save).write_text(json.dumps(saved, indent=1) + "\n")
    for row in (judge.HEAD, *judge.rows(answers)):
        print("  ".join(cell.ljust(14) for cell in row))


def _asked(tool: str, question: Question, limit_s: float) -> judge.Answer | None:
    """Return the tool's answer; none where a library of the question is missing."""
    places = {"target": "question_target:loader_and_step", "python": sys.executable, "here": HERE}
    with TemporaryDirectory(prefix="question-") as folder:
        target = TARGET.format(tests=str(HERE.parent), name=question.name, step_s=question.step_s)
        Path(folder, "question_target.py").write_text(target)
        began_s = time.monotonic()
        try:
            asked = subprocess.run(
                shlex.split(tool.format(**places)),
                cwd=folder,
                timeout=limit_s,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            said = {"title": f"no answer after {limit_s:g} s"}
        else:
            missing = Path(folder, "missing")
            if missing.exists():
                print(f"{question.name}: left out, it needs {missing.read_text()}")
                return None
            try:
                said = judge.parsed(asked.stdout)
            except ValueError as error:
                said = {"title": f"{error} {asked.stderr[-200:]}"}
        return judge.judged(question, said, time.monotonic() - began_s)


if __name__ == "__main__":
    main()
