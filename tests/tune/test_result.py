"""Which setting is recommended: the smallest that is as fast as the fastest, if any."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.build_tuning import (
    BROKEN,
    FOUR,
    HERE,
    HUGE,
    NOW,
    PASSING,
    PICKLE,
    a_full_tuning,
    a_tuning,
)
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.model.settings import Setting
from stallscope.tune.result import SETTINGS, NoSuchSettingError, sentence

SIX = Setting(6, 2)
EIGHT = Setting(8, 2)
STEADY = [200, 202, 198, 201, 199, 200]


def times(factor: float) -> list[float]:
    """Starts of a setting that gives so many times as much as the one as it is."""
    return [factor * one for one in STEADY]


def best(measured, **more) -> Setting:
    tuning = a_tuning(measured, settings=tuple(one for one in measured if one != NOW), **more)
    return tuning.setting(tuning.best["trial"])


class TestBest:
    """What is recommended."""

    def test_a_clear_gain_is(self):
        """Its lower end is above what is worth a change."""
        assert FOUR == best({NOW: STEADY, FOUR: times(1.8)})

    def test_of_those_as_fast_the_smallest_is(self):
        """Six workers for 2% more than four are not worth it."""
        assert FOUR == best({NOW: STEADY, SIX: times(1.83), FOUR: times(1.8)})

    def test_a_gain_of_less_than_two_per_cent_is_none(self):
        """It is left as it is."""
        assert NOW == best({NOW: STEADY, FOUR: times(1.015)})

    def test_fewer_workers_that_are_as_fast_are(self):
        """Eight on two cores: two are as fast."""
        found = a_tuning({EIGHT: STEADY, NOW: times(1.0)}, now=EIGHT, settings=(NOW,))

        assert NOW == found.setting(found.best["trial"])
        assert "is as fast" in sentence(found)
        assert "6 workers fewer" in sentence(found)

    def test_fewer_workers_that_may_be_slower_are_not(self):
        """What is not known to be as fast is not recommended for its size."""
        noisy = [150, 260, 190, 240, 140, 230]

        assert EIGHT == best({EIGHT: STEADY, NOW: noisy}, now=EIGHT)

    def test_one_that_comes_in_another_order_never_is(self):
        """It is named, with what it gives."""
        found = a_tuning({NOW: STEADY, PASSING: times(1.5)}, settings=(PASSING,))

        assert 0 == found.best["trial"]
        assert "another order" in str(found)

    def test_noise_that_is_larger_than_the_differences_is_said(self):
        """Nothing is distinguished on a shared machine."""
        found = a_tuning({NOW: STEADY, FOUR: [100, 420, 130, 390, 210, 180]}, settings=(FOUR,))

        assert 0 == found.best["trial"]
        assert sentence(found).startswith("Not settled")

    def test_a_prediction_alone_has_to_promise_enough(self):
        """Where the time did not suffice to measure anything."""
        found = a_tuning(settings=(FOUR,))
        assert FOUR == found.setting(found.best["trial"])
        assert "predicted, not measured" in sentence(found)
        assert 0 == a_tuning(settings=(FOUR,), predicted={FOUR: 210.0}).best["trial"]

    @pytest.mark.parametrize(
        ("per_s", "said"), [(232.0, "may give 1.2× as many samples"), (210.0, "should be faster")]
    )
    def test_what_is_predicted_too_widely_is_no_reason_to_leave_it(self, per_s, said):
        """A gain that may be none: measure it; none at all: leave it."""
        found = a_tuning(settings=(FOUR,), predicted={FOUR: per_s})

        assert 0 == found.best["trial"]
        assert said in sentence(found)
        assert ("Leave it" in sentence(found)) == (per_s < 220)

    def test_what_fails_has_its_reason(self):
        """A row of its own, with what was raised."""
        row = {row["setting"]: row for row in a_full_tuning().settings().to_dicts()}
        broken = row[NOW.text(BROKEN)]

        assert ("fails", PICKLE) == (broken["status"], broken["reason"])
        assert "not tried" == row[NOW.text(HUGE)]["status"]
        assert "allowed" in row[NOW.text(HUGE)]["reason"]


class TestTable:
    """Rows of settings."""

    def test_has_its_columns(self):
        """Also of nothing but the loader as it is."""
        found = a_tuning(settings=()).settings()

        assert list(SETTINGS.items()) == list(found.schema.items())
        assert ["as it is"] == found["status"].to_list()

    def test_the_answer_stands_first(self):
        """Then the loader as it is."""
        found = a_full_tuning().settings()

        assert ["recommended", "as it is"] == found["status"].to_list()[:2]
        assert found["gain"][0] == pytest.approx(1.9, rel=0.02)
        assert found["gain_low"][0] < found["gain"][0] < found["gain_high"][0]
        assert found["measured_per_s"][1] == pytest.approx(200, rel=0.01)


class TestUse:
    """Code, a loader, a folder."""

    def test_code_is_the_line_to_write(self):
        """Nothing where nothing is to be changed."""
        assert "DataLoader(..., num_workers=4)" == a_full_tuning().code
        assert "" == a_tuning({NOW: STEADY, HERE: times(0.5)}, settings=(HERE,)).code

    def test_apply_makes_a_new_loader(self):
        """With the best setting, or with any other trial's."""
        old, tuning = DataLoader(range(8), 2, num_workers=2), a_full_tuning()

        assert 4 == tuning.apply(old).num_workers
        assert 0 == tuning.apply(old, 2).num_workers
        assert 2 == old.num_workers

    def test_what_is_not_there_is_said(self):
        """In one sentence."""
        with pytest.raises(NoSuchSettingError, match="trial 99"):
            a_full_tuning().apply(DataLoader(range(8)), 99)
        with pytest.raises(NoSuchSettingError, match="list"):
            a_full_tuning().apply([1, 2])

    def test_what_was_saved_says_the_same(self, tmp_path):
        """Text, table and code; without its run, too."""
        tuning = a_full_tuning()

        again = ss.load(tuning.save(tmp_path / "tuning"))

        assert str(again) == str(tuning)
        assert again.settings().equals(tuning.settings())
        assert again.code == tuning.code

    def test_nothing_of_the_users_is_in_a_redacted_one(self):
        """What an exception said is anybody's text; settings stay."""
        raised = "in its loader: ValueError: /home/alice/secret.csv"
        told = str(a_tuning({NOW: STEADY}, settings=(FOUR,), failed={FOUR: raised}).redacted())

        assert "alice" not in told
        assert "num_workers=4" in told

    def test_predicted_and_measured_are_drawn(self):
        """A row for each measured setting; without any, those that were predicted."""
        drawn = a_full_tuning().plot()
        axes = drawn.parts[0]

        assert 2 == len(axes.get_yticklabels())
        assert "predicted" in " ".join(drawn.notes)
        assert 3 == len(a_tuning().plot().parts[0].get_yticklabels())
        assert replace(a_full_tuning(), notes=("another",)).plot("predicted").title == drawn.title


class TestKept:
    """Whether one change that was tried gives what was predicted."""

    @pytest.mark.parametrize(
        ("factor", "told"),
        [(2.0, "as predicted"), (1.0, "less than predicted"), (3.0, "more than predicted")],
    )
    def test_is_said(self, factor, told):
        """With both numbers."""
        found = a_tuning({NOW: STEADY, FOUR: times(factor)}, settings=(FOUR,))

        assert re.search(rf"Predicted 2\.00× \(.*\), measured {factor:.2f}×: {told}", str(found))

    def test_of_several_the_rates_are(self):
        """How far off they are."""
        found = a_tuning({NOW: STEADY, FOUR: STEADY, SIX: STEADY}, settings=(FOUR, SIX))

        assert "Predicted rates are" in str(found)
