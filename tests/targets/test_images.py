"""The target "sample" and where its photographs are found."""

import sys
from pathlib import Path

import pytest
import torch

from stallscope import files
from stallscope.errors import StallscopeError, TargetError
from stallscope.targets import sample


class TestSample:
    def test_holds_every_photograph_forty_times(self):
        """The sample has 40 entries for each of its photographs."""
        files = sample.sample_loader().dataset.files

        photographs = set(files)
        assert len(files) == 40 * len(photographs)
        assert {Path(file.path).parent.name for file in photographs} == {"earth", "space"}

    def test_has_48_photographs(self):
        """The sample has 1,920 entries."""
        assert len(sample.sample_loader().dataset) == 1920

    def test_gives_a_training_batch(self):
        """A batch of the sample is 32 normalised images of 224 by 224, and 32 labels."""
        images, labels = next(iter(sample.sample_loader()))

        assert images.shape == (32, 3, 224, 224)
        assert images.dtype == torch.float32
        assert images.min() < 0
        assert set(labels.tolist()) == {0, 1}

    def test_asks_for_no_more_workers_than_cpus(self, monkeypatch):
        """On a machine with one usable CPU the sample takes one worker."""
        monkeypatch.setattr(sample, "usable_cores", lambda: 1)

        assert sample.sample_loader().num_workers == 1

    def test_says_where_it_looked_for_missing_data(self, monkeypatch, tmp_path):
        """A missing sample folder is one sentence that names both places."""
        monkeypatch.setattr(files, "__file__", str(tmp_path / "src" / "stallscope" / "files.py"))

        with pytest.raises(StallscopeError, match=r"_share.sample_data and .*sample_data"):
            sample.sample_folder()

    def test_prefers_the_data_inside_the_wheel(self, monkeypatch, tmp_path):
        """The data of an installed wheel is found next to the module."""
        inside = tmp_path / "stallscope" / "_share" / "sample_data"
        (inside / "earth").mkdir(parents=True)
        monkeypatch.setattr(files, "__file__", str(tmp_path / "stallscope" / "files.py"))

        assert sample.sample_folder() == inside.resolve()

    def test_an_empty_sample_folder_is_said(self, monkeypatch, tmp_path):
        """A sample folder without photographs is a sentence, not an empty loader."""
        monkeypatch.setattr(sample, "sample_folder", lambda: tmp_path)

        with pytest.raises(TargetError, match="no images"):
            sample.sample_loader()

    def test_says_that_torchvision_is_missing(self, monkeypatch):
        """Without torchvision the sample says what to install."""
        monkeypatch.setitem(sys.modules, "torchvision.transforms", None)

        with pytest.raises(
            TargetError, match=f"torchvision that belongs to your torch {torch.__version__[:3]}"
        ):
            sample.sample_loader()
