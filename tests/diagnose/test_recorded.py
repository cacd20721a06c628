"""Diagnoses of recorded loops: nothing is run, and open questions are listed."""

import sys

import pytest
from support.build_ladder import a_ladder
from support.virtual_loop import a_loop, together

import stallscope as ss
from stallscope.errors import StallscopeError
from stallscope.verbs.ladder.result import AS_IT_IS


def slow(**options):
    """Return a loop whose workers cannot keep up because of a transform."""
    return a_loop({"fetch": 2.0, "RandomMask": 150.0, "collate": 1.0}, **options)


def quick(**options):
    return a_loop({"fetch": 1.0, "RandomMask": 5.0, "collate": 1.0}, **options)


class TestARun:
    def test_is_judged_by_the_same_rules(self):
        diagnosis = ss.diagnose(slow())

        assert "RandomMask" in diagnosis.verdict.title
        assert diagnosis.verdict.severity > 0.3
        assert 0.0 == diagnosis.circumstances.budget_s
        assert "left open by a recording" in str(diagnosis)

    def test_that_hardly_waits_is_healthy(self):
        """A training with a quick loader has no cause to fix."""
        assert "healthy" == ss.diagnose(quick()).verdict.code

    def test_what_a_script_computes_may_be_its_model(self):
        """The rest of a step with backward passes is not blamed on code beside the model."""
        using = {"step": 40.0, "backward": 40.0, "optimizer": 2.0}

        assert "healthy" == ss.diagnose(quick(using=using)).verdict.code

    def test_from_its_folder(self, tmp_path):
        """A saved run has the same findings, and its diagnosis can be saved in turn."""
        slow().save(tmp_path / "run")

        diagnosis = ss.diagnose(tmp_path / "run")

        assert ss.diagnose(slow()).findings == diagnosis.findings
        assert diagnosis.findings == ss.load(diagnosis.save(tmp_path / "verdict")).findings

    def test_has_its_own_step(self):
        with pytest.raises(StallscopeError, match="own step"):
            ss.diagnose(slow(), print)

    def test_another_result_is_refused(self, tmp_path):
        """The error for a ladder's folder names `ss.ladder`."""
        a_ladder({AS_IT_IS: 0.4}).save(tmp_path / "ladder")

        with pytest.raises(StallscopeError, match=r"ss\.ladder"):
            ss.diagnose(str(tmp_path / "ladder"))


class TestRanks:
    def test_the_slow_one_leads(self, tmp_path):
        """The verdict names the rank that waits, a note how often it waits longest."""
        for rank, run in enumerate([quick(), slow(rank=1), quick(rank=2)]):
            run.save(tmp_path / f"rank{rank}")

        diagnosis = ss.diagnose(tmp_path)

        assert diagnosis.verdict.title.startswith("rank 1, which the others wait for: ")
        assert "RandomMask" in diagnosis.verdict.title
        assert diagnosis.notes[0].startswith("rank 1 stalls")
        assert diagnosis.notes[0].endswith(
            "the rank waits longest in 100% of the steps in which one stalls"
        )

    def test_few_of_many_ranks_are_read(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys.modules["stallscope.run.load"], "_MOST_RANKS", 4)
        for rank in range(9):
            quick(rank=rank).save(tmp_path / f"rank{rank}")

        run = ss.load(tmp_path)

        assert ["9 ranks, of which these are read:", "3 ranks"] == [
            note.partition(";")[0] for note in run.notes[:2]
        ]
        assert [0, 3, 6] == run.all_steps["rank"].unique().sort().to_list()

    def test_a_single_rank_points_to_all_ranks(self, tmp_path):
        """A note on a rank's folder has the command that diagnoses all ranks."""
        for rank in range(2):
            slow(rank=rank).save(tmp_path / f"rank{rank}")

        assert f"stallscope diagnose {tmp_path}" in str(ss.diagnose(tmp_path / "rank1").notes)

    def test_equal_ranks_are_not_named(self):
        diagnosis = ss.diagnose(together(slow(), slow(rank=1)))

        assert "RandomMask" in diagnosis.verdict.title
        assert "rank" not in diagnosis.verdict.title
