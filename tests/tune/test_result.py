"""Results of tuning: the recommended setting is the smallest of the fastest."""

import re
from dataclasses import replace

import polars as pl
import pytest
from support.build_tuning import (
    FOUR,
    HERE,
    NOW,
    PASSING,
    a_full_tuning,
    a_tuning,
)
from torch.utils.data import DataLoader

from stallscope.model.settings import Setting
from stallscope.verbs.tune.result import NoSuchSettingError, sentence

SIX, EIGHT = Setting(6, 2), Setting(8, 2)
STEADY = [200, 202, 198, 201, 199, 200]
NOISY = [150, 260, 190, 240, 140, 230]


def times(factor: float) -> list[float]:
    """Return blocks of a setting that is `factor` × as fast as the current one."""
    return [factor * each for each in STEADY]


def measured(blocks, **fields):
    """Return a tuning with these measured settings, the current one first."""
    now, *others = blocks
    return a_tuning(blocks, now=now, settings=tuple(others), **fields)


def best(tuning) -> Setting:
    return tuning.setting(tuning.best["trial"])


class TestBest:
    @pytest.mark.parametrize(
        ("blocks", "wanted"),
        [
            ({NOW: STEADY, FOUR: times(1.8)}, FOUR),
            ({NOW: STEADY, SIX: times(1.83), FOUR: times(1.8)}, FOUR),
            ({NOW: STEADY, FOUR: times(1.015)}, NOW),
            ({EIGHT: STEADY, NOW: NOISY}, EIGHT),
        ],
        ids=["a clear gain", "the smallest of those as fast", "less than 2%", "may be slower"],
    )
    def test_is_the_smallest_that_is_as_fast(self, blocks, wanted):
        assert wanted == best(measured(blocks))

    def test_fewer_workers_are_preferred_if_as_fast(self):
        """Two workers replace eight that are no faster."""
        tuning = measured({EIGHT: STEADY, NOW: times(1.0)})

        assert NOW == best(tuning)
        assert "num_workers=2 is as fast with 6 workers fewer (1.00×" in sentence(tuning)

    def test_another_order_is_never_recommended(self):
        tuning = measured({NOW: STEADY, PASSING: times(1.5)})

        assert 0 == tuning.best["trial"]
        assert "No setting is faster in the same order (in_order=False: 1.50×" in sentence(tuning)
        assert "not recommended, as the order of batches varies" in str(tuning)

    @pytest.mark.parametrize(
        ("blocks", "words"),
        [
            (
                STEADY,
                r"Keep the .*: no other is faster; the next best, num_workers=4, gives 1.00× \(",
            ),
            ([100, 420, 130, 390, 210, 180], r"Not settled: num_workers=4 gives .* budget_s to"),
        ],
    )
    def test_no_faster_setting_is_reported(self, blocks, words):
        tuning = measured({NOW: STEADY, FOUR: blocks})

        assert 0 == tuning.best["trial"]
        assert re.match(words, sentence(tuning))

    @pytest.mark.parametrize(
        ("per_s", "trial", "words"),
        [
            (None, 1, r"num_workers=4: 2\.0× the throughput \(predicted; not yet measured\)"),
            (232.0, 0, r"num_workers=4 may give 1\.16× the throughput .*predicted; raise budget_s"),
            (210.0, 0, r"Keep the current setting: no other setting is predicted to be faster"),
        ],
    )
    def test_a_prediction_alone_needs_a_clear_gain(self, per_s, trial, words):
        """Without a measurement, only a clear predicted gain is recommended."""
        tuning = a_tuning(settings=(FOUR,), predicted={FOUR: per_s} if per_s else None)

        assert trial == tuning.best["trial"]
        assert re.match(words, sentence(tuning))

    def test_an_uncertain_gain_is_still_reported(self):
        """A large predicted gain with a wide interval asks for a larger budget."""
        tuning = a_tuning(settings=(FOUR,))
        wide = pl.col("predicted_per_s") / 100, pl.col("predicted_per_s") * 100
        names = "predicted_low_per_s", "predicted_high_per_s"
        trials = tuning.trials.with_columns(**dict(zip(names, wide, strict=True)))

        words = r"num_workers=4 may give 2\.0× the throughput, predicted; raise budget_s"
        assert re.match(words, sentence(replace(tuning, trials=trials)))


class TestTable:
    def test_the_recommendation_comes_first(self):
        tuning = a_full_tuning().settings()

        assert ["recommended", "as it is"] == tuning["status"].to_list()[:2]
        assert ["as it is"] == a_tuning(settings=()).settings()["status"].to_list()
        assert tuning["gain"][0] == pytest.approx(1.9, rel=0.02)
        assert tuning["gain_low"][0] < tuning["gain"][0] < tuning["gain_high"][0]
        assert tuning["measured_per_s"][1] == pytest.approx(200, rel=0.01)


class TestUse:
    def test_code_is_the_line_to_write(self):
        assert "DataLoader(..., num_workers=4)" == a_full_tuning().code
        assert "" == measured({NOW: STEADY, HERE: times(0.5)}).code

    def test_apply_makes_a_new_loader(self):
        old, tuning = DataLoader(range(8), 2, num_workers=2), a_full_tuning()

        assert 4 == tuning.apply(old).num_workers
        assert 0 == tuning.apply(old, 2).num_workers
        assert 2 == old.num_workers

    def test_a_missing_trial_and_a_wrong_loader_are_refused(self):
        with pytest.raises(NoSuchSettingError, match="trial 99"):
            a_full_tuning().apply(DataLoader(range(8)), 99)
        with pytest.raises(NoSuchSettingError, match="list"):
            a_full_tuning().apply([1, 2])

    def test_predicted_and_measured_are_drawn(self):
        """Each measured setting is a row; without measurements, each predicted one is."""
        drawn = a_full_tuning().plot()

        assert 2 == len(drawn.parts[0].get_yticklabels())
        assert "predicted" in " ".join(drawn.notes)
        assert 3 == len(a_tuning().plot().parts[0].get_yticklabels())


class TestFit:
    @pytest.mark.parametrize(
        ("factor", "word"),
        [(2.0, "as predicted"), (1.0, "less than predicted"), (3.0, "more than predicted")],
    )
    def test_of_one_change_says_both_numbers(self, factor, word):
        tuning = measured({NOW: STEADY, FOUR: times(factor)})

        assert re.search(rf"Predicted 2\.00× \(.*\), measured {factor:.2f}×: {word}", str(tuning))
