"""Fixes: predicted for each finding, and measured where the kit can apply them."""

import numpy as np
import polars as pl
import pytest
import torch
from support.planted_costs import waiting
from torch.utils.data import DataLoader, Dataset

import stallscope as ss
from stallscope.bench.comparison import FASTER
from stallscope.errors import StallscopeError
from stallscope.model.batch_times import LoaderCosts
from stallscope.model.settings import Setting
from stallscope.verbs.diagnose import causes
from stallscope.verbs.diagnose import diagnose as diagnose_module
from stallscope.verbs.diagnose.facts import Facts
from stallscope.verbs.diagnose.fixes import _fixes, _rows
from stallscope.verbs.diagnose.result import FIXES, Finding, first_to_try
from stallscope.verbs.diagnose.setup import Setup

STAGES = (("fetch", "fetch"), ("decode", "decode"), ("Blur", "transform"), ("collate", "collate"))
NOW = Setting(2, 2)


def fixes_of(*codes, spent=(0.01, 0.04, 0.03, 0.005), now=NOW, **options):
    """Return the fixes by name for findings with these codes."""
    wall_s = np.tile(spent, (60, 1))
    read = np.isin([name for name, _ in STAGES], ["fetch"])
    costs = LoaderCosts(
        STAGES,
        wall_s * ~read,
        wall_s * read,
        np.full(60, 8.0),
        np.full(60, 0.002),
        cores=4.0,
        workers=max(now.num_workers, 1),
        **options,
    )
    facts = Facts(Setup(num_workers=now.num_workers, cores=4.0, prefetch_factor=2))
    findings = tuple(Finding(code, code, 0.4) for code in codes)
    _, rows = _rows(costs, now, _fixes(costs, now, facts, findings, stream=False))
    return {row[0]: dict(zip(FIXES, row, strict=True)) for row in rows}


class TestPredicted:
    @pytest.mark.parametrize(
        ("code", "fix", "gain"),
        [
            (causes.DECODE.code, "decode 2× as fast", 85 / 65),
            (causes.TRANSFORMS.code, "transform 2× as fast", 85 / 70),
            (causes.ONE_TRANSFORM.code, "Blur 2× as fast", 85 / 70),
            (causes.COLLATE.code, "collate 2× as fast", 85 / 82.5),
            (causes.STORAGE_LATENCY.code, "reading from memory", 85 / 75),
        ],
    )
    def test_a_stage_that_is_faster_saves_its_part(self, code, fix, gain):
        """The gain is that part of a batch's time if the loop waits for nothing else."""
        row = fixes_of(code)[fix]

        assert row["predicted_gain"] == pytest.approx(gain, rel=0.03)
        assert (code, False) == (row["code"], row["measurable"])

    @pytest.mark.parametrize(
        ("code", "now", "fix"),
        [
            (causes.MAIN_PROCESS.code, Setting(0), "num_workers=3, prefetch_factor=2"),
            (causes.START_UP.code, NOW, "persistent_workers=True"),
            (causes.TOO_LITTLE_PREFETCH.code, NOW, "prefetch_factor=4"),
            (causes.SLOW_SAMPLES.code, NOW, "prefetch_factor=4"),
            (causes.OVERSUBSCRIPTION.code, NOW, "1 thread in each worker"),
        ],
    )
    def test_a_setting_is_what_the_finding_advises(self, code, now, fix):
        """Such a fix can be measured."""
        row = fixes_of(code, now=now)[fix]

        assert (code, True) == (row["code"], row["measurable"])

    def test_the_best_setting_is_among_them(self):
        """The fixes include the setting that `ss.tune` would look at first."""
        rows = fixes_of(causes.DECODE.code)

        (best,) = (row for name, row in rows.items() if name.startswith("num_workers="))
        assert best["predicted_gain"] > 1.5

    def test_a_healthy_loop_needs_no_fix(self):
        assert {} == fixes_of(causes.HEALTHY.code)


NOT_TRIED = (None, None, None, None)


class Slow(Dataset):
    def __init__(self, each_s: float = 0.004) -> None:
        self.each_s = each_s

    def __len__(self) -> int:
        return 2_000

    def __getitem__(self, index: int) -> torch.Tensor:
        waiting(self.each_s)
        return torch.full((8,), float(index))


@pytest.fixture(scope="module")
def diagnosis():
    """Diagnose a loop that waits for slow samples of one worker."""
    loader = DataLoader(Slow(), 4, num_workers=1)
    return ss.diagnose(loader, ss.simulated_step(0.002), budget_s=6)


@pytest.mark.slow
def test_a_verdict_measures_its_best_fix(monkeypatch, tmp_path):
    """The rest of the budget measures the best change, which the page names; saving keeps it."""
    monkeypatch.setattr(diagnose_module, "_PROOF_LEAST_S", 1.0)
    diagnosis = ss.diagnose(
        DataLoader(Slow(), 4, num_workers=1), ss.simulated_step(0.002), budget_s=30
    )

    tried = diagnosis.fixes.drop_nulls("gain").to_dicts()
    assert [FASTER] == [row["says"] for row in tried]
    assert diagnose_module.PROOF in diagnosis.spent["phase"].to_list()
    assert any(
        tried[0]["fix"] in step and "measured" in step
        for step in " ".join(str(diagnosis).split()).split("next: ")[1:3]
    )
    assert diagnosis.fixes.equals(ss.load(diagnosis.save(tmp_path / "found")).fixes)


@pytest.mark.slow
class TestMeasured:
    def test_settings_are_predicted_and_measured(self, diagnosis):
        trial = diagnosis.try_fix({"num_workers": 3}, budget_s=6)

        (row,) = (setting for setting in trial.settings().to_dicts() if setting["trial"])
        assert row["predicted_gain"] > 1.2
        assert row["starts"] > 0
        labels = [label.get_text() for label in diagnosis.plot("fixes").parts[0].get_yticklabels()]
        assert "num_workers=3" in labels
        assert "measured" in str(diagnosis)  # beside what was predicted

    def test_samples_in_memory_are_imitated(self, diagnosis):
        """The workers collate and send finished samples."""
        trial = diagnosis.try_fix("samples in memory", budget_s=6)

        (row,) = (setting for setting in trial.settings().to_dicts() if setting["trial"])
        assert row["setting"] == "samples in memory"
        assert "compute once, beforehand" in trial.notes[0]  # how to have some of that
        assert row["predicted_gain"] > 1.2
        assert row["starts"] > 0

    def test_what_cannot_be_measured_is_refused(self, diagnosis):
        with pytest.raises(StallscopeError, match="samples in memory"):
            diagnosis.try_fix("rewrite it all")


def test_the_surest_gain_is_tried_first():
    """A likely one comes next, samples in memory after settings, a fix of code not at all."""
    rows = [
        ("decode 2× as fast", "decode", 1.4, 1.2, 1.6, False, "", *NOT_TRIED),
        ("num_workers=3", "", 1.3, 1.1, 1.4, True, "", *NOT_TRIED),
        ("num_workers=1", "", 1.0, 0.9, 1.1, True, "", *NOT_TRIED),
    ]
    likely = ("num_workers=8", "", 6.5, 0.0, 9.0, True, "", *NOT_TRIED)
    memory = ("samples in memory", "", 4.0, 3.0, 5.0, True, "", *NOT_TRIED)
    small = ("num_workers=4", "", 1.1, 1.05, 1.2, True, "", *NOT_TRIED)
    tables = (rows, [likely, rows[1]], [memory, rows[1]], [memory, small])
    fixes, wide, stored, little = (pl.DataFrame(each, FIXES, orient="row") for each in tables)

    assert "num_workers=3" == first_to_try(fixes)
    assert first_to_try(fixes[2:]) is None
    assert "num_workers=3" == first_to_try(wide)
    assert "num_workers=8" == first_to_try(wide[:1])
    assert "num_workers=3" == first_to_try(stored)
    assert "samples in memory" == first_to_try(little)
