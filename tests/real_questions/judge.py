"""Whether a verdict answers a question."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from real_questions.questions import Question
    from stallscope.diagnose.result import Finding


def judge(question: Question, verdict: Finding) -> str:
    """Say what a verdict misses; '' for nothing."""
    if verdict.code not in question.causes:
        return f"{verdict.code} is not {' or '.join(question.causes)}"
    if not re.search(question.place, verdict.title):
        return f"the title does not name {question.place}"
    if not re.search(question.lever, verdict.next_step):
        return f"the next step does not name {question.lever}"
    return ""
