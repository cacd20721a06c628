"""The demo loaders run, and each planted cost is where it is said to be."""

import pytest
import torch
from PIL import Image

from stallscope import demo
from stallscope.errors import TargetError


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
        """The five transforms stand in the order in which they were published."""
        names = [type(op).__name__ for op in demo.case_b_pipeline().transforms]

        assert names == ["PILToTensor", "RandomCrop", "RandomMask", "ConvertColor", "Scale"]

    def test_the_mask_hides_a_pixel_and_its_four_neighbours(self):
        """Dilation turns one point into a cross."""
        point = torch.zeros(5, 5, dtype=torch.bool)
        point[2, 2] = True
        cross = torch.tensor([[0, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.bool)

        for mask in (demo.RandomMask(), demo.FasterRandomMask()):
            wide = mask.dilate(point)
            assert torch.equal(wide[1:4, 1:4], cross)
            assert wide.sum() == 5

    def test_a_mask_leaves_its_input_alone(self):
        """Masking returns a new image and leaves the given one as it was."""
        image = torch.full((3, 8, 8), 7, dtype=torch.uint8)

        masked = demo.RandomMask(size=8, ratio=1.0)(image)

        assert image.min() == 7
        assert masked.max() == 0

    def test_grey_has_no_colour(self):
        """A grey pixel keeps its brightness as Y, and its U and V are the offset."""
        grey = torch.full((3, 2, 2), 100, dtype=torch.uint8)

        yuv = demo.ConvertColor()(grey)

        expected = torch.tensor([100.0, 128.0, 128.0]).view(3, 1, 1).expand(3, 2, 2)
        assert torch.allclose(yuv, expected, atol=0.01)

    def test_the_loader_gives_one_image_many_times(self):
        """The loader of case B has as many entries as asked for, all of one file."""
        loader = demo.case_b_loader("crop_first", num_workers=0, batch_size=4, entries=8)

        images, labels = next(iter(loader))
        assert len(loader.dataset) == 8
        assert images.shape == (4, 3, 256, 256)
        assert labels.tolist() == [0, 0, 0, 0]

    def test_the_image_is_handed_over_undecoded(self, monkeypatch):
        """The dataset's file is decoded by the first transform that touches the pixels."""
        loader = demo.case_b_loader(num_workers=0, entries=1)
        undecoded = []

        def look(image):
            undecoded.append(len(image.tile))
            image.load()

        monkeypatch.setattr(loader.dataset, "transform", look)
        loader.dataset[0]

        assert undecoded == [1]

    def test_an_unknown_order_is_said(self):
        """An order that does not exist is one sentence that names the two that do."""
        with pytest.raises(
            TargetError, match="'backwards' of case B: take published or crop_first"
        ):
            demo.case_b_loader("backwards")
