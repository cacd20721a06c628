"""Library calls: reading and decoding wherever they happen, transforming calls where unnamed."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
from PIL import Image
from support.virtual_pipeline import record
from torch.utils.data import Dataset
from torchvision import io as vision_io
from torchvision import transforms as v1
from torchvision.transforms import functional as F  # noqa: N812 - as everybody calls it

from stallscope.run.decode import decode


class Files(Dataset):
    """Reads item number `index` by a function."""

    def __init__(self, read: Any, transform: Any = None) -> None:
        self.items = range(8)
        self.reader_of_mine = [read]  # not a name that promises anything
        self.transform = transform

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        x = READ[0](index)
        return float(np.asarray(self.transform(x) if self.transform else x).sum())


READ: list[Any] = [None]


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    """A JPEG file of some size."""
    path = tmp_path / "photograph.jpg"
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def stages_of(read: Any, tmp_path: Path, transform: Any = None) -> dict[str, int]:
    """How many samples have each stage."""
    READ[0] = read
    spans = record(Files(read, transform), tmp_path).spans
    inside = spans.filter(spans["sample"].is_not_null())
    counts: dict[str, set[Any]] = {}
    for stage, batch, sample in inside.select("stage", "batch", "sample").iter_rows():
        counts.setdefault(stage, set()).add((batch, sample))
    return {stage: len(samples) for stage, samples in counts.items()}


class TestReading:
    def test_open(self, photograph, tmp_path):
        """The built-in `open` is fetch; what is read through the open file is not seen."""

        def read(_: int) -> int:
            with open(photograph, "rb") as file:  # noqa: PTH123 - this is what is tested
                return len(file.read())

        assert {"getitem": 4, "fetch": 4} == stages_of(read, tmp_path)

    def test_path_read_bytes(self, photograph, tmp_path):
        """`Path.read_bytes` is fetch."""
        assert {"getitem": 4, "fetch": 4} == stages_of(
            lambda _: len(photograph.read_bytes()), tmp_path
        )

    def test_numpy(self, tmp_path):
        """`numpy.load` and `numpy.fromfile` are fetch."""
        np.save(tmp_path / "x.npy", np.zeros(9))
        assert {"getitem": 4, "fetch": 4} == stages_of(
            lambda _: np.load(tmp_path / "x.npy"), tmp_path
        )

    def test_h5py(self, tmp_path):
        """Slicing a dataset of h5py is fetch."""
        with h5py.File(tmp_path / "x.h5", "w") as file:
            data = file.create_dataset("x", data=np.arange(8))
            assert {"getitem": 4, "fetch": 4} == stages_of(lambda i: data[i], tmp_path)

    def test_a_failing_call_fails_as_it_did(self, tmp_path):
        """A member that is not there."""
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive, pytest.raises(KeyError):
            stages_of(lambda _: archive.read("none"), tmp_path)


class TestContainers:
    """Finding a sample, reading it and unpacking it stand apart where a library has them apart."""

    def test_zip(self, photograph, tmp_path):
        """The entry's head, its bytes, and decompressing them."""
        with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(photograph, "photograph.jpg")
        with zipfile.ZipFile(tmp_path / "x.zip") as archive:

            def opened(_: int) -> int:
                with archive.open("photograph.jpg") as file:
                    return len(file.read())

            for place, read in {
                "one": lambda _: len(archive.read("photograph.jpg")),
                "other": opened,
            }.items():
                (tmp_path / place).mkdir()
                found = stages_of(read, tmp_path / place)
                assert {"getitem": 4, "seek": 4, "fetch": 4, "unpack": 4} == found

    def test_tar(self, photograph, tmp_path):
        """The next member's head, and its bytes."""
        with tarfile.open(tmp_path / "x.tar", "w") as archive:
            for number in range(9):
                archive.add(photograph, f"{number}.jpg")
        with tarfile.open(tmp_path / "x.tar") as archive:

            def read(_: int) -> int:
                return len(archive.extractfile(archive.next()).read())

            assert {"getitem": 4, "seek": 4, "fetch": 4} == stages_of(read, tmp_path)

    def test_gzip(self, tmp_path):
        """Reading and decompressing are one call, whose name says what it mostly is."""
        with gzip.open(tmp_path / "x.gz", "wb") as file:
            file.write(bytes(100_000))

        def read(_: int) -> int:
            with gzip.open(tmp_path / "x.gz") as file:
                return len(file.read())

        assert {"getitem": 4, "fetch": 4, "unpack": 4} == stages_of(read, tmp_path)

    def test_a_failing_call_fails_as_before(self, tmp_path):
        """A missing file raises what it always raises."""
        with pytest.raises(FileNotFoundError):
            stages_of(lambda _: Image.open(tmp_path / "none.jpg"), tmp_path)


class TestDecoding:
    def test_pil_decodes_where_the_pixels_are_touched(self, photograph, tmp_path):
        """`Image.open` is fetch; the decoding is decode, in whichever transform it happens."""
        found = stages_of(
            lambda _: Image.open(photograph), tmp_path, v1.Compose([v1.CenterCrop(64)])
        )

        assert {"getitem": 4, "fetch": 4, "decode": 4, "CenterCrop": 4} == found

    @pytest.mark.parametrize("format_", ["PNG", "WEBP", "GIF", "TIFF", "BMP"])
    def test_other_formats_of_pil(self, format_, photograph, tmp_path):
        """Every format's decoding is found."""
        path = tmp_path / "photograph.any"
        Image.open(photograph).save(path, format=format_)

        assert 4 == stages_of(lambda _: Image.open(path), tmp_path)["decode"]

    @pytest.mark.slow
    def test_pil_in_workers_that_make_one_batch_each(self, photograph, tmp_path):
        """A format is imported by the first image that has it: that one is decoded, too."""
        script = f"""if True:
            import sys
            import stallscope as ss
            from torch.utils.data import DataLoader
            from torchvision.datasets import ImageFolder
            from torchvision.transforms.v2 import Compose, PILToTensor, Resize

            data = ImageFolder({str(tmp_path / "data")!r}, Compose([Resize(9), PILToTensor()]))
            assert "PIL.ImageFile" not in sys.modules
            run = ss.record(DataLoader(data, batch_size=1, num_workers=2), batches=6, budget_s=30)
            print(*run.samples()["decode_s"])
        """
        (tmp_path / "data" / "class").mkdir(parents=True)
        for number in range(2):
            shutil.copy(photograph, tmp_path / "data" / "class" / f"{number}.jpg")

        found = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
        )

        decoded = [float(took_s) for took_s in found.stdout.split()]
        assert len(decoded) >= 6
        assert min(decoded) > 0

    def test_pil_from_memory(self, photograph, tmp_path):
        """An image in memory is decoded just the same."""
        data = photograph.read_bytes()

        assert 4 == stages_of(lambda _: Image.open(io.BytesIO(data)), tmp_path)["decode"]

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_torchvision(self, photograph, tmp_path):
        """`read_image` is fetch and decode, also when it was imported by name."""
        found = stages_of(lambda _: vision_io.read_image(str(photograph)), tmp_path)

        assert {"getitem": 4, "fetch": 4, "decode": 4} == found

    def test_cv2(self, photograph, tmp_path):
        """`imdecode` is decode; `imread` reads and decodes in one, and the run says so."""
        data = np.fromfile(photograph, dtype=np.uint8)
        assert 4 == stages_of(lambda _: cv2.imdecode(data, 1), tmp_path)["decode"]

        (again := tmp_path / "again").mkdir()
        READ[0] = lambda _: cv2.imread(str(photograph))
        notes = record(Files(None), again).log.names.notes
        assert any("cv2.imread" in note for note in notes)

    def test_tifffile(self, photograph, tmp_path, monkeypatch):
        """`tifffile.imread` is decode, the run says that it reads, too, and no other library's."""
        tifffile: Any = ModuleType("tifffile")
        tifffile.imread = lambda _: np.zeros(9)
        monkeypatch.setitem(sys.modules, "tifffile", tifffile)

        READ[0] = lambda _: tifffile.imread(photograph)
        recorded = record(Files(None), tmp_path)

        assert 4 == recorded.spans["stage"].to_list().count("decode")
        assert [str(photograph)] * 4 == recorded.samples["path"].to_list()
        assert ["tifffile.imread"] == [
            note.split()[0] for note in recorded.log.names.notes if "reads and decodes" in note
        ]


def module_of(monkeypatch: Any, name: str, **holds: Any) -> Any:
    """A library that is not installed, of which somebody has imported this module."""
    module: Any = ModuleType(name)
    vars(module).update(holds)
    monkeypatch.setitem(sys.modules, name, module)
    return module


class TestShapes:
    """Of calls as libraries have them that `.[ci]` does not bring."""

    def test_a_generator_that_decodes_is_timed_by_each_next(self, tmp_path, monkeypatch):
        """As PyAV's `container.decode`: the frames come as they did, and each of them is decode."""

        class InputContainer:
            def decode(self, video: int) -> Any:
                yield from np.eye(3)[video:]

        module_of(monkeypatch, "av.container.input", InputContainer=InputContainer)
        original = InputContainer.decode
        READ[0] = lambda _: np.stack(list(InputContainer().decode(video=1)))
        recorded = record(Files(None), tmp_path)

        decodes = recorded.spans["stage"].cast(str).to_list().count("decode")
        assert 4 * (2 + 1) == decodes  # two frames, and the end
        assert np.array_equal(np.eye(3)[1:], READ[0](0))
        assert original is InputContainer.decode

    def test_a_class_that_cannot_be_changed_is_left_alone(self, tmp_path, monkeypatch):
        """As those made in C: the data comes, and its time is the dataset's own."""

        class Fixed(type):
            def __setattr__(cls, name: str, value: Any) -> None:
                raise TypeError(name)

        class Array(metaclass=Fixed):
            def __getitem__(self, index: Any) -> Any:
                return np.zeros(index)

        module_of(monkeypatch, "zarr", Array=Array)

        assert {"getitem": 4} == stages_of(lambda _: Array()[9], tmp_path)

    def test_nothing_is_imported_by_looking(self, tmp_path, monkeypatch):
        """A library that imports its parts when they are asked for is not asked."""
        asked = []
        lazy = module_of(monkeypatch, "imageio.v3", __getattr__=asked.append)

        stages_of(lambda _: 0, tmp_path)

        assert not asked
        assert lazy.imread is None  # it would have answered

    def test_a_method_of_a_library_is_a_stage(self, tmp_path, monkeypatch):
        """As nibabel's: reading happens when the array is taken, after a stage of its own."""

        class ArrayProxy:
            def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
                return np.zeros(9)

        module_of(monkeypatch, "nibabel", load=lambda path: ArrayProxy())
        module_of(monkeypatch, "nibabel.arrayproxy", ArrayProxy=ArrayProxy)
        read = lambda _: sys.modules["nibabel"].load("x.nii")  # noqa: E731 - as a dataset's line

        assert {"getitem": 4, "fetch": 4, "decode": 4} == stages_of(read, tmp_path)

    @pytest.mark.slow
    def test_rows_of_a_table_are_the_datasets_own_code(self, tmp_path):
        """Stacks name the function that looks them up, which is what to change, and at no cost."""
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"x": range(8)})

        assert {"getitem": 4} == stages_of(lambda i: frame.iloc[i], tmp_path)

    def test_compressed_arrays_are_read_where_they_are_taken(self, tmp_path):
        """`numpy.load` of an npz opens it; its arrays are read by their names."""
        np.savez_compressed(tmp_path / "x.npz", x=np.zeros(99))
        READ[0] = lambda _: np.load(tmp_path / "x.npz")["x"]
        spans = record(Files(None), tmp_path).spans

        assert 4 * 2 <= spans["stage"].cast(str).to_list().count("fetch")


class TestTransforming:
    def test_in_the_datasets_own_code_a_call_is_a_stage(self, photograph, tmp_path):
        """Without a transform around them, library calls have stages of their own."""
        image = Image.open(photograph).convert("RGB")
        found = stages_of(lambda _: F.resize(image.crop((0, 0, 99, 99)), [32, 32]), tmp_path)

        assert {"getitem": 4, "PIL.crop": 4, "torchvision.resize": 4} == found

    def test_in_a_transform_it_is_part_of_it(self, photograph, tmp_path):
        """Inside of a transform that has a name, they are part of that transform."""
        image = Image.open(photograph).convert("RGB")
        found = stages_of(lambda _: image, tmp_path, v1.Compose([v1.Resize(32)]))

        assert {"getitem": 4, "Resize": 4} == found

    def test_cv2_resize(self, tmp_path):
        """cv2's calls are known, too."""
        pixels = np.zeros((64, 64, 3), dtype=np.uint8)

        assert {"getitem": 4, "cv2.resize": 4} == stages_of(
            lambda _: cv2.resize(pixels, (32, 32)), tmp_path
        )


def test_file_and_pixels_of_each_sample(photograph, tmp_path):
    """Each sample knows the image it opened: its path and its size in pixels."""
    READ[0] = lambda _: Image.open(photograph)

    samples = record(Files(None), tmp_path).samples

    assert [str(photograph)] * 4 == samples["path"].to_list()
    assert [(400, 300)] * 4 == list(samples.select("width", "height").iter_rows())


def test_a_file_that_was_never_named_is_unknown(photograph, tmp_path):
    """A process that ends before it has named a file leaves the path open, not another's."""
    READ[0] = lambda _: Image.open(photograph)
    log = record(Files(None), tmp_path).log

    samples = decode(replace(log, paths=[]), origin_ns=0).samples

    assert [None] * 4 == samples["path"].to_list()


def test_nothing_stays_replaced(photograph, tmp_path):
    """After a recording every library function is the original, also where it was imported to."""
    before = (open, Image.open, Image.Image.convert, np.load, cv2.resize, F.resize, Path.read_bytes)

    stages_of(lambda _: Image.open(photograph), tmp_path)

    after = (open, Image.open, Image.Image.convert, np.load, cv2.resize, F.resize, Path.read_bytes)
    assert all(a is b for a, b in zip(before, after, strict=True))
