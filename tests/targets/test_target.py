"""Targets, and the error for each wrong target."""

import functools
import io
import os
import pathlib
import sys
import tarfile

import pytest
import torch
from PIL import Image
from support.faults import generators
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from stallscope.errors import TargetError
from stallscope.targets import sample
from stallscope.targets.images import MEAN, OURS, STD
from stallscope.targets.target import Target, target


class Numbers(Dataset):
    """A dataset that counts how often it is built and read."""

    built = 0
    read = 0

    def __init__(self, entries=8):
        type(self).built += 1
        self.entries = entries

    def __len__(self):
        return self.entries

    def __getitem__(self, index):
        type(self).read += 1
        return torch.tensor(index)


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(3)

    def __len__(self):
        return 3


def a_jpeg(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (60, 40), "red").save(path, format="JPEG")


def a_shard(path, members):
    """A tar of (name, content): bytes as they are, a number as a grey image of that level."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            data = content if isinstance(content, bytes) else jpeg_bytes(content)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def jpeg_bytes(brightness):
    file = io.BytesIO()
    Image.new("RGB", (60, 40), (brightness,) * 3).save(file, format="JPEG")
    return file.getvalue()


def a_module(folder, name, text):
    (folder / f"{name}.py").write_text(text, encoding="utf-8")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder of its own, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    assert sys.path == path
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if file and file.startswith(str(tmp_path)):
            del sys.modules[name]


def the_error(spec, **named):
    with pytest.raises(TargetError) as caught:
        target(spec, **named)
    return str(caught.value)


class TestLoaders:
    def test_a_loader_is_used_unchanged(self):
        loader = DataLoader(Numbers(), 2)
        built, read = Numbers.built, Numbers.read

        loader_target = target(loader)

        assert loader_target == Target(loader, name="DataLoader over Numbers")
        assert (Numbers.built, Numbers.read) == (built, read)

    def test_taking_a_loader_draws_no_random_number(self):
        loader, before = DataLoader(Numbers(), 2, shuffle=True), generators()

        target(loader)

        assert before == generators()

    def test_step_and_device_are_kept(self):
        loader_target = target(DataLoader(Numbers()), step=print, device=torch.device("cpu"))

        assert (loader_target.step, loader_target.device) == (print, torch.device("cpu"))

    def test_a_target_is_returned(self):
        original = Target([1], step=print, device="cpu", name="mine", notes=("seen",))

        assert target(original) == original
        assert target(original, step=repr) == Target([1], repr, "cpu", "mine", ("seen",))
        assert target(original, device="meta").device == "meta"

    def test_any_iterable_of_batches_is_a_target(self):
        assert target([torch.zeros(2)]).name == "list"

    def test_an_iterator_is_noted_as_measured_once(self):
        batches = iter([1, 2])

        assert "measured once" in target(batches).notes[0]
        assert list(batches) == [1, 2]

    def test_a_pair_is_a_loader_and_its_step(self):
        pair_target = target(([1], print))

        assert (pair_target.loader, pair_target.step) == ([1], print)


class TestWrongObjects:
    @pytest.mark.parametrize("dataset", [Numbers(), Stream(), Subset(Numbers(), [0])])
    def test_a_dataset_is_no_loader(self, dataset):
        """The error for a dataset suggests DataLoader(dataset, ...)."""
        message = the_error(dataset)

        assert type(dataset).__name__ in message
        assert "DataLoader(dataset, batch_size=...)" in message

    @pytest.mark.parametrize("value", [None, 3, {"a": 1}, torch.zeros(2), Numbers, print, b"x"])
    def test_a_value_without_batches_is_named(self, value):
        assert f"is a {type(value).__name__}, which yields no batches" in the_error(value)

    @pytest.mark.parametrize(
        ("spec", "named", "words"),
        [
            ((DataLoader(Numbers()),) * 2, {}, "a tuple (DataLoader, DataLoader): give one loader"),
            (DataLoader(Numbers(0)), {}, "the dataset (Numbers) of the target is empty"),
            (DataLoader(Numbers(3), 4, drop_last=True), {}, "drop_last"),
            ([], {}, "(list) has no batch"),
            ([1], {"step": 3}, "step is a int"),
            ([1], {"device": "gpu"}, "device='gpu' is not a torch device"),
        ],
    )
    def test_the_reason_is_one_sentence(self, spec, named, words):
        assert words in the_error(spec, **named)

    def test_a_missing_device_is_named(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

        assert "device='cuda:0': torch finds no such device" in the_error([1], device="cuda:0")

    def test_a_step_that_runs_nothing_is_refused(self):
        """A call of a coroutine or a generator function only creates an object."""

        async def later(batch):
            return batch

        def piecewise(batch):
            yield batch

        class Stepper:
            async def __call__(self, batch):
                return batch

        for step in (later, piecewise, Stepper(), functools.partial(later)):
            assert "calling it runs nothing" in the_error([1], step=step)


class TestFolders:
    def test_sub_folders_are_classes(self, tmp_path):
        a_jpeg(tmp_path / "cat" / "a.JPG")
        a_jpeg(tmp_path / "dog" / "deep" / "b.jpeg")
        a_jpeg(tmp_path / ".thumbs" / "c.jpg")
        (tmp_path / "dog" / "notes.txt").write_text("no image")
        (tmp_path / "empty").mkdir()

        folder_target = target(str(tmp_path))

        files = [
            (pathlib.Path(path).name, label) for path, label in folder_target.loader.dataset.files
        ]
        assert files == [("a.JPG", 0), ("b.jpeg", 1)]
        assert folder_target.name == f"{tmp_path} ({OURS})"
        assert folder_target.notes == (OURS,)

    def test_a_flat_folder_gives_batches(self, tmp_path):
        """A folder without sub-folders is one class, and its batches are ready to train on."""
        for number in range(3):
            a_jpeg(tmp_path / f"{number}.jpg")

        images, labels = next(iter(target(tmp_path).loader))

        assert images.shape == (3, 3, 224, 224)
        assert labels.tolist() == [0, 0, 0]

    def test_a_folder_without_images_says_what_is_there(self, tmp_path):
        """The error names the suffixes that were looked for and those that were found."""
        (tmp_path / "a.csv").touch()
        (tmp_path / "b.csv").touch()

        message = the_error(tmp_path)

        assert ".jpg" in message
        assert "found 2 .csv" in message
        assert str(tmp_path) in message

    def test_a_loop_of_links_counts_once(self, tmp_path):
        a_jpeg(tmp_path / "cat" / "a.jpg")
        (tmp_path / "cat" / "up").symlink_to(tmp_path)

        assert 1 == len(target(tmp_path).loader.dataset)

    def test_a_pipe_is_no_image(self, tmp_path):
        """Reading a pipe would never end; a link that leads nowhere is an image that is missing."""
        a_jpeg(tmp_path / "cat" / "a.jpg")
        (tmp_path / "cat" / "b.jpg").symlink_to("gone.jpg")
        os.mkfifo(tmp_path / "cat" / "pipe.jpg")

        names = [pathlib.Path(file.path).name for file in target(tmp_path).loader.dataset.files]

        assert names == ["a.jpg", "b.jpg"]

    def test_a_device_file_is_no_target(self):
        assert the_error("/dev/zero").startswith("'/dev/zero' is neither a file nor a folder")

    def test_an_empty_folder_is_refused(self, tmp_path):
        assert "no files at all" in the_error(tmp_path)


class TestShards:
    MEMBERS = (
        ("a.json", b"{}"),
        ("a.jpg", 10),
        ("a.txt", b"caption"),
        ("b.jpg", 20),
        ("b.png", 30),
        ("c.seg.jpg", 40),
    )

    def brightness(self, loader):
        """Return the grey level of each image before normalising, rounded to tens."""
        first_channel = [float(image[0].mean()) for batch in loader for image in batch]
        return [round((value * STD[0] + MEAN[0]) * 25.5) * 10 for value in first_channel]

    def test_each_key_gives_its_first_image(self, tmp_path):
        a_shard(tmp_path / "x.tar", self.MEMBERS)

        shard_target = target(tmp_path / "x.tar")

        (batch,) = list(shard_target.loader)
        assert batch.shape == (2, 3, 224, 224)
        assert self.brightness([batch]) == [10, 20]
        assert shard_target.notes == (OURS,)
        assert OURS in shard_target.name

    @pytest.mark.parametrize("name", ["s-{08..10}.tar", "s-*.tar", "."])
    def test_ranges_globs_and_folders_find_every_shard(self, here, name):
        for number in ("08", "09", "10"):
            a_shard(here / f"s-{number}.tar", [("a.jpg", 10)])

        shards = target(name).loader.dataset.shards

        assert [pathlib.Path(shard).name for shard in shards] == [
            "s-08.tar",
            "s-09.tar",
            "s-10.tar",
        ]

    def test_workers_share_the_shards(self, tmp_path, monkeypatch):
        monkeypatch.setattr("stallscope.targets.images.usable_cores", lambda: 2)
        for number in range(3):
            a_shard(tmp_path / f"{number}.tar", [("a.jpg", 10 * number), ("b.jpg", 30)])

        loader = target(tmp_path).loader

        assert loader.num_workers == 2
        assert sorted(self.brightness(loader)) == [0, 10, 20, 30, 30, 30]

    def test_a_missing_shard_is_named(self, tmp_path):
        a_shard(tmp_path / "s-0.tar", [("a.jpg", 10)])

        assert "s-1.tar" in the_error(str(tmp_path / "s-{0..3}.tar"))

    def test_a_shard_without_images_says_what_is_there(self, tmp_path):
        a_shard(tmp_path / "x.tar", [("a.json", b"{}")])

        assert "found a.json" in the_error(tmp_path / "x.tar")

    def test_a_pipe_is_no_shard(self, tmp_path):
        a_shard(tmp_path / "a.tar", [("a.jpg", 10)])
        os.mkfifo(tmp_path / "pipe.tar")

        for spec in (tmp_path, tmp_path / "*.tar"):
            assert [str(tmp_path / "a.tar")] == target(spec).loader.dataset.shards
        assert "pipe.tar' is neither a file nor a folder" in the_error(tmp_path / "pipe.tar")
        assert "no tar shard" in the_error(tmp_path / "p*.tar")

    def test_a_file_that_is_no_tar_is_refused(self, tmp_path):
        a_jpeg(tmp_path / "a.jpg")

        assert "a.jpg' is not a tar archive" in the_error(tmp_path / "a.jpg")


class TestFactories:
    LOADER = (
        "from torch.utils.data import DataLoader\n"
        "from support.planted_costs import SlowFetchDataset\n"
    )

    def test_a_factory_is_called(self, here):
        a_module(
            here, "train_a", self.LOADER + "def make(): return DataLoader(SlowFetchDataset(2))"
        )

        factory_target = target("train_a:make")

        assert isinstance(factory_target.loader, DataLoader)
        assert factory_target.name == "train_a:make"

    def test_a_factory_may_return_its_step(self, here):
        """A pair (loader, step) is a loader and its step; a given step goes first."""
        a_module(here, "train_b", "def make(): return [1], print")

        assert target("train_b:make").step is print
        assert target("train_b:make", step=repr).step is repr

    def test_a_factory_may_return_a_target(self, here):
        a_module(here, "train_c", "import stallscope as ss\ndef make(): return ss.target([1])")

        assert target("train_c:make") == Target([1], name="train_c:make")

    def test_the_notebooks_factory_has_the_name_of_its_target(self, here):
        a_module(here, "my_target", "import stallscope as ss\ndef target(): return ss.target([1])")

        assert target("my_target:target") == Target([1], name="list")


class TestWrongFactories:
    @pytest.mark.parametrize(
        ("spec", "text", "words"),
        [
            ("no_such_module:make", "", "no module 'no_such_module': looked in '{here}'"),
            ("train_h.py:loader", "", "write 'train_h', without .py"),
            ("train_h:make_lader", "def make_loader(): ...", "did you mean 'make_loader'?"),
            (
                "train_h:data",
                "from support.planted_costs import SlowFetchDataset as D\ndata = D(1)",
                "is a dataset (SlowFetchDataset)",
            ),
        ],
    )
    def test_the_reason_is_one_sentence(self, here, spec, text, words):
        a_module(here, "train_h", text)

        assert words.format(here=here) in the_error(spec)

    @pytest.mark.parametrize(
        "text",
        ["import no_such_library", "from os import no_such_name", "1 / 0", "raise SystemExit(2)"],
    )
    def test_an_error_of_the_module_is_its_own(self, here, text):
        a_module(here, "train_i", text)

        with pytest.raises(TargetError, match="importing your module 'train_i' raised") as caught:
            target("train_i:make")

        cause = caught.value.__cause__
        assert f"{type(cause).__name__}: {cause}" in str(caught.value)

    def test_an_error_of_the_factory_is_named(self, here):
        a_module(here, "train_k", "def make(): raise KeyError('root')")

        with pytest.raises(
            TargetError, match=r"without arguments, raised KeyError: 'root' .*line \d+"
        ) as caught:
            target("train_k:make")

        assert isinstance(caught.value.__cause__, KeyError)


class TestSample:
    def test_holds_every_photograph_forty_times(self):
        files = sample.sample_loader().dataset.files

        photographs = set(files)
        assert len(files) == 40 * len(photographs)
        assert {pathlib.Path(file.path).parent.name for file in photographs} == {"earth", "space"}

    def test_gives_a_training_batch(self):
        """A batch of the sample is 32 normalised images of 224 by 224, and 32 labels."""
        images, labels = next(iter(sample.sample_loader()))

        assert images.shape == (32, 3, 224, 224)
        assert images.dtype == torch.float32
        assert images.min() < 0
        assert set(labels.tolist()) == {0, 1}

    def test_says_that_torchvision_is_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torchvision.transforms", None)

        version = torch.__version__[:3]
        assert f"torchvision that belongs to your torch {version}" in the_error("sample")


class TestWords:
    def test_the_sample_is_built_in(self):
        sample_target = target("sample")

        assert len(sample_target.loader.dataset) == 1920
        assert sample_target.name == "sample"
        assert "not yours" in sample_target.notes[0]

    @pytest.mark.parametrize("text", ["Sample", "sampel", "samples"])
    def test_a_typo_gets_a_suggestion(self, text):
        assert "did you mean 'sample'?" in the_error(text)

    @pytest.mark.parametrize("text", ["", "nonsense", "two words"])
    def test_a_wrong_word_lists_the_targets(self, text):
        message = the_error(text)

        assert f"{text!r} is not a target. A target is" in message
        assert "'package.module:factory'" in message

    @pytest.mark.parametrize(
        "text", ["no/such/folder", r"C:\data", "C:/data", "~/no_such", "a.zip"]
    )
    def test_a_missing_path_is_named(self, text):
        assert f"there is no {text!r}" in the_error(text)
