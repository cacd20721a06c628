"""Comparisons of runs: real changes are found, and no others are claimed."""

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from support.build_ladder import a_ladder
from support.build_run import resources_of
from support.virtual_loop import a_loop

import stallscope as ss
from stallscope.errors import StallscopeError
from stallscope.run.result import DEVICE
from stallscope.stages import CORE, LOOP
from stallscope.verbs.ladder.result import AS_IT_IS


def a_run(mask_ms=40.0, seed=0, fetch_ms=4.0, **options):
    """Return a loop whose workers cannot keep up; its samples vary as real ones do."""
    noise = np.random.default_rng(seed).lognormal(0.0, 0.2, 500)

    def making(step, _):
        return {"fetch": fetch_ms, "RandomMask": mask_ms * noise[step], "collate": 1.0}

    usual = {"workers": 2, "batches": 120, "using": {"forward": 10.0}}
    return a_loop(making, **usual | options)


def beside_others(run):
    """Return the run with other processes on nearly all of both cores."""
    others = {(CORE, "0"): 1.0, (CORE, "1"): 1.0, (LOOP, "100"): 0.1}
    return replace(run, all_resources=resources_of(others, 30))


class TestWhatChanged:
    def test_a_slower_transform(self):
        comparison = ss.compare(a_run(40.0), a_run(80.0, seed=1))

        speed = comparison.of("samples_per_s")
        assert -0.55 < speed["change"] / speed["before"]
        changed = comparison.table().filter("distinguishable")["measure"].to_list()
        assert {"samples_per_s", "loop_s", "stall_s", "workers/RandomMask_s"} <= set(changed)
        assert "forward_s" not in changed
        assert "workers/fetch_s" not in changed
        assert re.match(r"after is 0\.[45]\d× as fast as before \(", str(comparison))

    def test_a_repeated_run_has_no_change(self):
        """The same program twice: no number is equal, yet no difference is claimed."""
        comparison = ss.compare(a_run(), a_run(seed=1))

        assert not comparison.table()["distinguishable"].any()
        assert str(comparison).startswith("after is about as fast as before: ")

    def test_too_few_steps_give_no_answer(self):
        """Eight steps of a run at half the speed are too few for a claim."""
        comparison = ss.compare(a_run(40.0), a_run(80.0, seed=1, batches=8))

        assert str(comparison).startswith(
            "Too few steps to tell whether after is faster than before;"
        )

    @pytest.mark.parametrize(
        ("before_ms", "after_ms", "is_claimed"), [(3.0, 5.0, True), (0.4, 0.8, False)]
    )
    def test_a_small_stage(self, before_ms, after_ms, is_claimed):
        """Two thirds more of a fourteenth of the work are claimed; a doubled hundredth is not."""
        fetches = [a_run(fetch_ms=before_ms), a_run(fetch_ms=after_ms, seed=1)]

        assert is_claimed == ss.compare(*fetches).of("workers/fetch_s")["distinguishable"]

    def test_a_slower_step(self):
        comparison = ss.compare(a_run(5.0), a_run(5.0, 1, using={"forward": 30.0}))

        assert comparison.of("forward_s")["distinguishable"]
        assert not comparison.of("stall_share")["distinguishable"]
        assert not comparison.of("workers/RandomMask_s")["distinguishable"]


class TestWhatElseDiffers:
    def test_settings_and_versions_are_named(self):
        later = replace(a_run(), machine={"torch": "3.0"})
        later = replace(later, settings=replace(later.settings, prefetch_factor=4))

        differences = ss.compare(a_run(), later).differs

        assert ("prefetch factor: None → 4", "torch: None → 3.0") == differences

    def test_the_device_is_named_once(self):
        """The loop's device counts, whatever other devices the machine has."""
        before = replace(a_run(), machine={"device": "A GPU"})
        work = pl.DataFrame([{"device": "another GPU"}], {**DEVICE})
        later = replace(before, machine={"device": "another GPU"}, device_work=work)

        assert ("device: CPU → another GPU",) == ss.compare(before, later).differs

    def test_a_change_on_a_busier_machine_is_not_claimed(self):
        comparison = ss.compare(a_run(), beside_others(a_run(60.0, seed=1)))

        assert not comparison.of("samples_per_s")["distinguishable"]
        assert "other processes or the machine may explain: record both again" in str(comparison)
        assert any("other processes used cores" in note for note in comparison.notes)


class TestLimits:
    def test_are_exceeded_by_real_changes_alone(self):
        """Limits are an absolute change, one in percent, or a value; noise exceeds none."""
        comparison = ss.compare(a_run(40.0), a_run(80.0, seed=1))

        for limit in ("samples_per_s < -10%", "stall_share > 0.3", "loop_s > +0.001"):
            assert comparison.exceeds(limit), limit
        assert not comparison.exceeds("samples_per_s < -90%")
        assert not ss.compare(a_run(), a_run(seed=1)).exceeds("samples_per_s < -0%")

    @pytest.mark.parametrize("limit", ["stall_share", "speed > 3", "loop_s >> 1", "> 3", ""])
    def test_that_cannot_be_parsed_are_refused(self, limit):
        with pytest.raises(StallscopeError, match=r"write it as|there are samples_per_s"):
            ss.compare(a_run(), a_run()).exceeds(limit)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (lambda _: a_ladder({AS_IT_IS: 0.4}), "a Ladder is no recorded run"),
        (lambda folder: folder / "nowhere", "nowhere"),
        (lambda _: replace(a_run(), all_steps=a_run().all_steps.clear()), "no step"),
    ],
    ids=["another result", "no folder", "no loop"],
)
def test_bad_input_is_named(after, message, tmp_path):
    with pytest.raises(StallscopeError, match=message):
        ss.compare(a_run(), after(tmp_path))


def test_the_picture():
    """Both bars on one scale, and a row for each change with its interval."""
    sheet = ss.compare(a_run(40.0), a_run(80.0, seed=1)).plot()

    texts = {text.get_text() for ax in sheet.axes for text in (*ax.texts, *ax.get_yticklabels())}
    assert {"stall", "workers: RandomMask", "loop"} <= texts
    assert "0.55× as fast" in sheet.title


def test_a_change_that_the_machine_may_explain_is_not_claimed():
    """The interval excludes zero, but other processes may explain a change of this size."""
    comparison = ss.compare(beside_others(a_run(40.0)), a_run(48.0, seed=1))
    row = comparison.of("loop_s")

    assert not row["distinguishable"]
    assert 0 < row["change_low"]
    assert "may be the machine's" in str(comparison)
