"""What the times of lines say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.build_lines import some_lines

from stallscope.verbs.lines.result import TABLE, in_order, sentence

if TYPE_CHECKING:
    from stallscope.verbs.lines.result import Lines


def of_function(lines: Lines, name: str, line: int) -> dict:
    return next(
        row
        for row in lines.table().iter_rows(named=True)
        if (row["function"], row["line"]) == (name, line)
    )


def test_the_table_has_the_columns_that_others_rely_on():
    columns = some_lines().table().columns

    assert ["function", "file", "line", "hits", "time_s", "share", "source"] == columns[:7]
    assert list(TABLE) == columns


def test_own_time_leaves_out_the_functions_that_have_a_listing():
    lines = some_lines()

    assert 0.9 == of_function(lines, "Items.__getitem__", 2)["share"]
    assert 0.2 == pytest.approx(of_function(lines, "Items.__getitem__", 2)["own_share"])
    assert 0.09 == pytest.approx(of_function(lines, "Mask.__call__", 2)["own_share"])
    assert 0.9 == pytest.approx(lines.table()["own_s"].sum())


def test_the_answer_names_the_hottest_line():
    assert sentence(some_lines()) == (
        "Line 3 of `Mask.dilate` takes 60% of a sample's time: `hits = conv2d(mask)`"
    )
    assert "Mask.dilate" == in_order(some_lines())[0]["function"]


def test_the_answer_says_when_no_line_stands_out():
    assert sentence(some_lines({"f": [("a()", (0.03, 0.03))]})).startswith(
        "No line stands out: the hottest, "
    )
    assert "No line was measured" == sentence(some_lines({}))
