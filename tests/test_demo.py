"""The demo loaders run, and each has its planted cost where the docs say."""

import re
import tarfile

import pytest
import torch
from PIL import Image

from stallscope import demo
from stallscope.files import packaged_folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return demo.make_shards(tmp_path_factory.mktemp("case-a"), 2, images=4)


class TestCaseA:
    def test_the_shards_have_the_published_form(self, shards):
        """Image, JSON and text of one key lie beside each other; files are of the published size.

        Published: 74 to 776 kB, most of them 130 to 420 kB.
        """
        with tarfile.open(shards[0]) as archive:
            members = archive.getmembers()
        images = [member.size for member in members if member.name.endswith(".jpg")]

        assert ["jpg", "json", "txt"] == [member.name.partition(".")[2] for member in members[:3]]
        assert 1 == len({member.name.partition(".")[0] for member in members[:3]})
        assert all(74_000 <= size <= 776_000 for size in images)
        assert len(images) / 2 < sum(130_000 <= size <= 420_000 for size in images)

    @pytest.mark.slow
    def test_the_loader_gives_batches_of_images(self, shards):
        """Read by webdataset, resized and cropped."""
        pytest.importorskip("webdataset")
        loader = demo.case_a_loader(shards, num_workers=0, batch_size=2)

        (batch,) = next(iter(loader))

        assert (2, 3, 224, 224) == batch.shape
        assert torch.float32 == batch.dtype

    def test_the_same_shards_are_made_again(self, shards, tmp_path):
        again = demo.make_shards(tmp_path, 1, images=1)

        with tarfile.open(shards[0]) as first, tarfile.open(again[0]) as second:
            name = first.getnames()[0]
            assert first.extractfile(name).read() == second.extractfile(name).read()


class TestCaseB:
    @pytest.mark.parametrize("order", ["published", "crop_first"])
    @pytest.mark.parametrize("mask", [demo.RandomMask, demo.FasterRandomMask])
    def test_every_variant_gives_the_same_data(self, order, mask):
        image = Image.effect_noise((800, 533), 50).convert("RGB")
        torch.manual_seed(0)
        expected = demo.case_b_pipeline()(image)
        torch.manual_seed(0)
        prepared = demo.case_b_pipeline(order, mask)(image)

        assert torch.equal(prepared, expected)
        assert prepared.shape == (3, 256, 256)
        assert prepared.dtype == torch.float32

    def test_the_published_order_is_the_published_one(self):
        names = [type(op).__name__ for op in demo.case_b_pipeline().transforms]

        assert names == ["PILToTensor", "RandomCrop", "RandomMask", "ConvertColor", "Scale"]

    def test_the_loader_gives_one_image_many_times(self):
        loader = demo.case_b_loader("crop_first", num_workers=0, batch_size=4, entries=8)

        images, labels = next(iter(loader))
        assert len(loader.dataset) == 8
        assert images.shape == (4, 3, 256, 256)
        assert labels.tolist() == [0, 0, 0, 0]


def test_targets_that_the_notebooks_name_are_there():
    pages = "".join(path.read_text() for path in packaged_folder("notebooks").glob("*.ipynb"))
    names = set(re.findall(r"stallscope\.demo:(\w+)", pages))

    assert {"case_a", "case_b_loader"} <= names
    assert all(callable(getattr(demo, name)) for name in names)
