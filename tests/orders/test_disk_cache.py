"""What a pipeline gives each time, in a folder: the same bits, for all workers and later runs."""

from __future__ import annotations

import json
import warnings
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from support.pipelines import Tensors, halve, middle
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import stallscope as ss
from stallscope.errors import StallscopeError
from stallscope.loops.cached_values import same
from stallscope.orders.disk_cache import HEAD, DiskCache, as_stored
from stallscope.orders.result import NoSuchOrderError
from stallscope.storage.head import write_head

ABOUT = {"dataset": "Some", "samples": 3, "ops": ["halve"]}


class Pair(NamedTuple):
    """A type of the user's."""

    image: Any
    label: int


def a_picture(mode="RGB"):
    """An image whose pixels all differ, with a word about it."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = np.arange(6 * 5 * bands, dtype=np.uint8).reshape(6, 5, bands).squeeze()
    image = Image.fromarray(values)
    image.info["exif"] = b"turned"
    return image


def opened(folder, about=ABOUT, make=float):
    """A cache whose samples are the floats of their numbers."""
    return DiskCache.opened(folder, about, make)


class TestValues:
    @pytest.mark.parametrize(
        "value",
        [
            (torch.arange(6).view(2, 3), 7),
            {"image": a_picture(), "mask": a_picture("L"), "name": "one", "raw": b"two"},
            [np.arange(4.0), np.float32(2.5), None, True],
            (torch.ones(100)[3:5], [a_picture("RGBA")]),
            {"stallscope is a key": 1, 5: (2.0,)},
        ],
    )
    def test_comes_back_as_it_was(self, value, tmp_path):
        """The same types, in the same containers; images with what they say about themselves."""
        cache = opened(tmp_path / "new")

        cache[3] = value

        assert same(cache[3], value)
        assert type(cache[3]) is type(value)
        assert cache.path_of(3).stat().st_size < 10_000

    @pytest.mark.parametrize("value", [Pair(1, 2), object(), Image.new("P", (2, 2)), {1, 2}])
    def test_what_needs_code_to_be_read_is_not_stored(self, value):
        """A file of ours runs none."""
        with pytest.raises(StallscopeError, match="cannot be kept on disk: tensors, arrays"):
            as_stored(value)

    def test_a_program_goes_on_where_nothing_can_be_stored(self, tmp_path):
        """It is said once, and later samples are made as ever."""
        cache = opened(tmp_path / "new")

        with pytest.warns(UserWarning, match="takes no more samples"):
            cache[0] = object()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache[1] = object()

        assert [] == [*(tmp_path / "new").glob("*/*")]

    def test_a_damaged_file_is_as_good_as_none(self, tmp_path):
        """Its sample is made again."""
        cache = opened(tmp_path / "new")
        cache[0] = 1.0
        cache.path_of(0).write_bytes(b"half")

        assert cache.get(0) is None

    def test_numbers_of_numpy_are_numbers(self, tmp_path):
        """A sampler may give them."""
        cache = opened(tmp_path / "new")
        cache[np.int64(5)] = "five"

        assert "five" == cache[5]
        assert 1 == len(cache)


class TestFolder:
    def test_goes_on_where_it_was(self, tmp_path):
        """A later run finds what an earlier one made."""
        opened(tmp_path / "new")[2] = 2.0

        assert {2: 2.0} == dict(opened(tmp_path / "new"))

    def test_other_data_is_told(self, tmp_path):
        """Another pipeline, a dataset that gives something else, files that are not ours."""
        opened(tmp_path / "new")[1] = 1.0
        (tmp_path / "photo.jpg").touch()

        with pytest.raises(StallscopeError, match=r"holds other samples \(ops \['halve'\]\)"):
            opened(tmp_path / "new", ABOUT | {"ops": []})
        with pytest.raises(StallscopeError, match=r"sample 1 in .*new is not what is made of it"):
            opened(tmp_path / "new", make=lambda _: 7.0)
        with pytest.raises(StallscopeError, match="holds other files: give a new folder"):
            opened(tmp_path)
        (tmp_path / "new" / HEAD).write_text("[]")
        with pytest.raises(StallscopeError, match="is damaged: give a new folder"):
            opened(tmp_path / "new")
        (tmp_path / "new" / HEAD).write_text("no json")
        with pytest.raises(StallscopeError, match="cannot be used"):
            opened(tmp_path / "new")

    def test_no_folder_can_be_made_there(self, tmp_path):
        """Its place is a file."""
        (tmp_path / "file").touch()

        with pytest.raises(StallscopeError, match="file/new cannot be used"):
            opened(tmp_path / "file" / "new")


def batches(loader):
    """All batches of a seed."""
    torch.manual_seed(1)
    return list(loader)


def a_loader(entries=24, **named):
    """Two ops that give the same each time, then one that draws."""
    pipeline = v2.Compose([halve, middle, v2.RandomHorizontalFlip()])
    return DataLoader(Tensors(pipeline, entries=entries), batch_size=4, **named)


class TestLoader:
    @pytest.mark.slow
    @pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.thorough)])
    def test_workers_share_what_each_made(self, context, tmp_path):
        """The same bits in the first epoch and in the second, and every sample is stored once."""
        loader = a_loader(num_workers=2, multiprocessing_context=context)
        orders = ss.orders(a_loader(num_workers=2), samples=6, budget_s=4)
        trial = orders.trials.row(by_predicate=pl.col("kind") == "disk cache", named=True)

        other = orders.apply(loader, trial["trial"], folder=tmp_path / "heads")

        assert "everything up to middle kept on disk" == trial["change"]
        assert ("identical", False) == (trial["equivalence"], trial["recommended"])
        for _ in range(2):
            assert same(batches(loader), batches(other))
            assert 24 == len([*(tmp_path / "heads").glob("*/*.pt")])
        with pytest.raises(NoSuchOrderError, match=r"say where, as in \.apply"):
            orders.apply(loader, trial["trial"])
        with pytest.raises(NoSuchOrderError, match="trial 0 keeps nothing"):
            orders.apply(loader, 0, folder=tmp_path / "heads")


class TestWritten:
    def test_all_of_it_is_written_and_gone_on_with(self, tmp_path):
        """By the loader's workers; what is there is not made again, and the data is the same."""
        loader = a_loader(num_workers=2)

        dataset = write_head(loader, tmp_path / "heads")
        made = {path: path.stat().st_mtime_ns for path in (tmp_path / "heads").glob("*/*.pt")}
        first = min(made)
        first.unlink()
        again = write_head(loader, tmp_path / "heads")

        assert 24 == len(made) == len(again.kept)
        changed = [path for path, at in made.items() if path.stat().st_mtime_ns != at]
        assert [first] == changed
        assert same(batches(loader), batches(DataLoader(dataset, batch_size=4, num_workers=2)))
        assert ["halve", "middle"] == json.loads((tmp_path / "heads" / HEAD).read_text())["ops"]

    def test_too_little_room_is_said_before_it_is_written(self, tmp_path, monkeypatch):
        """Of what the first samples take."""
        monkeypatch.setattr("shutil.disk_usage", lambda _: _Full)

        with pytest.raises(StallscopeError, match=r"16 samples need about .* is free: make room"):
            write_head(a_loader(), tmp_path / "heads")

    def test_what_cannot_be_stored_is_said(self, tmp_path):
        """With the sample's type."""
        loader = DataLoader(Tensors(v2.Compose([as_pair]), entries=4), batch_size=2)

        with pytest.raises(StallscopeError, match="Pair cannot be kept on disk"):
            write_head(loader, tmp_path / "heads")


class _Full:
    free = 10


def as_pair(value):
    """A type of the user's."""
    return Pair(value, 1)
