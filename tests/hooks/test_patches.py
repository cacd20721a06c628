"""A recording begins and ends while threads of the user's iterate loaders."""

import sys
from contextlib import ExitStack
from types import ModuleType

import pytest
import torch

from stallscope.hooks.patches import Patches
from stallscope.run.record import begin_window


def test_a_patch_after_the_end_changes_nothing():
    """A thread may meet a new class of iterators just when the recording ends."""
    place, ours = {"name": "theirs"}, Patches()
    ours.put(place, "name", "ours")
    ours.undo()

    ours.put(place, "name", "late")

    assert {"name": "theirs"} == place


def test_a_hook_that_somebody_imported_by_name_is_put_back(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "script", script := ModuleType("script"))
    plain = torch.save
    with ExitStack() as ends:
        begin_window(tmp_path, ends, 0)
        exec("from torch import save", vars(script))  # noqa: S102 - as an import does it
        assert script.save is not plain

    assert script.save is torch.save is plain


@pytest.mark.parametrize("ends", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_recordings_that_share_a_place_end_in_any_order(ends):
    place, patches = {"name": "theirs"}, [Patches() for _ in range(3)]
    for number, each in enumerate(patches):
        each.put(place, "name", number)

    for number in ends:
        patches[number].undo()

    assert {"name": "theirs"} == place
