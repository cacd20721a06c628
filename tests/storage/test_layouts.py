"""`ss.layouts`: every layout yields the same samples, and the result names the best layout."""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.build_storage import no_layouts, some_layouts
from support.loaders import Noise, NoiseStream
from torch.utils.data import DataLoader, Dataset

import stallscope as ss
from stallscope.loops.cached_values import same
from stallscope.verbs.storage import containers
from stallscope.verbs.storage.containers import KINDS, RawSamples, ReadTimes, missing
from stallscope.verbs.storage.layout_result import RECIPES, sentence
from stallscope.verbs.storage.reads import COLD

PIXELS = 96
BLOBS = [[bytes([number]) * (number * 700 + 1), b"two"] for number in range(20)]


class ResizeIt:
    """A resize of the user's, recognized by its name."""

    def __init__(self, size) -> None:
        self.size = size

    def __call__(self, image):
        image = image.resize((self.size, self.size))
        return torch.from_numpy(np.asarray(image, np.float32)) + torch.rand(1)


class Photos(Dataset):
    """An image and its text, in files of their own; the transform draws at random."""

    def __init__(self, folder, opener=Image.open) -> None:
        self.folder, self.opener, self.shrink = Path(folder), opener, ResizeIt(32)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index):
        with self.opener(self.folder / f"{index:02}.jpg") as image:
            pixels = self.shrink(image)
        return pixels, (self.folder / f"{index:02}.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def photos():
    """Yield a dataset of forty small images with texts."""
    with tempfile.TemporaryDirectory() as name:
        rng = np.random.default_rng(0)
        for number in range(40):
            pixels = rng.integers(0, 255, (PIXELS, PIXELS + number, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(Path(name, f"{number:02}.jpg"))
            Path(name, f"{number:02}.txt").write_text(f"label {number}", encoding="utf-8")
        yield Photos(name)


class FromBytes(Dataset):
    """Samples that are made of bytes in memory."""

    def __init__(self, dataset, raws) -> None:
        self.dataset, self.raws = dataset, raws

    def __len__(self) -> int:
        return len(self.raws)

    def __getitem__(self, number):
        return containers.made_of(self.dataset, self.raws[number])


def raws_of(dataset, indices):
    """Return the files of samples, as a worker captures them."""
    loader = DataLoader(
        RawSamples(dataset), batch_sampler=[indices], num_workers=1, collate_fn=list
    )
    return next(iter(loader))


class TestContainers:
    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
    def test_gives_back_what_was_written(self, kind, tmp_path):
        """Every sample is read back once, with its time, in any order."""
        if why := missing(kind):
            pytest.skip(why)
        container = kind(tmp_path, (".bin", ".txt"))
        container.write(BLOBS)
        order = list(reversed(range(20)))
        reading = ReadTimes(container, [2] * 20, order)
        timed_reads = list(DataLoader(reading, batch_size=None, num_workers=1))

        assert set(order) == {number for number, _ in timed_reads} and 20 == len(timed_reads)
        assert all(took_s > 0 for _, took_s in timed_reads)
        assert dict(enumerate(BLOBS)) == dict(container.read(order, [2] * 20))
        assert sum(len(blob) for parts in BLOBS for blob in parts) <= sum(
            path.stat().st_size for path in container.files()
        )


class TestServing:
    def test_keeps_every_file_that_a_sample_opens(self, photos):
        raws = raws_of(photos, [7, 3])

        for raw, index in zip(raws, (7, 3), strict=True):
            assert [f"{index:02}.jpg", f"{index:02}.txt"] == [Path(path).name for path in raw.paths]
            assert [Path(path).read_bytes() for path in raw.paths] == list(raw.blobs)

    def test_other_bytes_pass_through_the_users_own_code(self, photos):
        first, second = raws_of(photos, [1, 2])
        swapped = [replace(first, blobs=second.blobs), replace(second, blobs=first.blobs)]

        loader = DataLoader(FromBytes(photos, swapped), batch_size=None, num_workers=1)

        assert ["label 2", "label 1"] == [text for _, text in loader]


def compared(dataset, budget_s=8.0, **named):
    """Return the result of `ss.layouts`, with a simulated step."""
    loader = DataLoader(dataset, 4, num_workers=1, shuffle=True)
    return ss.layouts(loader, ss.simulated_step(0.0005), budget_s=budget_s, **named)


class TestLayouts:
    @pytest.mark.slow
    def test_of_images(self, photos, tmp_path):
        """Every installed layout is a row, and the folder is empty afterwards."""
        before = torch.get_rng_state()

        layouts = compared(photos, 30.0, folder=tmp_path)

        table = layouts.table()
        kinds = {kind.name for kind in KINDS if not missing(kind)}
        assert kinds <= set(table.filter(~table["resized"])["kind"])
        assert "files" in set(table.filter(table["rounds"] > 0)["kind"])
        assert {"files", "tar shards"} >= set(table.filter(table["resized"])["kind"])
        assert 16 <= layouts.circumstances.samples <= 40  # what a busy machine keeps in its time
        assert 32 == layouts.circumstances.image_pixels
        assert all(row["convert_s"] > 0 for row in table.to_dicts() if row["rounds"])
        assert not list(tmp_path.iterdir())
        assert same(before, torch.get_rng_state())

    def test_ends_in_time(self, photos, tmp_path):
        """A small budget leaves layouts unmeasured, but no file behind."""
        layouts = compared(photos, 1.5, folder=tmp_path)

        assert layouts.written.height >= len(KINDS)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("dataset", "words"), [(Noise(), "opens a file of its own"), (NoiseStream(), "is a stream")]
    )
    def test_a_dataset_without_files_is_refused(self, dataset, words):
        loader = DataLoader(dataset, 4)

        with pytest.raises(ss.StallscopeError, match=words):
            ss.layouts(loader, budget_s=3.0)

    def test_samples_and_budget_are_numbers(self, photos):
        with pytest.raises(ss.StallscopeError, match="samples=3"):
            compared(photos, samples=3)


def photographs(folder):
    """Write four JPEGs into two folders, and return their bytes by name."""
    for number, name in enumerate(("a/0.jpg", "a/1.jpg", "b/2.jpg", "b/3.jpg")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (PIXELS, 2 * PIXELS), (number * 60, 0, 0)).save(path)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jpg")}


def read_back(kind, out):
    """Return the images that a recipe wrote, by name."""
    if kind == "tar shards":
        import webdataset

        shards = [str(path) for path in out.glob("*.tar")]
        samples = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
        return {sample["name.txt"].decode(): sample["jpg"] for sample in samples}
    if kind == "LMDB":
        import lmdb

        with lmdb.open(str(out), readonly=True) as tree, tree.begin() as transaction:
            return {key.decode(): value for key, value in transaction.cursor()}
    if kind == "HDF5":
        import h5py

        with h5py.File(out.with_suffix(".h5")) as file:
            names = [name.decode() for name in file["name"]]
            return dict(zip(names, map(bytes, file["jpg"]), strict=True))
    raise AssertionError(kind)


class TestRecipes:
    @pytest.mark.parametrize(
        ("kind", "needs"), [("tar shards", "webdataset"), ("LMDB", "lmdb"), ("HDF5", "h5py")]
    )
    def test_container_holds_the_same_files(self, kind, needs, tmp_path):
        pytest.importorskip(needs)
        wanted = photographs(tmp_path / "in")

        self.run(some_layouts().recipe(kind), tmp_path)

        assert wanted == read_back(kind, tmp_path / "out")

    def test_smaller_images_have_the_size_that_is_used(self, tmp_path):
        wanted = photographs(tmp_path / "in")

        self.run(some_layouts(image_pixels=48).recipe("smaller images"), tmp_path)

        images = {
            path.relative_to(tmp_path / "out"): Image.open(path)
            for path in tmp_path.rglob("out/*/*.jpg")
        }
        assert {*wanted} == {*map(str, images)}
        assert {(48, 96)} == {image.size for image in images.values()}

    def test_each_has_ten_lines_at_most(self):
        assert all(len(source.splitlines()) <= 10 for source in RECIPES.values())

    def test_the_recommended_layout_prints_its_recipe(self):
        text = str(some_layouts())

        assert "image.resize" in text
        assert "webdataset.ShardWriter" in text

    def test_unknown_kind_names_the_recipes(self):
        with pytest.raises(ss.StallscopeError, match="kind='zip': there are recipes for 'smaller"):
            some_layouts().recipe("zip")

    @staticmethod
    def run(recipe, folder):
        """Run a recipe as its reader would, with both folders filled in."""
        source = recipe.replace('"DATA"', repr(str(folder / "in")))
        source = source.replace('"OUT"', repr(str(folder / "out")))
        environment = {**os.environ, "HF_HOME": str(folder / "cache")}
        subprocess.run([sys.executable, "-c", source], env=environment, check=True)


class TestSentence:
    @pytest.mark.parametrize(
        ("rates", "conditions", "words"),
        [
            (None, {"image_pixels": None}, "Tar shards, smaller would speed up the loop by 2.51×"),
            (
                {("files", False): 400.0, ("LMDB", False): 800.0, ("files", True): 810.0},
                {},
                "LMDB would speed up the loop by 2.00×",
            ),
            (
                None,
                {"wanted_per_s": 200.0},
                (
                    "Keep the files: cold and shuffled they give 398 samples/s, 2.0× what the "
                    "step needs"
                ),
            ),
            (
                {("files", False): 400.0, ("HDF5", False): 404.0},
                {"rounds": 16},
                "Keep the files: no layout speeds up the loop. Best: HDF5, 1.01×",
            ),
            ({("files", False): 400.0, ("HDF5", False): 404.0}, {}, "(best: HDF5, 1.01×"),
            ({("files", False): 400.0}, {}, "Only the current files were measured: raise"),
            (None, {"rounds": 0}, "No layout was compared before the budget ran out: raise"),
        ],
        ids=["faster", "same data", "slow step", "no gain", "open", "files alone", "nothing"],
    )
    def test_names_the_layout_to_use(self, rates, conditions, words):
        assert words in sentence(some_layouts(rates, **conditions))

    def test_the_same_data_is_preferred_to_smaller_images(self):
        best = some_layouts({("files", False): 400.0, ("tar shards", True): 1_600.0}).best
        assert ("tar shards", True) == (best["kind"], best["resized"])

        rates = {("files", False): 400.0, ("LMDB", False): 800.0, ("files", True): 810.0}
        assert not some_layouts(rates).best["resized"]

    def test_without_layouts_there_is_no_best(self):
        assert no_layouts().best is no_layouts().files is None
        assert COLD not in str(no_layouts()).partition("\n")[0]
