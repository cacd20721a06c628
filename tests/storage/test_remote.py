"""Targets behind an address: a web server, a bucket; slow, cut off, or not there."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from polars.testing import assert_frame_equal
from support.folder_server import folder_server
from support.virtual_loop import a_loop
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.files import is_address
from stallscope.lab.notebooks import resolved
from stallscope.targets.images import RemoteImages, find_images

pytest.importorskip("aiohttp", reason="fsspec reads http:// with it; .[ci] installs it")
pytest.importorskip("torchvision")
IMAGES = 48


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a folder with two classes of small images."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        place = folder / ("cat" if number % 2 else "dog") / f"{number:02}.jpg"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (96, 96, 3), dtype=np.uint8)).save(place)
    (folder / "readme.txt").write_text("no image")
    return folder


@pytest.fixture
def web(photos):
    """Yield the port of a server of the folder."""
    with folder_server(photos) as port:
        yield port


def address(port):
    return f"http://127.0.0.1:{port}/"


def test_an_address_has_a_protocol():
    assert [True, True, False, False, False] == [
        is_address(text)
        for text in ("s3://a/b", "HTTP://x", "/data/s3", "train:loader", r"C:\data://x")
    ]


def test_the_lab_leaves_an_address_unchanged():
    assert ("s3://a/b", None) == resolved("s3://a/b")


class TestWeb:
    def test_yields_the_same_as_the_folder(self, web, photos):
        """The images and labels are the same, and workers can read them."""
        dataset = ss.target(address(web)).loader.dataset

        local = find_images(photos)
        assert isinstance(dataset, RemoteImages)
        names = ["/".join(file.path.split("/")[-2:]) for file in dataset.files]
        assert [file.path[len(str(photos)) + 1 :] for file in local] == names
        assert [file.label for file in local] == [file.label for file in dataset.files]
        dataset.transform = np.asarray
        for index, (pixels, _) in enumerate(DataLoader(dataset, None, num_workers=2)):
            with Image.open(local[index].path) as image:
                assert np.array_equal(np.asarray(image.convert("RGB")), pixels)

    @pytest.mark.parametrize(
        ("template", "words"),
        [
            ("http://127.0.0.1:9/x", "cannot be listed"),
            ("nothing://x", "cannot be listed .*Protocol not known: nothing"),
            ("{web}nowhere/", "cannot be listed"),
            ("{web}readme.txt", "no images at"),
        ],
    )
    def test_a_wrong_address_is_refused(self, web, template, words):
        with pytest.raises(ss.StallscopeError, match=words):
            ss.target(template.format(web=address(web)))


class TestRuns:
    @pytest.fixture
    def ranks(self, tmp_path):
        """Yield the address of nine ranks; rank 7 is slow."""
        for rank in range(9):
            costs = {"fetch": 1.0, "RandomMask": 150.0 if rank == 7 else 5.0}
            a_loop(costs, rank=rank).save(tmp_path / f"rank{rank}")
        with folder_server(tmp_path) as port:
            yield address(port)

    def test_gives_the_same_results_as_the_folder(self, ranks, tmp_path):
        diagnosis = ss.diagnose(ranks)

        assert ss.diagnose(tmp_path).findings == diagnosis.findings
        assert "rank 7" in diagnosis.verdict.title
        assert ss.load(f"{ranks}rank3").steps().equals(ss.load(tmp_path / "rank3").steps())
        remote, local = (
            ss.compare(*(f"{place}rank{rank}" for rank in (3, 7))).table()
            for place in (ranks, f"{tmp_path}/")
        )
        assert_frame_equal(local, remote, abs_tol=1e-12)

    def test_a_damaged_run_is_named_by_its_address(self, ranks, tmp_path):
        """The error names the address, and no local copy is left."""
        (tmp_path / "rank2" / "steps.arrow").write_bytes(b"ARROW1")
        before = set(Path(tempfile.gettempdir()).glob(f"stallscope-{os.getpid()}-*"))

        with pytest.raises(ss.StallscopeError, match=f"{ranks}rank2 is not a whole run"):
            ss.load(f"{ranks}rank2")
        assert before == set(Path(tempfile.gettempdir()).glob(f"stallscope-{os.getpid()}-*"))

    @pytest.mark.parametrize(
        ("template", "words"),
        [("{web}", "is not a saved result"), ("http://127.0.0.1:9/x", "cannot be listed")],
    )
    def test_an_address_without_a_result_is_refused(self, web, template, words):
        with pytest.raises(ss.StallscopeError, match=words):
            ss.load(template.format(web=address(web)))

    def test_a_server_that_cuts_the_connection(self, tmp_path):
        a_loop({"fetch": 1.0}).save(tmp_path / "rank3")
        with (
            folder_server(tmp_path, most_bytes=4_000) as port,
            pytest.raises(ss.StallscopeError, match="cannot be copied"),
        ):
            ss.load(f"{address(port)}rank3")
