"""What a stopwatch around each transform would have said."""

from __future__ import annotations

import pytest
from support.build_run import a_run

from stallscope.charts.stages import LOADING, naive

LAZY = [("getitem", 1.0), ("fetch", 1.0), ("Crop", 0.5), ("decode", 5.0), ("fetch", 1.0)]
LAZY += [("decode", 1.0), ("Crop", 0.5), ("Flip", 2.0)]


def blame(samples):
    table = naive(a_run(samples).work)
    return dict(table.select("blamed", "blamed_share").unique().iter_rows())


class TestNaive:
    def test_charges_the_transform_that_touches_the_pixels(self):
        """Reading and decoding inside of a transform are charged to it."""
        assert {"Crop": 8 / 12, "Flip": 2 / 12, LOADING: 2 / 12} == pytest.approx(blame([LAZY] * 3))

    def test_moves_the_blame_with_the_order(self):
        """The same decoding is charged to whichever transform stands first."""
        swapped = [(name.replace("Crop", "?").replace("Flip", "Crop"), ms) for name, ms in LAZY]
        swapped = [(name.replace("?", "Flip"), ms) for name, ms in swapped]

        assert blame([swapped] * 3)["Flip"] == pytest.approx(8 / 12)

    def test_calls_everything_outside_of_transforms_loading(self):
        """A decoding in the dataset's own code, and a library's call there, are loading."""
        eager = [("fetch", 1.0), ("PIL.convert", 1.0), ("decode", 4.0), ("PIL.convert", 2.0)]

        assert {LOADING: 0.8, "Flip": 0.2} == pytest.approx(blame([[*eager, ("Flip", 2.0)]]))

    def test_says_what_was_inside(self):
        """The true stages are listed under the blamed one and add up to it."""
        table = naive(a_run([LAZY]).work)

        inside = {row[2]: row[4] for row in table.iter_rows() if row[0] == "Crop"}
        assert {"decode": 6 / 12, "fetch": 1 / 12, "Crop": 1 / 12} == pytest.approx(inside)

    def test_is_empty_without_samples(self):
        """Where samples cannot be told apart there is no such table."""
        assert naive(a_run([{"fetch": 1.0}], per_batch=True).work).is_empty()
