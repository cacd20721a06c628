"""A person points all notebooks at something of their own, and runs each twice, in both themes.

Targets without files, images or indices in their samples; with a training step; without an end;
and those that are no module.
"""

from pathlib import Path

import pytest
from browser.conftest import served
from browser.page import THEMES

from stallscope.cases import make_shards
from stallscope.files import packaged_folder

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.thorough]

NOTEBOOKS = sorted(path.name for path in Path(__file__).parents[2].glob("notebooks/*.ipynb"))
MINE = """
import itertools
import time
import torch
from stallscope.demo import Scale
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision.transforms.v2 import Compose, RandomHorizontalFlip

class Slow(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.transform(self.load(index))

    def load(self, index):
        time.sleep(0.001)
        return torch.full((3, 8, 8), float(index))

class Endless(IterableDataset):
    def __iter__(self):
        return map(Slow(Scale()).__getitem__, itertools.count())

def train(batch):
    time.sleep(0.003)

def loader():
    return DataLoader(Slow(Compose([RandomHorizontalFlip(), Scale()])), batch_size=4, num_workers=0)

def with_a_step():
    return DataLoader(Slow(Scale()), batch_size=4, num_workers=2), train

def stream():
    return DataLoader(Endless(), batch_size=4, num_workers=1)
"""


def make_target(name, folder):
    """What to give to `stallscope lab` in this folder."""
    if name == "folder":
        return str(packaged_folder("sample_data"))
    if name == "shards":
        return make_shards(folder / "shards", 2, images=8)[0]
    (folder / "mine.py").write_text(MINE)
    return f"mine:{name}"


@pytest.fixture(scope="module", params=["folder", "shards", "loader", "with_a_step", "stream"])
def name_of_target(request):
    return request.param


@pytest.fixture(scope="module")
def address(name_of_target, tmp_path_factory):
    folder = tmp_path_factory.mktemp(name_of_target)
    with served(folder, make_target(name_of_target, folder)) as found:
        yield found


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_no_cell_is_red(lab, name_of_target, notebook):
    """Also the second time. Screenshots are kept."""
    lab.open(notebook)
    for theme, called in THEMES.items():
        lab.theme(called)
        assert lab.run_all() == []
        assert not lab.stills()
        lab.shot_of_all(f"{name_of_target}-{notebook.partition('.')[0]}-{theme}")
