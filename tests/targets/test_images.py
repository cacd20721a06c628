"""The target "sample" and where its photographs are found."""

import sys
from pathlib import Path

import pytest
import torch

from stallscope.errors import TargetError
from stallscope.targets import sample


class TestSample:
    def test_holds_every_photograph_forty_times(self):
        files = sample.sample_loader().dataset.files

        photographs = set(files)
        assert len(files) == 40 * len(photographs)
        assert {Path(file.path).parent.name for file in photographs} == {"earth", "space"}

    def test_gives_a_training_batch(self):
        """A batch of the sample is 32 normalised images of 224 by 224, and 32 labels."""
        images, labels = next(iter(sample.sample_loader()))

        assert images.shape == (32, 3, 224, 224)
        assert images.dtype == torch.float32
        assert images.min() < 0
        assert set(labels.tolist()) == {0, 1}

    def test_says_that_torchvision_is_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torchvision.transforms", None)

        with pytest.raises(
            TargetError, match=f"torchvision that belongs to your torch {torch.__version__[:3]}"
        ):
            sample.sample_loader()
