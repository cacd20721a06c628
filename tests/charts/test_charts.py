"""Pictures of a run: the title is the answer, and no text lies on another."""

import random
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import polars as pl
import pytest
from PIL import Image
from support.build_run import a_run
from support.chart_texts import check_texts, texts, words

from stallscope.charts import stages
from stallscope.charts.bars import Label, Strip, StripPiece, in_a_row
from stallscope.charts.sheet import DOTS, WIDTH, Sheet, text_width
from stallscope.charts.stages import LOADING, MOST_DOTS, naive, slowest, thinned
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
    """Return samples whose times scatter around those of the stages, equal in each call."""
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
            labels = texts(figure)

        assert 1.0 == figure.get_facecolor()[3]
        assert not [text.get_text() for text in labels if text.get_color() in ("w", "white")]

    def test_leaves_no_figure_open_in_pyplot(self):
        from matplotlib import pyplot as plt

        Run.plot(ODD_RUNS["main process"])

        assert [] == plt.get_fignums()


class TestStages:
    def test_puts_the_small_ones_together(self):
        run = a_run([{"decode": 97.0, "A": 0.9, "B": 0.9, "C": 0.9}] * 40)

        assert "3 more 3%" in words(stages.figure(run))

    def test_uses_a_log_axis_beyond_a_decade_only(self):
        """Times that span less stay on a linear axis."""
        narrow, wide = (a_run(varied({"A": 1.0, "B": ms})) for ms in (1.2, 90.0))

        scales = [stages.figure(run).axes[1].get_xscale() for run in (narrow, wide)]

        assert ["linear", "log"] == scales


class TestDots:
    def test_are_thinned_the_same_way_each_time(self):
        """A few hundred dots keep the extremes."""
        times = np.random.default_rng(0).random(5000)

        dots = thinned(times)

        assert (MOST_DOTS, times.min(), times.max()) == (dots.size, dots.min(), dots.max())
        assert np.array_equal(dots, thinned(times))


class TestSlowest:
    def test_shows_the_picture_and_size_of_a_file(self, tmp_path):
        """A picture, its name, pixels and bytes; a plain tile where there is no file."""
        image = tmp_path / "cat_$1$.jpg"
        Image.new("RGB", (40, 30), "red").save(image)
        samples = [{"decode": 1.0}] * 6 + [{"decode": 9.0}, {"decode": 8.0}]
        run = a_run(samples, paths=["/gone.jpg"] * 6 + [str(image), "/gone.jpg"], pixels=[(40, 30)])

        figure = stages.slowest_figure(run)

        captions = words(figure)
        assert "cat_$1$.jpg" in captions
        assert f"40 × 30 px · {image.stat().st_size} B" in captions
        assert (7, 1) == (captions.count("no file"), len(figure.axes[0].images))

    def test_opens_nothing_but_plain_images(self, tmp_path):
        """A file that is no image is named, and not read any further."""
        text = tmp_path / "x.eps"
        text.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
        run = a_run([{"decode": 1.0}] * 3 + [{"decode": 5.0}], paths=[str(text), str(tmp_path)])

        captions = words(stages.slowest_figure(run))

        assert (2, 2) == (captions.count("no picture"), captions.count("no file"))

    def test_says_when_no_sample_is_slow(self):
        assert "Even the slowest" in stages.slowest_figure(a_run([{"A": 1.0}] * 20)).title

    def test_blames_the_stage_that_took_more_than_usual(self):
        """The cause is the stage with the largest excess, not the longest stage."""
        usual = {"decode": 10.0, "fetch": 1.0}
        run = a_run([usual, usual, usual, {"decode": 10.5, "fetch": 8.0}])

        (row,) = slowest(run.samples(), run.unit_times).head(1).iter_rows(named=True)

        assert (3, "fetch") == (row["index"], row["cause"])
        assert abs(row["excess_s"] - 0.007) < 1e-9

    def test_ranks_have_samples_of_their_own(self):
        """The same place in the same batch of another rank is another sample."""
        slow = a_run([{"decode": 10.0, "fetch": 1.0}] * 7 + [{"decode": 10.0, "fetch": 8.0}])
        slower = a_run([{"decode": 10.0, "fetch": 1.0}] * 7 + [{"decode": 50.0, "fetch": 1.0}])
        rank = pl.lit(1, pl.Int16).alias("rank")
        samples = pl.concat([slow.samples(), slower.samples().with_columns(rank)])
        times = pl.concat([slow.unit_times, slower.unit_times.with_columns(rank)])

        top = slowest(samples, times).head(2)

        assert [(1, "decode"), (0, "fetch")] == top.select("rank", "cause").rows()

    def test_gives_the_slowest_first(self):
        run = a_run([{"A": float(ms)} for ms in (2, 9, 4, 7)])

        assert [1, 3, 2] == slowest(run.samples(), run.unit_times).head(3)["index"].to_list()


class TestLabels:
    def test_in_a_row_never_overlap(self):
        """Texts at random places, crowded ones among them, keep their order without overlap."""
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

    def test_of_the_longest_pieces_are_kept(self):
        """A bar without room for all names drops those of the shortest pieces."""
        lengths = [0.02] * 6 + [0.15, 0.13, 0.09] + [0.02] * 6 + [0.39]
        pieces = [
            StripPiece(letter * 24, length, "", "#888888")
            for letter, length in zip("abcdefghijklmnop", lengths, strict=True)
        ]
        (ax,) = Sheet("a title", heights=[1.0]).parts

        Strip(pieces, 9.0).fill(ax)

        named = {text.get_text()[0] for text in ax.texts if text.get_text()}
        assert {"g", "h", "i"} <= named
        assert len(named) < len(lengths) - 1


LAZY = [("getitem", 1.0), ("fetch", 1.0), ("Crop", 0.5), ("decode", 5.0), ("fetch", 1.0)]
LAZY += [("decode", 1.0), ("Crop", 0.5), ("Flip", 2.0)]


def blame(samples):
    table = naive(a_run(samples).work)
    return dict(table.select("blamed", "blamed_share").unique().iter_rows())


class TestNaive:
    def test_charges_the_transform_that_touches_the_pixels(self):
        assert {"Crop": 8 / 12, "Flip": 2 / 12, LOADING: 2 / 12} == pytest.approx(blame([LAZY] * 3))

    def test_moves_the_blame_with_the_order(self):
        swaps = {"Crop": "Flip", "Flip": "Crop"}
        swapped = [(swaps.get(name, name), ms) for name, ms in LAZY]

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
        assert naive(a_run([{"fetch": 1.0}], per_batch=True).work).is_empty()
