"""The pictures of a loop that waits: timeline, exposed time and waits."""

from dataclasses import replace

import polars as pl
import pytest
from matplotlib.colors import to_rgba
from support.build_run import a_run, steps_of
from support.chart_texts import check_texts, texts, words
from support.virtual_loop import a_loop, on_device, together

from stallscope.charts import loop, timeline
from stallscope.charts.loop import MARKERS
from stallscope.charts.timeline import LOOP
from stallscope.run.result import Run
from stallscope.run.stall_data import timeline as prepared
from stallscope.stages import STALL_COLOUR

KINDS = ("timeline", "exposed", "waits")
MAKING = {"fetch": 5.0, "decode": 40.0, "RandomMask": 70.0, "collate": 5.0}
QUICK = {"forward": 5.0, "backward": 6.0, "logging": 1.0}
LONG_NAME = "A_very_long.module_name.of_some_transform_that_nobody_would_write_in_one_line"


def uneven(step, worker):
    """Return stage times that vary by step and worker, equal in each call."""
    return {**MAKING, "RandomMask": 40.0 + (step * 37 + worker * 11) % 90, LONG_NAME: 3.0}


def saving(step):
    return QUICK | ({"check\x1b$point$": 150.0} if step % 10 == 9 else {})


ODD_LOOPS = {
    "stalls": a_loop(uneven, using=QUICK, h2d=1.0),
    "on a device": on_device(a_loop(uneven, using=QUICK), 0.002, 0.06),
    "all kinds on a device": on_device(
        a_loop(
            uneven,
            using=QUICK | {"optimizer": 2.0, "step": 3.0},
            h2d=1.0,
            send=3.0,
            unpickle=1.0,
            recorded=5,
        ),
        0.002,
        0.06,
    ),
    "no stall": a_loop(MAKING, using={"forward": 90.0}, unpickle=0.1),
    "main process": a_loop(uneven, workers=0, using=saving),
    "one step": a_loop(uneven, batches=1, warmup=0),
    "thinned": a_loop(uneven, using=QUICK, recorded=5),
    "many workers": a_loop(uneven, workers=20, batches=120, using=saving, h2d=0.5),
    "epochs": a_loop(uneven, batches=6, epochs=9, using=saving),
    "ranks": together(*(a_loop(uneven, using=QUICK, rank=rank) for rank in range(3))),
    "slow to send": a_loop(MAKING, workers=2, using=QUICK, send=90.0, unpickle=20.0),
    "only steps": a_run([], steps=steps_of([0.2, 0.0, 0.3] * 9, h2d_s=0.01, other_s=0.02)),
    "hardly waits": a_run([], steps=steps_of([0.02, *[0.0] * 9] * 20, step_s=0.09), workers=4),
}


def _ground(text):
    box = text.get_bbox_patch()
    return box and box.get_facecolor()


class TestEveryLoop:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", ODD_LOOPS)
    def test_is_drawn_with_every_text_in_a_place_of_its_own(self, name, kind):
        check_texts(Run.plot(ODD_LOOPS[name], kind))

    @pytest.mark.parametrize("kind", KINDS)
    def test_says_when_no_loop_was_recorded(self, kind):
        """A run of samples alone has no waits."""
        figure = Run.plot(a_run([{"A": 1.0}] * 8), kind)

        assert "No training loop was recorded, so its waits are unknown" == figure.title


class TestTimeline:
    def test_has_a_lane_for_a_device_that_works_behind_the_loop(self):
        """The lane lies between the workers and the loop; stalls are where the device is idle."""
        figure = timeline.figure(ODD_LOOPS["on a device"])

        ax = figure.axes[0]
        lanes = [label.get_text() for label in ax.get_yticklabels()]
        rows = dict(zip(lanes, ax.get_yticks(), strict=True))
        assert rows["worker 3"] < rows["device"] < rows[LOOP]
        assert any("device: GPU" in text for text in words(figure))

    def test_writes_the_number_of_the_awaited_batch_in_both_lanes(self):
        """The number is shown where the batch is made and where it is used."""
        run = a_loop(MAKING, using=QUICK)

        loud = [
            text.get_text()
            for text in texts(timeline.figure(run))
            if text.get_color() == STALL_COLOUR or _ground(text) == to_rgba(STALL_COLOUR)
        ]

        shown = prepared(run).stalls["batch"].to_list()
        assert sorted(map(str, [*shown, *shown])) == sorted(loud)

    def test_names_what_else_the_loop_does(self):
        """A checkpoint is not a step, and has the user's name, in printable letters."""
        saved = {"forward": 20.0, "check\x1b$point$": 400.0}
        run = a_loop(MAKING, using=lambda step: {"forward": 20.0} if step % 5 else saved)

        assert "check\N{REPLACEMENT CHARACTER}$point$" in words(timeline.figure(run))

    def test_names_what_is_too_narrow_for_its_name(self):
        """Such a name is shown once, below the loop; a name with room is shown in its place."""
        saved = {"forward": 90.0, "write a checkpoint": 20.0}
        run = a_loop(MAKING, using=lambda step: saved if step % 3 else {"forward": 90.0})

        figure = timeline.figure(run)

        assert 1 == words(figure).count("write a checkpoint")
        assert "other" in words(figure)

    def test_the_caption_has_the_number_of_arrows(self):
        slow = {**MAKING, "RandomMask": 900.0}
        single = a_loop(lambda step, _: slow if step == 5 else MAKING, using={"forward": 60.0})

        captions = [" ".join(words(timeline.figure(run))) for run in (single, ODD_LOOPS["stalls"])]

        assert ["· arrow: the" in caption for caption in captions] == [True, False]
        assert ["· arrows: the" in caption for caption in captions] == [False, True]

    def test_shows_sixteen_workers_including_the_awaited_ones(self):
        run = ODD_LOOPS["many workers"]

        figure = timeline.figure(run)

        assert "not shown: 4 more workers" in figure.notes
        assert 17 == len(figure.axes[0].get_yticklabels())

    def test_marks_what_was_not_recorded(self):
        assert "not recorded" in words(timeline.figure(ODD_LOOPS["thinned"]))
        assert "not recorded" not in words(timeline.figure(ODD_LOOPS["stalls"]))


class TestExposed:
    def test_divides_the_stall_into_parts(self):
        """Each part begins where the one before it ends; the last one ends where the stall does."""
        run = a_loop(MAKING, using=QUICK)

        figure = loop.exposed_figure(run)

        bars = [patch.get_bbox() for patch in figure.axes[1].patches]
        steps = run.steps().height
        assert [0.0, *(bar.x1 for bar in bars)] == pytest.approx(
            [*(bar.x0 for bar in bars), run.stalls()["stall_s"].sum() / steps]
        )
        assert run.exposed()["part"].to_list() == [
            label.get_text() for label in figure.axes[1].get_yticklabels()
        ]

    def test_says_first_when_the_loop_hardly_waits(self):
        """A few stalls have parts and a pattern; neither is the answer."""
        run = ODD_LOOPS["hardly waits"]

        figures = [Run.plot(run, kind) for kind in KINDS]

        title = "The training loop hardly waits: it stalls 2% of the time"
        assert [title] * 3 == [figure.title for figure in figures]
        assert 2 == len(figures[KINDS.index("exposed")].axes)
        (pattern,) = run.patterns()["title"]
        assert any(pattern[:30] in note for note in loop.waits_figure(run).notes)

    def test_draws_what_is_unattributed_in_its_own_way(self):
        """Nothing is known of the deliveries: all of the stall is unattributed."""
        figure = loop.exposed_figure(ODD_LOOPS["only steps"])

        assert figure.title.endswith("100% of that is unattributed")
        assert [loop.UNATTRIBUTED["hatch"]] == [p.get_hatch() for p in figure.axes[1].patches]

    def test_is_one_bar_where_the_loop_never_waits(self):
        figure = loop.exposed_figure(ODD_LOOPS["no stall"])

        assert (
            "The training loop never stalls: the longest of 44 waits takes 100 µs" == figure.title
        )
        assert 1 == len(figure.axes)


class TestWaits:
    def test_draws_every_step_and_marks_the_stalls(self):
        """Steps of the warm-up are hollow, and counted beneath the title."""
        figure = loop.waits_figure(ODD_LOOPS["stalls"])

        dots = [line for line in figure.axes[-1].lines if line.get_marker() != "None"]
        assert list(range(48)) == sorted(step for line in dots for step in line.get_xdata())
        assert "hollow: 4 steps of start-up and warm-up, no stalls" in figure.notes[0]

    def test_has_a_line_for_each_pattern(self):
        """The first pattern is the title; each line has the explained share and a p-value."""
        run = a_loop(MAKING, using=QUICK, batches=200)

        figure = loop.waits_figure(run)

        assert figure.title == run.patterns()["title"][0]
        lines = [note for note in figure.notes if note[0] in MARKERS.values()]
        assert run.patterns().height == len(lines)
        assert "p-value below 0.001" in lines[0]

    def test_marks_the_steps_that_the_sentence_names(self):
        """Every 4th step is marked; the small waits of its round are explained, but not named."""
        of_round = [0.1, 0.003, 0.002, 0.0]
        run = a_run([], steps=steps_of(of_round * 30), workers=4)

        figure = loop.waits_figure(run)

        assert figure.title.startswith("Every 4th step waits 100 ms")
        (dots,) = [line for line in figure.axes[0].lines if line.get_marker() == "D"]
        assert list(range(0, 120, 4)) == list(dots.get_xdata())

    def test_uses_a_log_axis_beyond_a_decade_only(self):
        """Waits that span less stay on a linear axis."""
        even, uneven = (a_run([], steps=steps_of(of)) for of in ([0.1, 0.2], [0.001, 0.2]))

        scales = [loop.waits_figure(run).axes[-1].get_yscale() for run in (even, uneven)]

        assert ["linear", "log"] == scales

    def test_draws_a_wait_of_zero_at_zero(self):
        """A linear axis begins at zero; only a log axis needs a smallest value."""
        figure = loop.waits_figure(ODD_LOOPS["hardly waits"])

        heights = {height for line in figure.axes[-1].lines for height in line.get_ydata()}
        assert {0.0, 0.02} == heights

    def test_counts_the_patterns_that_are_not_shown(self):
        run = ODD_LOOPS["stalls"]
        crowded = replace(run)
        crowded.__dict__["_patterns"] = pl.concat([run.patterns().head(1)] * 6)

        assert "not shown: 2 more patterns" in loop.waits_figure(crowded).notes
