"""The panels: single stalls, and the timeline from any step on."""

import base64
from dataclasses import replace

import pytest
from support.build_run import a_run, steps_of
from support.chart_texts import check_texts
from support.virtual_loop import a_loop, together

from stallscope.charts.loop import parts_of, stall_figure
from stallscope.charts.timeline import picture
from stallscope.model.loop_time import NO_LOOP
from stallscope.run.result import Settings
from stallscope.run.stall_data import MOST_STEPS, from_step, timed_steps
from stallscope.units import seconds


def controls(panel):
    return panel.children[0].children


class TestPanel:
    def test_can_be_made_and_used_many_times(self):
        first, second = STALLING["stalls"].panel(), STALLING["stalls"].panel()
        before = second.children[1].value
        controls(first)[0].value = 3

        assert before == second.children[1].value

    def test_has_a_still_picture_for_places_without_widgets(self):
        """The widget comes with a PNG and a sentence."""
        bundle = STALLING["stalls"].panel()._repr_mimebundle_()

        assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
        assert "waits" in bundle["text/plain"]

    def test_describes_its_picture(self):
        assert "<img alt='Step " in STALLING["stalls"].panel().children[1].value


MAKING = {"fetch": 5.0, "decode": 40.0, "RandomMask": 70.0, "collate": 5.0}
WAITS = "<b>waits</b>"


def uneven(step, worker):
    """Return times of a batch that vary, always in the same way."""
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
        longest = STALLING["stalls"].stalls().sort("stall_s").row(-1, named=True)

        assert f"Step {longest['step']} waits" in STALLING["stalls"].panel("stalls").still.title

    def test_redraws_on_every_step(self):
        panel = STALLING["stalls"].panel("stalls")
        (slider,) = controls(panel)
        seen = set()
        shown = (1, 2, slider.max // 2, slider.max)
        for number in shown:
            slider.value = number
            seen.add((panel.children[1].value, panel.children[2].value))

        assert STALLING["stalls"].stalls().height == slider.max
        assert len(shown) == len(seen)

    @pytest.mark.parametrize(
        ("kind", "run", "message"),
        [
            ("stalls", a_loop(MAKING, using={"forward": 300.0}), "never stalls"),
            ("stalls", a_run([]), NO_LOOP),
            ("timeline", a_run([]), NO_LOOP),
        ],
    )
    def test_says_when_there_is_nothing_to_show(self, kind, run, message):
        panel = run.panel(kind)

        assert message in panel.children[0].value
        assert panel.still is None


class TestTimelinePanel:
    def test_begins_where_the_static_picture_is(self):
        run = STALLING["stalls"]

        still, static = run.panel("timeline").still, run.plot("timeline")

        assert still.notes == static.notes
        assert [text.get_text() for text in still.axes[0].texts] == [
            text.get_text() for text in static.axes[0].texts
        ]

    def test_redraws_on_every_step(self):
        panel = STALLING["stalls"].panel("timeline")
        step_count, slider = controls(panel)
        step_count.value = 6
        for step in (slider.min, 20, slider.max):
            slider.value = step
            first = min(step, 42)
            title = f"Steps {first} to {first + 5}: the training loop stalls"
            assert title in panel.children[1].value

        assert (4, 47) == (slider.min, slider.max)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", STALLING)
    def test_has_every_text_in_a_place_of_its_own(self, name):
        run = STALLING[name]
        rank = run.all_steps["rank"].max()
        steps = timed_steps(run, rank)["step"]

        for length in (3, min(MOST_STEPS, steps.len())):
            for first in (steps[0], steps[-length]):
                shown = from_step(run, rank, first, length)
                check_texts(picture(run, shown, "a title"))


class TestStall:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", STALLING)
    def test_is_drawn_with_every_text_in_a_place_of_its_own(self, name):
        stalls = STALLING[name].stalls()
        longest = stalls["stall_s"].arg_max()

        for place in {0, longest, stalls.height - 1}:
            check_texts(stall_figure(STALLING[name], stalls.row(place, named=True)))

    def test_says_whose_batch_it_was_and_why_it_was_late(self):
        """The title names step, batch, worker and the longest part."""
        run = a_loop(MAKING)
        stall = run.stalls().row(0, named=True)

        title = stall_figure(run, stall).title

        who = f"Step {stall['step']} waits {seconds(stall['stall_s'])} for batch {stall['batch']}"
        assert title.startswith(f"{who} of worker {stall['worker']}; ")
        assert title.endswith("of that is RandomMask")

    def test_lists_parts_that_add_up(self):
        run = STALLING["stalls"]

        for stall in run.stalls().iter_rows(named=True):
            assert 1.0 == pytest.approx(parts_of(run, stall)["share"].sum())

    def test_says_that_the_step_is_simulated(self):
        run = replace(STALLING["stalls"], settings=Settings(simulated_step_s=0.02))

        assert "simulated" in " ".join(stall_figure(run, run.stalls().row(0, named=True)).notes)
