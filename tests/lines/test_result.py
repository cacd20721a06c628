"""What the times of lines say."""

from __future__ import annotations

from support.build_lines import some_lines

from stallscope.verbs.lines.result import sentence


def test_the_answer_says_when_no_line_stands_out():
    assert sentence(some_lines({"f": [("a()", (0.03, 0.03))]})).startswith(
        "No line stands out: the hottest, "
    )
    assert "No line was measured" == sentence(some_lines({}))
