"""Sampled stacks: kinds of frames, merging and shares of functions."""

import polars as pl
import pytest
from support.build_flame import COLLATE, CONV, CROP, DILATE, FEED, JPEG, LOOP, SITE, a_flame

from stallscope.verbs.flame.classify import (
    TABLE,
    YOURS,
    StackFunction,
    frame,
    frames,
    kind,
    kind_shares,
    table,
    tree,
)
from stallscope.verbs.flame.result import CHANGES, SAMPLES, Flame, sentence

PYTHON = "/usr/lib/python3.12"
KINDS = {
    "__getitem__ (/home/me/data.py:3)": YOURS,
    "__getitem__ (data.py:3)": YOURS,
    r"__getitem__ (C:\Users\me\data.py:3)": YOURS,
    "<module> (/tmp/ipykernel_12/345.py:1)": YOURS,
    "dilate (/x/stallscope/src/stallscope/demo.py:50)": YOURS,
    "dilate (stallscope/demo.py:50)": YOURS,
    "run (/x/src/stallscope/hooks/hot_path.py:50)": "other",
    f"load ({SITE}/PIL/ImageFile.py:300)": "decode",
    "load (PIL/ImageFile.py:300)": "decode",
    f"open ({SITE}/PIL/Image.py:3500)": "io",
    f"resize ({SITE}/PIL/Image.py:2000)": "transform",
    f"forward ({SITE}/torchvision/transforms/v2/_geometry.py:100)": "transform",
    r"forward (C:\env\Lib\site-packages\torchvision\transforms\v2\_geometry.py:100)": "transform",
    f"decode_jpeg ({SITE}/torchvision/io/image.py:150)": "decode",
    f"default_collate ({SITE}/torch/utils/data/_utils/collate.py:398)": "collate",
    f"_feed ({PYTHON}/multiprocessing/queues.py:266)": "collate",
    f"get ({PYTHON}/multiprocessing/queues.py:113)": "idle",
    f"poll ({PYTHON}/multiprocessing/connection.py:257)": "idle",
    f"wait ({PYTHON}/threading.py:355)": "idle",
    "_wait_for_tstate_lock (threading.py:1100)": "idle",
    f"conv2d ({SITE}/torch/nn/functional.py:50)": "torch",
    "at::native::conv2d (libtorch_cpu.so)": "torch",
    "jpeg_read_scanlines (libjpeg.so.62)": "decode",
    f"copyfileobj ({PYTHON}/shutil.py:200)": "io",
    f"mean ({SITE}/numpy/core/_methods.py:100)": "other",
    "import_module (<frozen importlib._bootstrap>:100)": "other",
    "no file at all": "other",
    "__getitem__ (braindecode/datasets/base.py:3)": "other",
    "helper (site-packages/six.py:3)": "other",
    "take (pandas/_libs/algos.pyx:3)": "other",
    "take (/tmp/build/algos.pyx:3)": "other",
}


@pytest.mark.parametrize(("text", "expected"), KINDS.items())
def test_a_frame_has_its_kind(text, expected):
    """The kind follows from file and function, wherever Python is installed."""
    assert expected == kind(frame(text))


def test_lines_and_the_code_that_started_the_workers_are_no_difference():
    """One function is one frame; a forked worker's stack begins with its own work."""
    assert frame("f (a.py:1)") == frame("f (a.py:20)") == StackFunction("f", "a.py")
    assert "fetch" == frames(CONV)[0].function
    assert "_feed" == frames(FEED)[0].function
    assert "f" == frames("f (a.py:1)")[0].function


def test_files_are_shown_from_their_package_on():
    """No path of a machine is shown; in an own file, its last folder."""
    assert "torch/nn/functional.py" == frame(f"conv2d ({SITE}/torch/nn/functional.py:50)").place
    assert "me/data.py" == frame("f (/home/me/data.py:3)").place


class TestTree:
    def test_merges_equal_beginnings(self):
        merged = tree(a_flame().samples)

        (totals,) = merged.totals()
        hits = {
            getattr(merged.names[name], "function", "all"): int(total)
            for name, total in zip(merged.name, totals, strict=True)
        }
        assert 500 == hits["all"]
        assert hits["fetch"] == hits["__getitem__"]
        assert 500 == hits["fetch"] + hits["default_collate"] + hits["_feed"]
        assert hits["conv2d"] < hits["dilate"] < hits["fetch"]

    def test_keeps_workers_and_stages_apart(self):
        flame = a_flame(workers=3)
        merged = tree(flame.samples)

        (hits,) = merged.recordings
        for worker in range(3):
            assert 250 == sum(
                number for (_, group), number in hits.items() if merged.groups[group][0] == worker
            )

    def test_a_stage_gives_the_kind_that_a_name_does_not(self):
        """A library's frame that is in one stage only has that stage's kind."""
        stack = f"{LOOP}fetch (data.py:1);read ({SITE}/unknown/core.py:1)"
        merged = tree(a_flame({stack: 1.0}, stages={stack: "decode"}).samples)

        assert ["decode"] == merged.kinds()[-1:]

    def test_no_stack_is_a_root(self):
        assert 1 == len(tree(pl.DataFrame(schema=SAMPLES)).name)


class TestTable:
    def test_has_the_columns_it_promises(self):
        assert TABLE == dict(table(a_flame().samples).schema)
        assert TABLE == dict(table(a_flame({JPEG.replace("/home/me", SITE): 1.0}).samples).schema)
        assert TABLE == dict(table(pl.DataFrame(schema=SAMPLES)).schema)

    def test_lists_the_users_functions_only(self):
        """Torch's work counts as the function's own time; a decoder's does not."""
        rows = {row["function"]: row for row in table(a_flame().samples).iter_rows(named=True)}

        assert {"__getitem__", "dilate", "crop"} == set(rows)
        assert abs(rows["dilate"]["self_share"] - 0.41) < 0.05
        assert 0 == rows["__getitem__"]["self_share"] == rows["crop"]["self_share"]
        assert abs(rows["__getitem__"]["total_share"] - 0.80) < 0.05

    @pytest.mark.slow
    @pytest.mark.parametrize("windows", [1, 3, 10])
    def test_intervals_hold_the_truth_19_times_in_20(self, windows):
        """At least 92% of 200 intervals hold the known share, with few windows and with many."""
        held = []
        for seed in range(200):
            rows = table(a_flame(seed=seed, windows=windows, per_window=50).samples).filter(
                pl.col("function") == "dilate"
            )
            held.append(rows["self_share_low"][0] <= 0.41 <= rows["self_share_high"][0])
        assert 0.92 <= sum(held) / len(held)


class TestDiff:
    def test_shows_what_went_and_what_grew(self):
        """Each change has an interval and a significance, in the documented columns."""
        after = a_flame({JPEG: 0.5, CROP: 0.3, COLLATE: 0.2}, seed=1)
        changes = after.diff(a_flame()).table()

        assert CHANGES == dict(changes.schema)
        gone = changes.row(0, named=True)
        assert ("dilate", 0.0, True) == (
            gone["function"],
            gone["after_share"],
            gone["distinguishable"],
        )
        assert gone["change_low"] <= gone["change"] <= gone["change_high"] < 0
        assert (changes.filter(pl.col("function") != "dilate")["change"] == 0).all()


class TestSentence:
    def test_names_the_function_that_takes_most(self):
        assert "`dilate` (yours) takes 43% of the workers' time" == sentence(a_flame())
        assert sentence(a_flame({DILATE: 0.2, JPEG: 0.8})).endswith("time; decode: 80%")

    def test_says_when_it_is_none_of_the_users(self):
        stack = f"{LOOP}load ({SITE}/PIL/ImageFile.py:300)"

        assert sentence(a_flame({stack: 1.0})).startswith("Decode: 100% of the workers' time")

    def test_says_when_there_is_nothing(self):
        assert "No stack" in sentence(Flame(pl.DataFrame(schema=SAMPLES)))


def test_kinds_add_up():
    shares = kind_shares(a_flame().samples)

    assert pytest.approx(1.0) == sum(shares.values())
    assert {"decode", "transform", "collate", YOURS} == set(shares)
