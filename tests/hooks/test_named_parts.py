"""`ss.stage`: the names that users give become stages."""

import io

import pytest
import torch
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.hooks.event_log import MOST_NAMES

STEPS = MOST_NAMES + 20


class Named:
    """A dataset that makes up a name for each of its samples."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> int:
        with ss.stage(f"sample {index}"):
            return index


@pytest.fixture(scope="module")
def run():
    with ss.instrumented(warmup=0) as watch:
        for number, _ in enumerate(DataLoader(Named(), STEPS // 4)):
            for of_step in range(STEPS // 4):
                with ss.stage(f"step {number} {of_step}"):
                    pass
    return watch.run


def test_names_without_end_are_one_stage(run):
    """The first few hundred distinct names are stages; all later names share one stage."""
    names = set(run.all_spans["stage"]) | set(run.side_spans["stage"])

    assert MOST_NAMES - 100 < len(names) <= MOST_NAMES + 1
    assert "other names" in names
    assert any(f"more than {MOST_NAMES} names" in note for note in run.notes)


def test_a_step_of_a_script_is_split_into_stages():
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    plain = torch.save

    with ss.instrumented(warmup=0) as watch:
        for number, batch in enumerate(DataLoader(torch.rand(40, 64), 4)):
            model(batch).square().mean().backward()
            optimizer.step()
            if number % 2:
                torch.save(model.state_dict(), io.BytesIO())

    parts = dict(watch.run.stages().select("stage", "count").iter_rows())
    every = dict.fromkeys(
        ("forward (until backward)", "backward", "optimizer"), 9
    )  # the first one starts
    assert every | {"checkpoint": 5} == {name: parts.get(name) for name in (*every, "checkpoint")}
    assert "checkpoint" in str(watch.run)
    assert torch.save is plain
