"""The story that notebooks share: one run, and the measured changes."""

import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import stallscope as ss
from stallscope.lab.story import Story


class Slow(Dataset):
    """Samples that take `each_s` seconds."""

    def __init__(self, each_s):
        self.each_s = each_s

    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(self.each_s)
        return torch.tensor(index)


def loader(each_s):
    return DataLoader(Slow(each_s), batch_size=4, num_workers=1, generator=torch.Generator())


@pytest.fixture
def target():
    return ss.target(loader(0.02), step=ss.simulated_step(0.001, runs_behind=True))


def test_the_run_is_recorded_once(target, tmp_path):
    """A second notebook shows the same run, unless it asks for a fresh one."""
    first = Story.open(target, tmp_path).run(budget_s=2)
    again = Story.open(target, tmp_path).run(budget_s=2)
    fresh = Story.open(target, tmp_path).run(budget_s=1, fresh=True)

    assert first.stages().equals(again.stages())
    assert not first.steps().equals(fresh.steps())


def test_another_target_has_a_story_of_its_own(target, tmp_path):
    Story.open(target, tmp_path).run(budget_s=1)
    slow_target = ss.target(loader(0.001), step=ss.simulated_step(0.5, runs_behind=True))

    run = Story.open(slow_target, tmp_path).run(budget_s=2)

    assert 0.5 == run.settings.simulated_step_s


@pytest.mark.skipif(sys.platform != "linux", reason="workers are stopped on Linux")
def test_a_change_is_measured_and_kept(target, tmp_path):
    """A change is measured in turn with the current loader and leaves its generator unchanged."""
    changed = loader(0.001)
    state = changed.generator.get_state()
    story = Story.open(target, tmp_path)
    assert "Nothing was changed yet" in str(story)

    story.try_change("no wait", changed, budget_s=4)
    story.try_change("no wait", changed, budget_s=4)

    row = Story.open(target, tmp_path).table().to_dicts()
    assert ["no wait"] == [entry["change"] for entry in row]
    assert "faster" == row[0]["says"]
    assert row[0]["gain_low"] > 2
    assert row[0]["busy_share"] > row[0]["busy_before_share"]
    assert torch.equal(state, changed.generator.get_state())
    assert "Best change so far: no wait" in str(story)


def test_a_slower_change_is_not_called_the_best(target, tmp_path):
    """The headline names only a significantly faster change."""
    story = Story.open(target, tmp_path)
    row = {"change": "x", "gain_factor": 0.5, "gain_low": 0.4, "gain_high": 0.6, "says": "slower"}
    story._keep(row)
    assert "No change is significantly faster" in str(story)

    story._keep({**row, "change": "y", "gain_factor": 2.0, "says": "faster"})
    assert "Best change so far: y" in str(story)


def test_a_damaged_run_is_recorded_anew(target, tmp_path):
    story = Story.open(target, tmp_path)
    story.run(budget_s=1)
    (next(tmp_path.iterdir()) / "run" / "run.json").write_text("{")

    assert story.run(budget_s=1).steps().height


@pytest.mark.parametrize("text", ["{", '[{"change": 3}]'])
def test_a_damaged_list_of_changes_counts_as_empty(target, tmp_path, text):
    story = Story.open(target, tmp_path)
    story.run(budget_s=1)
    (next(tmp_path.iterdir()) / "changes.json").write_text(text)

    assert story.table().is_empty()
