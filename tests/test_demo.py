"""The demo loaders run, and each planted cost is where it is said to be."""

import pytest
import torch
from PIL import Image

from stallscope import demo


class TestCaseB:
    @pytest.mark.parametrize("order", ["published", "crop_first"])
    @pytest.mark.parametrize("mask", [demo.RandomMask, demo.FasterRandomMask])
    def test_every_variant_gives_the_same_data(self, order, mask):
        """On the same draws both orders and both masks give bit-identical samples."""
        image = Image.effect_noise((800, 533), 50).convert("RGB")
        torch.manual_seed(0)
        expected = demo.case_b_pipeline()(image)
        torch.manual_seed(0)
        found = demo.case_b_pipeline(order, mask)(image)

        assert torch.equal(found, expected)
        assert found.shape == (3, 256, 256)
        assert found.dtype == torch.float32

    def test_the_published_order_is_the_published_one(self):
        names = [type(op).__name__ for op in demo.case_b_pipeline().transforms]

        assert names == ["PILToTensor", "RandomCrop", "RandomMask", "ConvertColor", "Scale"]

    def test_the_loader_gives_one_image_many_times(self):
        loader = demo.case_b_loader("crop_first", num_workers=0, batch_size=4, entries=8)

        images, labels = next(iter(loader))
        assert len(loader.dataset) == 8
        assert images.shape == (4, 3, 256, 256)
        assert labels.tolist() == [0, 0, 0, 0]
