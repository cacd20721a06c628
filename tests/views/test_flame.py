"""The views of a flamegraph: picture, table, panel and files agree, and hold only text."""

import json
import re

import polars as pl
import pytest
from support.build_flame import COLLATE, CROP, HOSTILE, JPEG, SITE, a_flame, many_stacks, named
from support.chart_texts import check_texts

from stallscope.verbs.flame.classify import COLOURS
from stallscope.verbs.flame.result import IN_PROCESS, SAMPLES, Flame
from stallscope.views.code import viewer_data
from stallscope.views.panels import image

AFTER = {JPEG: 0.5, CROP: 0.2, COLLATE: 0.3}
FLAMES = {
    "planted": a_flame(),
    "one worker": a_flame(workers=1, windows=1),
    "main process": a_flame(num_workers=0),
    "sampler": a_flame(how=IN_PROCESS, idle=True, native=True),
    "library": a_flame({f"load ({SITE}/PIL/ImageFile.py:300)": 1.0}),
    "many": many_stacks(600),
    "hostile": named("$x$ \x1b[31m\n" + HOSTILE),
    "empty": Flame(pl.DataFrame(schema=SAMPLES)),
}
DIFFERENCES = {
    "planted": a_flame(AFTER, seed=1).diff(a_flame()),
    "alike": a_flame(seed=1).diff(a_flame()),
    "empty": FLAMES["empty"].diff(FLAMES["planted"]),
    "hostile": FLAMES["hostile"].diff(a_flame()),
}
ALL = {**FLAMES, **{f"difference, {name}": flame for name, flame in DIFFERENCES.items()}}


@pytest.mark.parametrize("name", ALL)
def test_every_text_of_the_picture_has_a_place_of_its_own(name):
    check_texts(ALL[name].plot())


@pytest.mark.parametrize("name", ["planted", "hostile", "empty", "difference, planted"])
def test_the_answer_comes_first_everywhere(name):
    """The answer comes first in the picture, in a terminal, in a notebook and in the viewer."""
    result = ALL[name]
    title = result.plot().title

    assert str(result).startswith(title)
    assert "stallscope-flames" in result._repr_mimebundle_()["text/html"]
    assert title == result.panel().children[0].data["title"]


@pytest.mark.parametrize("name", ["hostile", "difference, hostile"])
def test_names_are_escaped_and_printable(name):
    result = ALL[name]
    fallback = image(result.panel().still)

    assert HOSTILE not in result._repr_mimebundle_()["text/html"]
    assert HOSTILE not in fallback
    assert "\x1b" not in str(result)
    assert "\x1b" not in fallback


def test_the_notes_say_what_was_sampled():
    text = str(FLAMES["sampler"])

    assert "500 stacks of 2 processes in 5 s, 50 per second by in-process sampler" in text
    assert "waiting included, native frames included" in text


def test_an_insignificant_change_is_marked():
    assert "no significant difference" in str(DIFFERENCES["alike"])
    assert "-42.8 points" in str(DIFFERENCES["planted"])


class TestData:
    def test_every_frame_has_a_colour(self):
        data = viewer_data(FLAMES["planted"])

        assert set(data["kind"]) <= set(COLOURS)
        assert ["your code", COLOURS["yours"]] in data["key"]

    def test_the_hits_are_all_there(self):
        """The hits of every recording are there, in groups of a worker and a stage."""
        data = viewer_data(FLAMES["planted"])

        assert 500 == sum(data["recordings"][0]["counts"])
        assert ["worker 0", "worker 1"] == data["workers"]
        assert "RandomMask" in data["stages"]
        assert 2 == len(viewer_data(DIFFERENCES["planted"])["recordings"])


class TestPanel:
    def test_has_something_for_every_place(self):
        bundle = FLAMES["planted"].panel()._repr_mimebundle_()

        shown = {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
        assert shown == set(bundle)

    def test_fetches_nothing(self):
        """The page has no address of another machine, except names of formats."""
        (viewer,) = FLAMES["planted"].panel().children
        text = viewer._esm + viewer._css

        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}


class TestExport:
    def test_speedscope_has_the_form_that_is_documented(self, tmp_path):
        """Each rule of speedscope's file-format-schema for sampled profiles holds."""
        path = FLAMES["planted"].export(tmp_path / "x.json")
        document = json.loads(path.read_text())

        assert "https://www.speedscope.app/file-format-schema.json" == document["$schema"]
        assert {"$schema", "shared", "profiles"} <= set(document)
        frames = document["shared"]["frames"]
        for frame in frames:
            assert set(frame) <= {"name", "file", "line", "col"}
            assert isinstance(frame["name"], str)
            assert isinstance(frame.get("line", 0), int)
        for profile in document["profiles"]:
            keys = ["type", "name", "unit", "startValue", "endValue", "samples", "weights"]
            assert sorted(keys) == sorted(profile)
            assert "sampled" == profile["type"]
            assert "none" == profile["unit"]
            assert len(profile["samples"]) == len(profile["weights"])
            assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
            assert all(0 <= frame < len(frames) for row in profile["samples"] for frame in row)
        assert [500] == [profile["endValue"] for profile in document["profiles"]]
        assert {"name": "dilate", "file": "/home/me/data.py", "line": 30} in frames

    @pytest.mark.parametrize("name", ["planted", "hostile", "empty", "difference, planted"])
    def test_a_page_forbids_itself_every_request(self, name, tmp_path):
        text = ALL[name].export(tmp_path / "x.html").read_text(encoding="utf-8")

        assert text.index("default-src 'none'") < text.index("<script")
        assert HOSTILE not in text
