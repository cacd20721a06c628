"""Library calls: reading and decoding wherever they happen, transforming calls where unnamed."""

import sys
import tarfile
import zipfile
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


class Files(Dataset):
    """Reads item number `index` by a function."""

    def __init__(self, read: Any, transform: Any = None) -> None:
        self.items = range(8)
        self.reader_of_mine = [read]  # not a name that promises anything
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        x = READ[0](index)
        return float(np.asarray(self.transform(x) if self.transform else x).sum())


READ: list[Any] = [None]


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    path = tmp_path / "photograph.jpg"
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def stages_of(read: Any, tmp_path: Path, transform: Any = None) -> dict[str, int]:
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

    def test_numpy(self, tmp_path):
        np.save(path := tmp_path / "x.npy", np.zeros(9))
        assert {"getitem": 4, "fetch": 4} == stages_of(lambda _: np.load(path), tmp_path)

    def test_h5py(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            data = file.create_dataset("x", data=np.arange(8))
            assert {"getitem": 4, "fetch": 4} == stages_of(lambda i: data[i], tmp_path)


class TestContainers:
    """Seeking, reading and unpacking a sample are separate stages if the library separates them."""

    @pytest.mark.parametrize(
        "read",
        [
            lambda archive: archive.read("photograph.jpg"),
            lambda archive: archive.open("photograph.jpg").read(),
        ],
        ids=["read", "open"],
    )
    def test_zip(self, read, photograph, tmp_path):
        with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(photograph, "photograph.jpg")
        with zipfile.ZipFile(tmp_path / "x.zip") as archive:
            stages = stages_of(lambda _: len(read(archive)), tmp_path)

        assert {"getitem": 4, "seek": 4, "fetch": 4, "unpack": 4} == stages

    def test_tar(self, photograph, tmp_path):
        with tarfile.open(tmp_path / "x.tar", "w") as archive:
            for number in range(9):
                archive.add(photograph, f"{number}.jpg")
        with tarfile.open(tmp_path / "x.tar") as archive:

            def read(_: int) -> int:
                return len(archive.extractfile(archive.next()).read())

            assert {"getitem": 4, "seek": 4, "fetch": 4} == stages_of(read, tmp_path)

    def test_a_failing_call_fails_as_before(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            stages_of(lambda _: Image.open(tmp_path / "none.jpg"), tmp_path)


class TestDecoding:
    def test_pil_decodes_where_the_pixels_are_touched(self, photograph, tmp_path):
        """`Image.open` is fetch; the first access to the pixels is decode, in any transform."""
        stages = stages_of(
            lambda _: Image.open(photograph), tmp_path, v1.Compose([v1.CenterCrop(64)])
        )

        assert {"getitem": 4, "fetch": 4, "decode": 4, "CenterCrop": 4} == stages

    @pytest.mark.parametrize("format_", ["PNG", "WEBP", "GIF", "TIFF", "BMP"])
    def test_other_formats_of_pil(self, format_, photograph, tmp_path):
        path = tmp_path / "photograph.any"
        Image.open(photograph).save(path, format=format_)

        assert 4 == stages_of(lambda _: Image.open(path), tmp_path)["decode"]

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_torchvision(self, photograph, tmp_path):
        """`read_image` is fetch and decode, also when it was imported by name."""
        stages = stages_of(lambda _: vision_io.read_image(str(photograph)), tmp_path)

        assert {"getitem": 4, "fetch": 4, "decode": 4} == stages

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
        tifffile = module_of(monkeypatch, "tifffile", imread=lambda _: np.zeros(9))

        READ[0] = lambda _: tifffile.imread(photograph)
        recorded = record(Files(None), tmp_path)

        assert 4 == recorded.spans["stage"].to_list().count("decode")
        assert [str(photograph)] * 4 == recorded.samples["path"].to_list()
        assert ["tifffile.imread"] == [
            note.split()[0] for note in recorded.log.names.notes if "reads and decodes" in note
        ]


def module_of(monkeypatch: Any, name: str, **holds: Any) -> Any:
    """Return a stand-in for an imported module of a library that is not installed."""
    module: Any = ModuleType(name)
    vars(module).update(holds)
    monkeypatch.setitem(sys.modules, name, module)
    return module


class TestShapes:
    """Call shapes of libraries that `.[ci]` does not install."""

    def test_a_generator_that_decodes_is_timed_by_each_next(self, tmp_path, monkeypatch):
        """Each frame of a generator like PyAV's `container.decode` is timed as decode."""

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


class TestTransforming:
    def test_a_call_in_the_datasets_own_code_is_a_stage(self, photograph, tmp_path):
        """Library calls outside any transform have stages of their own."""
        image = Image.open(photograph).convert("RGB")
        stages = stages_of(lambda _: F.resize(image.crop((0, 0, 99, 99)), [32, 32]), tmp_path)

        assert {"getitem": 4, "PIL.crop": 4, "torchvision.resize": 4} == stages

    def test_a_call_in_a_transform_is_part_of_the_transform(self, photograph, tmp_path):
        """Library calls inside a named transform get no stage of their own."""
        image = Image.open(photograph).convert("RGB")
        stages = stages_of(lambda _: image, tmp_path, v1.Compose([v1.Resize(32)]))

        assert {"getitem": 4, "Resize": 4} == stages


def test_file_and_pixels_of_each_sample(photograph, tmp_path):
    READ[0] = lambda _: Image.open(photograph)

    samples = record(Files(None), tmp_path).samples

    assert [str(photograph)] * 4 == samples["path"].to_list()
    assert [(400, 300)] * 4 == list(samples.select("width", "height").iter_rows())


def test_nothing_stays_replaced(photograph, tmp_path):
    """After a recording every library function is the original, also where it was imported to."""

    def functions() -> list[Any]:
        of_pil = Image.open, Image.Image.convert
        return [open, *of_pil, np.load, cv2.resize, F.resize, Path.read_bytes]

    before = functions()

    stages_of(lambda _: Image.open(photograph), tmp_path)

    assert all(a is b for a, b in zip(before, functions(), strict=True))
