"""Images of the user's that cannot be read are left out, counted and named."""

import io
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest

import stallscope as ss
from stallscope.errors import TargetError
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
    def test_one_is_left_out_and_named(self, folder):
        """Every index gives a batch's sample, and the result names the file."""
        (folder / "a" / "bad.jpg").write_bytes(PHOTOGRAPHS[0].read_bytes()[:2000])
        target = ss.target(folder)

        run = ss.record(target, batches=4, warmup=0)

        told = [note for note in run.notes if "could not be read" in note]
        assert [f"1 image left out (could not be read): {folder}/a/bad.jpg"] == told

    def test_more_than_a_tenth_is_one_sentence(self, folder):
        """With three of the names, out of the worker that met them."""
        for number in range(20):
            (folder / "b" / f"bad{number}.jpg").write_text("no image")

        with pytest.raises(TargetError) as caught:
            ss.record(folder, batches=30)

        text = str(caught.value)
        assert "Traceback" not in text
        assert "cannot be read" in text
        assert 3 == text.count("/b/bad")


class TestShards:
    @pytest.mark.slow
    def test_a_member_is_left_out_and_named(self, folder, tmp_path):
        """By shard and member; a shard that ends early gives what came before."""
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

        run = ss.record(str(tmp_path / "*.tar"), batches=3, warmup=0)

        (told,) = (note for note in run.notes if "could not be read" in note)
        assert f"{whole}: bad.jpg" in told
        assert str(cut) in told


class TestFolders:
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_one_that_cannot_be_read_is_told(self, folder):
        """The images of the others are there, and a note names the folder."""
        with tempfile.TemporaryDirectory(dir="/var/tmp") as place:  # where anybody may go
            Path(place).chmod(0o711)
            moved = Path(shutil.move(folder, place))
            (moved / "b").chmod(0)
            os.seteuid(65534)
            try:
                target = ss.target(moved)
            finally:
                os.seteuid(0)

        assert 20 == len(target.loader.dataset)
        assert any("images/b (Permission denied)" in note for note in target.notes)
