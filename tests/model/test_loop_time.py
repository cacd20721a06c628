"""The loop's time in a sentence."""

from __future__ import annotations

import polars as pl
import pytest
from support.build_run import steps_of

from stallscope.model.attribution import EXPOSED, find_stalls
from stallscope.model.loop_time import loop_breakdown, sentence


@pytest.mark.parametrize(
    ("part", "kind", "words"),
    [
        ("queued", "send", "batches waiting in a queue"),
        ("queued", "transform", "queued, in the workers"),
        ("unattributed", None, "unattributed"),
        ("earlier batch", "other", "a worker still busy with an earlier batch"),
    ],
)
def test_has_words_for_what_is_no_stage(part, kind, words):
    """A transform with the name of such a part keeps its own name."""
    steps = steps_of([0.1])
    parts = pl.DataFrame([(part, kind, 1.0, 1.0, 1)], EXPOSED, orient="row")

    text = sentence(loop_breakdown(steps, find_stalls(steps)), parts, 2)

    assert text.endswith(f"100% of that is {words}")
