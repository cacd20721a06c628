"""Verdicts about loops that were recorded before: nothing is run, nothing left open is hidden."""

import sys

import pytest
from support.build_ladder import a_ladder
from support.virtual_loop import a_loop, together

import stallscope as ss
from stallscope.errors import StallscopeError
from stallscope.verbs.ladder.result import AS_IT_IS


def slow(**how):
    """Workers that cannot keep up, for a transform alone."""
    return a_loop({"fetch": 2.0, "RandomMask": 150.0, "collate": 1.0}, **how)


def quick(**how):
    return a_loop({"fetch": 1.0, "RandomMask": 5.0, "collate": 1.0}, **how)


class TestARun:
    def test_is_judged_by_the_same_rules(self):
        """What leads is named with its cost, and what only a measurement tells is left open."""
        found = ss.diagnose(slow())

        assert "RandomMask" in found.verdict.title
        assert found.verdict.severity > 0.3
        assert 0.0 == found.circumstances.budget_s
        assert "left open by a recording" in str(found)

    def test_that_hardly_waits_is_healthy(self):
        """A training with a quick loader is told so."""
        assert "healthy" == ss.diagnose(quick()).verdict.code

    def test_what_a_script_computes_may_be_its_model(self):
        """Where only backward passes are seen, the rest of the step is no code beside the model."""
        using = {"step": 40.0, "backward": 40.0, "optimizer": 2.0}

        assert "healthy" == ss.diagnose(quick(using=using)).verdict.code

    def test_from_its_folder(self, tmp_path):
        """A saved run says the same, and its verdict can be saved in turn."""
        slow().save(tmp_path / "run")

        found = ss.diagnose(tmp_path / "run")

        assert ss.diagnose(slow()).findings == found.findings
        assert found.findings == ss.load(found.save(tmp_path / "verdict")).findings

    def test_has_its_own_step(self):
        """A step that is given with a run is a mistake, and said to be."""
        with pytest.raises(StallscopeError, match="own step"):
            ss.diagnose(slow(), print)

    def test_is_no_other_result(self, tmp_path):
        """The folder of a ladder is named as what it is."""
        a_ladder({AS_IT_IS: 0.4}).save(tmp_path / "ladder")

        with pytest.raises(StallscopeError, match=r"ss\.ladder"):
            ss.diagnose(str(tmp_path / "ladder"))


class TestRanks:
    def test_the_slow_one_leads(self, tmp_path):
        """The rank that waits is named, and how often it waits longest; also from its folders."""
        for rank, run in enumerate([quick(), slow(rank=1), quick(rank=2)]):
            run.save(tmp_path / f"rank{rank}")

        found = ss.diagnose(tmp_path)

        assert found.verdict.title.startswith("rank 1, which the others wait for: ")
        assert "RandomMask" in found.verdict.title
        assert found.notes[0].startswith("rank 1 stalls")
        assert found.notes[0].endswith("it waits longest in 100% of the steps in which one stalls")

    def test_of_many_some_are_read(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys.modules["stallscope.run.load"], "_MOST_RANKS", 4)
        for rank in range(9):
            quick(rank=rank).save(tmp_path / f"rank{rank}")

        run = ss.load(tmp_path)

        assert ["9 ranks, of which these are read:", "3 ranks"] == [
            note.partition(";")[0] for note in run.notes[:2]
        ]
        assert [0, 3, 6] == run.all_steps["rank"].unique().sort().to_list()

    def test_one_alone_names_the_others(self, tmp_path):
        """Whoever looks at a rank's own folder is told where all of them are judged."""
        for rank in range(2):
            slow(rank=rank).save(tmp_path / f"rank{rank}")

        assert f"stallscope diagnose {tmp_path}" in str(ss.diagnose(tmp_path / "rank1").notes)

    def test_alike_ones_are_one(self):
        """Where all wait alike, none of them is to blame."""
        found = ss.diagnose(together(slow(), slow(rank=1)))

        assert "RandomMask" in found.verdict.title
        assert "rank" not in found.verdict.title
