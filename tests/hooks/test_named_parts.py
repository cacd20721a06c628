"""`ss.stage`: what is kept of the names that users give."""

import pytest
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.hooks.stage_log import MOST_NAMES

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


@pytest.mark.parametrize("named", ["sample", "step"])
def test_names_without_end_are_one_stage(run, named):
    """Of names made anew each time the first hundreds stay apart, all others are one stage."""
    names = set(run.all_spans["stage"]) | set(run.side_spans["stage"])

    assert MOST_NAMES == sum(name.startswith(f"{named} ") for name in names)
    assert "other names" in names
    assert any(f"more than {MOST_NAMES} names" in note for note in run.notes)
