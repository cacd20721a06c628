"""The two published pipelines: what they are made of, and that they leave nothing behind."""

from __future__ import annotations

import tarfile

import pytest
import torch

from stallscope import cases


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return cases.make_shards(tmp_path_factory.mktemp("case-a"), 2, images=4)


class TestCaseA:
    def test_the_shards_have_the_published_form(self, shards):
        """Image, JSON and text of one key lie beside each other; files are of the published size.

        Published: 74 to 776 kB, most of them 130 to 420 kB.
        """
        with tarfile.open(shards[0]) as archive:
            members = archive.getmembers()
        images = [member.size for member in members if member.name.endswith(".jpg")]

        assert ["jpg", "json", "txt"] == [one.name.partition(".")[2] for one in members[:3]]
        assert 1 == len({one.name.partition(".")[0] for one in members[:3]})
        assert all(74_000 <= size <= 776_000 for size in images)
        assert len(images) / 2 < sum(130_000 <= size <= 420_000 for size in images)

    @pytest.mark.slow
    def test_the_loader_gives_batches_of_images(self, shards):
        """Read by webdataset, resized and cropped."""
        pytest.importorskip("webdataset")
        loader = cases.case_a_loader(shards, num_workers=0, batch_size=2)

        (batch,) = next(iter(loader))

        assert (2, 3, 224, 224) == batch.shape
        assert torch.float32 == batch.dtype

    def test_the_same_shards_are_made_again(self, shards, tmp_path):
        again = cases.make_shards(tmp_path, 1, images=1)

        with tarfile.open(shards[0]) as one, tarfile.open(again[0]) as other:
            name = one.getnames()[0]
            assert one.extractfile(name).read() == other.extractfile(name).read()
