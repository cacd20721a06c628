"""Answers to the questions, judged alike for every tool; needs no tool of its own."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from scipy.stats import binomtest

from real_questions.question import Question

INPUT_BOUND = "input-bound"
"""Cause of tools that only tell loader from step: accepted for every cause in the loader."""
HEAD = ("kind", "right cause", "and place", "and remedy", "of", "95% interval of all three")


@dataclass(frozen=True)
class Answer:
    """The answer of a tool to one question."""

    name: str
    kind: str
    """Folder of the question: its kind of cause."""
    missed: str
    """The first part that the answer misses: cause, place, or remedy; '' where it is right."""
    code: str
    title: str
    next_step: str
    wall_s: float


def judged(question: Question, answer: Mapping[str, str], wall_s: float) -> Answer:
    """Judge an answer by the question's accepted ones.

    Args:
        question: that was asked.
        answer: `code` of the cause, `title`, and `next_step`, each '' where the tool says nothing.
        wall_s: from the start of the tool to its answer, seconds.
    """
    code, title, next_step = (answer.get(part, "") for part in ("code", "title", "next_step"))
    if code == INPUT_BOUND and question.causes != ("healthy",):
        code = question.causes[0]
    missed = question.missed_by(code, title, next_step)
    kind = question.make.__module__.split(".")[1]
    return Answer(question.name, kind, missed, code, title, next_step, round(wall_s, 1))


def text(question: Question, answer: Answer) -> str:
    """Return an answer and its judgement as lines to print."""
    judgement = f"WRONG: {answer.missed}" if answer.missed else "right"
    return (
        f"{answer.name} ({question.source}: {question.report})\n"
        f"    {judgement}, {answer.wall_s:.0f} s, {answer.code}\n"
        f"    {answer.title}\n    Next: {answer.next_step}"
    )


def rows(answers: list[Answer]) -> list[tuple[str, ...]]:
    """Return the rights by kind of cause and of all, under `HEAD`."""
    kinds = sorted({answer.kind for answer in answers})
    of_kinds = [_row(kind, [each for each in answers if each.kind == kind]) for kind in kinds]
    return [*of_kinds, _row("all", answers)]


def _row(kind: str, answers: list[Answer]) -> tuple[str, ...]:
    right = sum(not answer.missed for answer in answers)
    with_place = right + sum(answer.missed.startswith("the next step") for answer in answers)
    with_cause = with_place + sum(answer.missed.startswith("the title") for answer in answers)
    counts = (str(with_cause), str(with_place), str(right), str(len(answers)))
    if not answers:
        return (kind, *counts, "-")
    interval = binomtest(right, len(answers)).proportion_ci(method="wilson")
    return (kind, *counts, f"{interval.low:.0%} to {interval.high:.0%}")


def parsed(output: str) -> dict[str, str]:
    """Return the answer in what a tool printed: the last line or the whole, as JSON.

    An object with `code`, `title` and `next_step`, or with a list `findings` of such, the first
    of which counts.

    Raises:
        ValueError: there is no such object.
    """
    for piece in (output, output.strip().rpartition("\n")[2]):
        try:
            value = json.loads(piece)
        except ValueError:
            continue
        value = (value.get("findings") or [value])[0]
        return {part: str(value.get(part) or "") for part in ("code", "title", "next_step")}
    raise ValueError(f"No answer as JSON: {output[-200:]!r}")
