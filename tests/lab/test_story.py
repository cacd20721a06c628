"""The story that notebooks share: one run, and the measured changes."""

import json
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
    first = Story.open(target, tmp_path).run(budget_s=1)
    again = Story.open(target, tmp_path).run(budget_s=1)
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
    assert "No change was tried yet" in str(story)

    story.try_change("no wait", changed, budget_s=1)
    story.try_change("no wait", changed, budget_s=4)

    row = Story.open(target, tmp_path).table().to_dicts()
    assert ["no wait"] == [entry["change"] for entry in row]
    assert "faster" == row[0]["says"]
    assert row[0]["gain_low"] > 2
    assert row[0]["busy_share"] == pytest.approx(
        row[0]["busy_before_share"] * row[0]["gain_factor"], rel=0.5
    )
    assert torch.equal(state, changed.generator.get_state())
    assert "1 change made the loop" in str(story)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are stopped on Linux")
def test_a_change_that_was_not_settled_is_tried_again_after_a_faster_one(target, tmp_path):
    story = Story.open(target, tmp_path)
    row = {"change": "workers", "gain_factor": 1.0, "gain_low": 0.5, "gain_high": 2.0}
    story._save([{**row, "says": "not settled", "makes": '{"setting": {"num_workers": 2}}'}])

    story.try_change("no wait", loader(0.001), budget_s=4)

    first, again = story.table().to_dicts()
    assert ("no wait", "faster") == (first["change"], first["says"])
    assert "workers" == again["change"]
    assert (0.5, 2.0) != (again["gain_low"], again["gain_high"])


@pytest.mark.skipif(sys.platform != "linux", reason="workers are stopped on Linux")
def test_arguments_of_a_loader_are_a_change(target, tmp_path):
    story = Story.open(target, tmp_path)

    story.try_change("no workers", {"num_workers": 0}, budget_s=4)

    (row,) = story.table().to_dicts()
    assert '{"setting": {"num_workers": 0}}' == row["makes"]
    assert (0 if row["says"] == "faster" else 1) == story.target.loader.num_workers


def test_a_slower_change_is_not_kept(target, tmp_path):
    """The next change is made to the loader without it, and the headline says so."""
    story = Story.open(target, tmp_path)
    row = {"change": "x", "gain_factor": 0.5, "gain_low": 0.4, "gain_high": 0.6, "says": "slower"}
    story._save([{**row, "makes": '{"setting": {"num_workers": 2}}'}])

    assert "No change was faster" in str(story)
    assert "the device is simulated: a timer of 1.0 ms a batch" in str(story)
    assert 1 == story.target.loader.num_workers


def test_kept_changes_are_made_again_in_the_next_notebook(tmp_path):
    """Arguments of the sample, an order of its transforms and a setting; gains multiply."""
    target = ss.target("sample", step=ss.simulated_step(0.05, runs_behind=True))
    names = [type(op).__name__ for op in target.loader.dataset.transform.transforms]
    order = [2, 3, 4, 0, 1]
    recipes = [{"sample": {"indexed": True}}, {"ops": names, "order": order}]
    recipes += [{"setting": {"num_workers": 1}}]
    busy = {"busy_before_share": 0.3, "busy_share": 0.9}
    row = {"gain_factor": 2.0, "gain_low": 1.9, "gain_high": 2.1, "says": "faster", **busy}
    rows = [{**row, "change": str(each), "makes": json.dumps(each)} for each in recipes]
    Story.open(target, tmp_path)._save(rows)

    story = Story.open(target, tmp_path)

    loader = story.target.loader
    assert loader.dataset.by_image
    assert [names[place] for place in order] == [
        type(op).__name__ for op in loader.dataset.transform.transforms
    ]
    assert 1 == loader.num_workers
    assert "Device busy 30% at the start, 90% now: 3 changes made the loop 8.0× as fast" in str(
        story
    )


def test_a_notebook_begins_without_its_own_change(tmp_path):
    target = ss.target("sample", step=ss.simulated_step(0.05, runs_behind=True))
    names = [type(op).__name__ for op in target.loader.dataset.transform.transforms]
    recipes = [{"sample": {"indexed": True}}, {"ops": names, "order": [2, 3, 4, 0, 1]}]
    row = {"gain_factor": 2.0, "gain_low": 1.9, "gain_high": 2.1, "says": "faster"}
    story = Story.open(target, tmp_path)
    story._save([{**row, "change": str(each), "makes": json.dumps(each)} for each in recipes])

    dataset = story.without("order").loader.dataset

    assert dataset.by_image
    assert names == [type(op).__name__ for op in dataset.transform.transforms]


@pytest.mark.skipif(sys.platform != "linux", reason="workers are stopped on Linux")
def test_another_value_of_an_argument_replaces_the_first(target, tmp_path):
    story = Story.open(target, tmp_path)

    story.try_change("two workers", {"num_workers": 2}, budget_s=3)
    story.try_change("three workers", {"num_workers": 3}, budget_s=3)

    assert ["three workers"] == story.table()["change"].to_list()


@pytest.mark.parametrize("makes", ["{", "[]", '{"sample": {"x": 1}}', '{"setting": {"x": 1}}'])
def test_a_damaged_change_is_left_out(target, tmp_path, makes):
    story = Story.open(target, tmp_path)
    row = {"change": "x", "gain_factor": 2.0, "gain_low": 1.9, "gain_high": 2.1, "says": "faster"}
    story._save([{**row, "makes": makes}])

    assert story.target.loader is target.loader


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
