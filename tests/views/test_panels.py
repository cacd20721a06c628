"""The panels: the slow end of a stage, the stalls one by one, the timeline from any step on."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from support.build_run import a_run, steps_of
from support.chart_texts import check_texts
from support.virtual_loop import a_loop, together

from stallscope.charts.loop import parts_of, stall_figure
from stallscope.model.loop_time import NO_LOOP
from stallscope.run.result import Settings
from stallscope.units import seconds
from stallscope.views.run_panels import ALL, EMPTY, LONGEST, Moments, Stalls, Tails

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
        assert EMPTY in a_run([]).panel().children[0].value


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

    def test_asks_one_worker(self, run):
        """A worker's own samples only."""
        tails = Tails(run)

        assert "40 samples · worker 1" in tails.draw(tails.stages[0], "worker 1", 95).notes[0]

    def test_escapes_names(self):
        """File names and stages are text."""
        run = a_run([{"A": 1.0}] * 9 + [{"A": 5.0}], paths=[f"/a/{ATTACK}"])
        tails, parts = Tails(run), Stalls(STALLING["stalls"]).table(0)

        assert "<script" not in tails.table(tails.stages[0], ALL, 50)
        assert WAITS not in parts
        assert "&lt;b&gt;waits" in parts


MAKING = {"fetch": 5.0, "decode": 40.0, "RandomMask": 70.0, "collate": 5.0}
WAITS = "<b>waits</b>"


def uneven(step, worker):
    """What a batch takes varies; always the same way."""
    return {**MAKING, "RandomMask": 40.0 + (step * 37 + worker * 11) % 90, WAITS: 3.0}


STALLING = {
    "stalls": a_loop(uneven),
    "main process": a_loop(uneven, workers=0),
    "thinned": a_loop(uneven, recorded=5),
    "many workers": a_loop(uneven, workers=20, batches=120),
    "epochs": a_loop(uneven, batches=6, epochs=9),
    "ranks": together(*(a_loop(uneven, rank=rank) for rank in range(3))),
    "slow to send": a_loop(MAKING, workers=2, send=90.0, unpickle=20.0),
    "only steps": a_run([], steps=steps_of([0.2, 0.0, 0.3] * 9, h2d_s=0.01, other_s=0.02)),
}


class TestStallPanel:
    def test_begins_with_the_longest_stall(self):
        """The first picture is that of the longest wait."""
        longest = STALLING["stalls"].stalls().sort("stall_s").row(-1, named=True)

        assert f"Step {longest['step']} waits" in STALLING["stalls"].panel("stalls").still.title

    def test_redraws_on_every_step(self):
        """Each number of the slider is another picture and another table."""
        panel = STALLING["stalls"].panel("stalls")
        _order, slider, _of = controls(panel)
        seen = set()
        shown = (1, 2, slider.max // 2, slider.max)
        for number in shown:
            slider.value = number
            seen.add((panel.children[1].value, panel.children[2].value))

        assert STALLING["stalls"].stalls().height == slider.max
        assert len(shown) == len(seen)

    def test_has_no_controls_for_a_single_stall(self):
        """There is nothing to choose."""
        run = a_run([], steps=steps_of([0.0, 0.2, 0.0]))

        assert 2 == len(run.panel("stalls").children)

    @pytest.mark.parametrize(
        ("kind", "run", "message"),
        [
            ("stalls", a_loop(MAKING, using={"forward": 300.0}), "never stalls"),
            ("stalls", a_run([]), NO_LOOP),
            ("timeline", a_run([]), NO_LOOP),
        ],
    )
    def test_says_when_there_is_nothing_to_show(self, kind, run, message):
        """A sentence, and no picture that stays."""
        panel = run.panel(kind)

        assert message in panel.children[0].value
        assert panel.still is None


class TestTimelinePanel:
    def test_begins_where_the_static_picture_is(self):
        """The same steps, and as many of them."""
        run = STALLING["stalls"]

        still, static = run.panel("timeline").still, run.plot("timeline")

        assert still.notes == static.notes
        assert [text.get_text() for text in still.axes[0].texts] == [
            text.get_text() for text in static.axes[0].texts
        ]

    def test_redraws_on_every_step(self):
        """Each place of the slider is another picture, whose title names its steps."""
        panel = STALLING["stalls"].panel("timeline")
        many, slider = controls(panel)
        many.value = 6
        seen = set()
        for step in (slider.min, 20, slider.max):
            slider.value = step
            seen.add(panel.children[1].value)
            assert (
                f"Steps {step} to {step + 5}: the training loop stalls" in panel.children[1].value
            )

        assert (4, 42, 3) == (slider.min, slider.max, len(seen))

    def test_chooses_among_ranks(self):
        """Only where there are several; each has its own steps."""
        panel = STALLING["ranks"].panel("timeline")
        rank, _, _ = controls(panel)
        before = panel.children[1].value

        rank.value = 2

        assert (0, 1, 2) == rank.options
        assert before != panel.children[1].value

    @pytest.mark.slow
    @pytest.mark.parametrize("name", STALLING)
    def test_has_every_text_in_a_place_of_its_own(self, name):
        """The first steps and the last, few and many."""
        moments = Moments(STALLING[name])
        rank = moments.ranks[-1]

        for many in (moments.lengths[0], moments.lengths[-1]):
            for step in moments.firsts(rank, many):
                check_texts(moments.draw(rank, step, many))


class TestStall:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", STALLING)
    def test_is_drawn_with_every_text_in_a_place_of_its_own(self, name):
        """No text leaves the sheet, and none lies on another: the first, the longest, the last."""
        stalls = Stalls(STALLING[name])

        for stall in {0, stalls.stall(LONGEST, 1), stalls.number - 1}:
            check_texts(stalls.draw(stall))

    def test_says_whose_batch_it_was_and_why_it_was_late(self):
        """The title names step, batch, worker and the longest part."""
        run = a_loop(MAKING)
        stall = run.stalls().row(0, named=True)

        title = stall_figure(run, stall).title

        who = f"Step {stall['step']} waits {seconds(stall['stall_s'])} for batch {stall['batch']}"
        assert title.startswith(f"{who} of worker {stall['worker']}; ")
        assert title.endswith("of that is RandomMask")

    def test_lists_parts_that_add_up(self):
        """The shares are of this stall."""
        run = STALLING["stalls"]

        for stall in run.stalls().iter_rows(named=True):
            assert 1.0 == pytest.approx(parts_of(run, stall)["share"].sum())

    def test_says_that_the_step_is_simulated(self):
        """A timer is called one."""
        run = replace(STALLING["stalls"], settings=Settings(simulated_step_s=0.02))

        assert "simulated" in " ".join(stall_figure(run, run.stalls().row(0, named=True)).notes)
