"""Labels of narrow things find places of their own."""

from __future__ import annotations

import random
from itertools import pairwise

import matplotlib.pyplot as plt

from stallscope.charts.bars import Label, Strip, StripPiece, in_a_row
from stallscope.charts.sheet import text_width


def test_labels_in_a_row_never_overlap():
    """For many random wishes, crowds at either end among them, texts are apart, in their order."""
    chance = random.Random(1)
    for _ in range(100):
        parts = sorted(chance.uniform(0, chance.choice([1, 9])) for _ in range(12))
        wanted = [(Label("x" * chance.randint(1, 20), at), chance.random()) for at in parts]

        labels = in_a_row(wanted, 9.0)

        ends = [(label.left, label.left + text_width(label.text)) for label in labels]
        assert labels
        assert all(end < left for (_, end), (left, _) in pairwise(ends))
        assert 0 <= ends[0][0]
        assert ends[-1][1] <= 9.001


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
