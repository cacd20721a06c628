"""The loop's time in numbers and in a sentence."""

from __future__ import annotations

import polars as pl
import pytest
from support.build_run import steps_of
from support.virtual_loop import a_loop

from stallscope.model.attribution import EXPOSED, find_stalls
from stallscope.model.loop_time import NO_LOOP, loop_breakdown, sentence


def time_of(steps):
    return loop_breakdown(steps, find_stalls(steps))


def exposed(*parts):
    rows = [(part, kind, share, share, 1) for part, kind, share in parts]
    return pl.DataFrame(rows, EXPOSED, orient="row")


class TestLoopTime:
    def test_adds_up_to_the_loops_time(self):
        """Stalls, short waits, copies, steps and the rest are all of it."""
        steps = steps_of([0.5, 0.0005, 0.0], h2d_s=0.01, step_s=0.2, other_s=0.05)

        found = time_of(steps)

        pieces = {name: sum_s for name, _, sum_s in found.pieces()}
        assert {
            "stall": 0.5,
            "short waits": 0.0005,
            "copies": 0.03,
            "step": 0.6,
            "other": 0.15,
        } == pytest.approx(pieces)
        assert found.total_s == pytest.approx(sum(pieces.values()))

    def test_counts_making_an_iterator_as_waiting(self):
        """`iter(loader)` stands between two steps, too."""
        found = time_of(steps_of([0.1, 0.0], restart_s=[0.3, None]))

        assert (0.4, 0.4) == pytest.approx((found.stall_s, found.longest_wait_s))

    def test_takes_the_step_apart(self):
        """The model's parts in their order, then the others by length; small ones are the rest."""
        took = {"backward": 40.0, "forward": 20.0, "Slow": 30.0, "tiny": 0.1, "step": 10.0}
        run = a_loop({"fetch": 1.0}, using=took)

        found = loop_breakdown(run.steps(), run.stalls(), run.side_spans)

        pieces = [name for name, _, _ in found.pieces(0.01)]
        parts = ["forward", "backward", "rest of the step", "Slow"]
        assert parts == [name for name in pieces if name in {*parts, "tiny"}]
        assert found.total_s == pytest.approx(sum(piece[2] for piece in found.pieces()))

    def test_leaves_out_what_was_not_seen(self):
        """Without a device there is no copy, and no piece of it."""
        assert ["stall", "step"] == [name for name, _, _ in time_of(steps_of([0.1])).pieces()]

    def test_is_nothing_where_no_wait_was_recorded(self):
        """Null is not zero."""
        unknown = steps_of([0.1]).with_columns(start_ns=None, end_ns=None)

        assert loop_breakdown(unknown, find_stalls(unknown)) is None


class TestSentence:
    def test_names_the_longest_part(self):
        """With its share of the stalls, and where it happened."""
        time = time_of(steps_of([0.1] * 4))
        parts = exposed(("Mask", "transform", 0.72), ("decode", "decode", 0.28))

        told = [sentence(time, parts, workers) for workers in (4, 0)]

        still = "The training loop stalls 50% of the time; 72% of that is Mask, in the"
        assert [f"{still} workers", f"{still} main process"] == told

    @pytest.mark.parametrize(
        ("part", "kind", "words"),
        [
            ("queued", "send", "batches that lie in a queue"),
            ("queued", "transform", "queued, in the workers"),
            ("unattributed", None, "unattributed"),
            ("earlier batch", "other", "a worker still on an earlier batch"),
        ],
    )
    def test_has_words_for_what_is_no_stage(self, part, kind, words):
        """A transform that is called like one of them is still the user's."""
        told = sentence(time_of(steps_of([0.1])), exposed((part, kind, 1.0)), 2)

        assert told.endswith(f"100% of that is {words}")

    def test_says_when_the_loop_never_stalls(self):
        """And how long the longest wait is."""
        assert (
            "The training loop never stalls: the longest of 2 waits takes 500 µs"
            == sentence(time_of(steps_of([0.0005, 0.0])), exposed(), 4)
        )  # fmt: skip

    def test_says_when_nothing_is_known(self):
        """No loop, no judgement."""
        assert NO_LOOP == sentence(None, exposed(), 4)
