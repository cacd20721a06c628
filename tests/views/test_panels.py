"""The panel: choose a stage, a worker and a percentile."""

from __future__ import annotations

import base64

import pytest
from builders import a_run

from stallscope.views.panels import EMPTY
from stallscope.views.tails import ALL, Tails

ATTACK = "<script>alert(1)</script>"


def controls(panel):
    return panel.children[0].children


@pytest.fixture
def run():
    samples = [{"decode": 1.0 + i / 10, "Crop": 0.5} for i in range(80)]
    return a_run(samples, workers=2, collate_ms=2.0, paths=[f"/data/{i}.jpg" for i in range(80)])


class TestPanel:
    def test_redraws_on_every_choice(self, run):
        """Each control changes the picture or the table."""
        panel = run.panel()
        seen = [(panel.children[1].value, panel.children[2].value)]
        for control, choice in zip(controls(panel), (1, 1, None), strict=True):
            if choice is None:
                control.value = 50
            else:
                control.index = choice
            seen.append((panel.children[1].value, panel.children[2].value))

        assert 4 == len(set(seen))

    def test_can_be_made_and_used_many_times(self, run):
        """Two panels of one run do not know each other."""
        first, second = run.panel(), run.panel()
        before = second.children[1].value
        for percentile in range(60, 90, 5):
            controls(first)[2].value = percentile

        assert before == second.children[1].value

    def test_has_a_still_picture_for_places_without_widgets(self, run):
        """Beside the widget stand a PNG and a sentence."""
        bundle = run.panel()._repr_mimebundle_()

        assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
        assert "take over" in bundle["text/plain"]

    def test_describes_its_picture(self, run):
        """A screen reader reads the answer."""
        assert "<img alt='5% of the samples take over" in run.panel().children[1].value

    def test_of_an_empty_run_says_so(self):
        """No stage, no controls."""
        assert EMPTY in a_run([]).panel().value


class TestTails:
    def test_lists_the_slow_end(self, run):
        """The table holds the samples beyond the percentile, the slowest first."""
        tails = Tails(run)

        table = tails.table(tails.stages[0], ALL, 80)

        assert "16 samples beyond p80" in table
        assert 11 == table.count("<tr>")  # ten of them, and the heads
        assert table.index("79.jpg") < table.index("78.jpg")
        assert "and 6 more" in table

    def test_says_when_nothing_is_slower(self):
        """Where many samples share the largest time, none is beyond it."""
        tails = Tails(a_run([{"A": 1.0}] * 5 + [{"A": 2.0}] * 15))

        assert (
            "No sample takes longer than 2.0 ms in A" == tails.draw(tails.stages[0], ALL, 95).title
        )

    def test_counts_batches_for_a_stage_of_batches(self, run):
        """Collate has no samples."""
        tails = Tails(run)
        collate = next(stage for stage in tails.stages if "collate" in stage)

        assert "batches" in tails.draw(collate, ALL, 50).notes[0]

    def test_asks_one_worker(self, run):
        """A worker's own samples only."""
        tails = Tails(run)

        assert "40 samples · worker 1" in tails.draw(tails.stages[0], "worker 1", 95).notes[0]

    def test_escapes_names(self):
        """File names are text."""
        run = a_run([{"A": 1.0}] * 9 + [{"A": 5.0}], paths=[f"/a/{ATTACK}"])
        tails = Tails(run)

        assert "<script" not in tails.table(tails.stages[0], ALL, 50)
