"""Images of the user's that cannot be read are left out, counted and named."""

import io
import os
import shutil
import tarfile

import pytest

import stallscope as ss
from stallscope.errors import TargetError
from stallscope.targets.images import find_images
from stallscope.targets.sample import sample_folder

PHOTOGRAPHS = sorted(sample_folder().rglob("*.jpg"))


@pytest.fixture
def folder(tmp_path):
    """Forty photographs in two classes."""
    for number, file in enumerate(PHOTOGRAPHS[:40]):
        place = tmp_path / "images" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    return tmp_path / "images"


class TestFolder:
    def test_one_is_left_out(self, folder):
        """Every index gives a batch's sample."""
        (folder / "a" / "bad.jpg").write_bytes(PHOTOGRAPHS[0].read_bytes()[:2000])
        target = ss.target(folder)

        assert 41 == sum(len(labels) for _, labels in target.loader)

    def test_many_in_a_row_end_the_measurement(self, folder):
        """In one sentence, out of the worker that met them."""
        for number in range(20):
            (folder / "b" / f"bad{number}.jpg").write_text("no image")

        with pytest.raises(TargetError) as caught:
            ss.record(folder, batches=30)

        text = str(caught.value)
        assert "Traceback" not in text
        assert "10 images in a row cannot be read, the last is" in text


class TestShards:
    @pytest.mark.slow
    def test_a_member_is_left_out(self, folder, tmp_path):
        """A shard that ends early gives what came before."""
        whole, cut = tmp_path / "whole.tar", tmp_path / "cut.tar"
        for shard in (whole, cut):
            with tarfile.open(shard, "w") as archive:
                for file in sorted(folder.rglob("*.jpg"))[:20]:
                    archive.add(file, file.name)
                if shard == whole:
                    member = tarfile.TarInfo("bad.jpg")
                    member.size = 8
                    archive.addfile(member, io.BytesIO(b"no image"))
        os.truncate(cut, cut.stat().st_size - 100_000)

        assert 35 < sum(map(len, ss.target(str(tmp_path / "*.tar")).loader)) < 40


class TestFolders:
    def test_a_loop_of_links_counts_once(self, folder):
        """A link to the folder itself, and two that lead to each other's."""
        (folder / "a" / "up").symlink_to(folder)
        (folder / "b" / "beside").symlink_to(folder / "a")

        assert 40 == len(find_images(folder))
