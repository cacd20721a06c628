"""Labels of narrow things find places of their own."""

from __future__ import annotations

import random
from itertools import combinations

import matplotlib.pyplot as plt

from stallscope.charts.bars import Strip, StripPiece, place


class TestPlace:
    def test_keeps_a_lonely_label_in_the_lowest_row(self):
        """Where there is room, nothing is lifted."""
        (label,) = place([(5.0, 1.0)], 10.0, rows=3, gap=0.1)

        assert 0 == label.row

    def test_never_overlaps_and_never_crosses_a_line(self):
        """For many random wishes: texts are apart, and no line runs through a text."""
        chance = random.Random(1)
        for _ in range(200):
            wanted = [(chance.uniform(0, 9), chance.uniform(0.2, 2)) for _ in range(12)]
            placed = [one for one in place(wanted, 9.0, rows=4, gap=0.1) if one]
            for one, other in combinations(placed, 2):
                lower, upper = sorted((one, other), key=lambda label: label.row)
                if lower.row == upper.row:
                    assert one.right <= other.left or other.right <= one.left
                else:
                    assert not lower.left < upper.at < lower.right

    def test_leaves_out_what_has_no_room(self):
        """A label that is wider than the axis has no place."""
        assert [None] == place([(1.0, 20.0)], 9.0, rows=4, gap=0.1)

    def test_finds_room_for_a_crowd_at_either_end(self):
        """Labels run away from the end, each over the lines of the others."""
        for at in (0.2, 8.2):
            wanted = [(at + number / 5, 2.0) for number in range(4)]
            assert None not in place(wanted, 9.0, rows=4, gap=0.12)


def test_the_longest_pieces_keep_their_names():
    """Where there is no room for all names over a bar, the shortest go without."""
    lengths = [0.02] * 6 + [0.15, 0.13, 0.09] + [0.02] * 6 + [0.39]
    pieces = [
        StripPiece(letter * 24, length, "", "#888888")
        for letter, length in zip("abcdefghijklmnop", lengths, strict=True)
    ]

    fig, ax = plt.subplots()
    Strip(pieces, 9.0).fill(ax)
    named = {text.get_text()[0] for text in ax.texts if text.get_text()}
    plt.close(fig)

    assert {"g", "h", "i"} <= named
    assert len(named) < len(lengths) - 1
