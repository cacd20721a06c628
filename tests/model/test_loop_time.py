"""The loop's time in a sentence."""

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


@pytest.mark.parametrize(
    ("decode", "words"), [(0.4, "60% of that is transforms"), (0.7, "70% of that is decode")]
)
def test_names_transforms_that_take_more_together_than_the_longest_stage(decode, words):
    """The sentence names the verdict's culprit."""
    steps, rest = steps_of([0.1]), (1 - decode) / 2
    shares = [("decode", decode), ("Resize", rest), ("Normalize", rest)]
    rows = [(n, "decode" if n == "decode" else "transform", s, s, 1) for n, s in shares]
    parts = pl.DataFrame(rows, EXPOSED, orient="row")

    text = sentence(loop_breakdown(steps, find_stalls(steps)), parts, 2)

    assert text.endswith(f"{words}, in the workers")
