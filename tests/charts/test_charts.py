"""The pictures of a run: the answer on top, nothing on top of anything else."""

from __future__ import annotations

import random

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image
from support.build_run import a_run
from support.chart_texts import check_texts, texts

from stallscope.charts import samples as slowest
from stallscope.charts import stages
from stallscope.charts.sheet import DOTS, WIDTH
from stallscope.charts.stages import MOST_DOTS, thinned
from stallscope.run.result import Run
from stallscope.views.run import VIEW

USUAL = {"fetch": 0.4, "decode": 4.0, "Crop": 1.0, "Flip": 0.1, "ToTensor": 0.3, "Mask": 6.0}
HOSTILE = {
    "$x_1^{2$ costs $5": 1.0,
    "A_very_long.module_name.of_some_transform_that_nobody_would_write_in_one_line": 3.0,
    "Random\nCrop\x1b[31m": 0.5,
    "fetch": 0.2,
}


def varied(stages, number=80):
    """So many samples, each stage's time scattered around what is given; always the same ones."""
    chance = random.Random(0)
    return [
        {k: v * chance.lognormvariate(0, 0.3) for k, v in stages.items()} for _ in range(number)
    ]


ODD_RUNS = {
    "empty": a_run([]),
    "one sample": a_run([{"decode": 3.0}]),
    "thirty stages": a_run(varied({f"Op{i}": 1 + i / 20 for i in range(30)}), collate_ms=3.0),
    "main process": a_run(varied(USUAL), workers=0, collate_ms=3.0, rest_ms=9.0, warmup=2),
    "hostile names": a_run(varied(HOSTILE), workers=2, collate_ms=0.5, paths=["/a/$x_1$.jpg"]),
    "by batch": a_run(varied({"fetch": 30.0, "decode": 8.0}), per_batch=True, collate_ms=3.0),
}


class TestEveryPicture:
    @pytest.mark.parametrize("kind", ["stages", "naive", "slowest"])
    @pytest.mark.parametrize("name", ODD_RUNS)
    def test_draws_odd_runs_within_its_sheet(self, name, kind):
        """There is a picture with a title; no text leaves it, and none lies on another."""
        figure = Run.plot(ODD_RUNS[name], kind)

        assert figure.title
        check_texts(figure)

    def test_is_as_wide_as_a_notebook(self):
        """Pictures have one width, so they line up beneath each other."""
        run = ODD_RUNS["main process"]
        assert {WIDTH} == {run.plot(kind).get_figwidth() for kind in VIEW.pictures}

    def test_shows_itself_with_its_answer_as_text(self):
        """A notebook gets a sharp picture; a reader without pictures gets the sentences."""
        figure = Run.plot(ODD_RUNS["main process"])

        data, about = figure._repr_mimebundle_()

        assert data["text/plain"].startswith(figure.title)
        assert int(WIDTH * DOTS) == about["image/png"]["width"]

    def test_is_opaque_and_dark_on_white_under_a_dark_style(self):
        """The user's own dark style does not make the text white on white."""
        with mpl.rc_context({"text.color": "w", "axes.labelcolor": "w", "xtick.color": "w"}):
            figure = Run.plot(ODD_RUNS["main process"])
            found = texts(figure)

        assert 1.0 == figure.get_facecolor()[3]
        assert not [text.get_text() for text in found if text.get_color() in ("w", "white")]

    def test_leaves_no_figure_open_in_pyplot(self):
        """Nothing is left in the user's list of open figures."""
        from matplotlib import pyplot as plt

        Run.plot(ODD_RUNS["main process"])

        assert [] == plt.get_fignums()


class TestStages:
    def test_puts_the_small_ones_together(self):
        """What is too small for the bar is one piece with a number."""
        run = a_run([{"decode": 90.0, "A": 1.0, "B": 1.0, "C": 1.0}] * 40)

        assert "3 more 3%" in [text.get_text() for text in texts(stages.figure(run))]

    def test_uses_a_log_axis_beyond_a_decade_only(self):
        """Times that span less stay on a linear axis."""
        narrow, wide = (a_run(varied({"A": 1.0, "B": ms})) for ms in (1.2, 90.0))

        scales = [stages.figure(run).axes[1].get_xscale() for run in (narrow, wide)]

        assert ["linear", "log"] == scales


class TestDots:
    def test_are_thinned_the_same_way_each_time(self):
        """A few hundred dots keep the extremes."""
        times = np.random.default_rng(0).random(5000)

        kept = thinned(times)

        assert (MOST_DOTS, times.min(), times.max()) == (kept.size, kept.min(), kept.max())
        assert np.array_equal(kept, thinned(times))


class TestSlowest:
    def test_shows_what_there_is_of_a_file(self, tmp_path):
        """A picture, its name, pixels and bytes; a plain tile where there is no file."""
        image = tmp_path / "cat_$1$.jpg"
        Image.new("RGB", (40, 30), "red").save(image)
        samples = [{"decode": 1.0}] * 6 + [{"decode": 9.0}, {"decode": 8.0}]
        run = a_run(samples, paths=["/gone.jpg"] * 6 + [str(image), "/gone.jpg"], pixels=[(40, 30)])

        figure = slowest.figure(run)

        found = [text.get_text() for text in texts(figure)]
        assert "cat_$1$.jpg" in found
        assert f"40 × 30 px · {image.stat().st_size} B" in found
        assert (7, 1) == (found.count("no file"), len(figure.axes[0].images))

    def test_opens_nothing_but_plain_images(self, tmp_path):
        """A file that is no image is named, and not read any further."""
        text = tmp_path / "x.eps"
        text.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
        run = a_run([{"decode": 1.0}] * 3 + [{"decode": 5.0}], paths=[str(text), str(tmp_path)])

        found = [text.get_text() for text in texts(slowest.figure(run))]

        assert (2, 2) == (found.count("no picture"), found.count("no file"))

    def test_says_when_no_sample_is_slow(self):
        """Even times have no culprit."""
        assert "Even the slowest" in slowest.figure(a_run([{"A": 1.0}] * 20)).title
