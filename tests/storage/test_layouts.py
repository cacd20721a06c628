"""`ss.layouts`: every layout gives the same samples, and the answer names what a loop would get."""

from __future__ import annotations

import shutil
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
from stallscope.storage import layouts as layouts_module
from stallscope.storage import written
from stallscope.storage.containers import KINDS, missing, shuffle_share
from stallscope.storage.layout_result import sentence
from stallscope.storage.reads import COLD
from stallscope.storage.serving import KeptFiles, Served, ServedStream
from stallscope.storage.written import write_layout, written_dataset

PIXELS = 96
BLOBS = [[bytes([number]) * (number * 700 + 1), b"two"] for number in range(20)]


class ResizeIt:
    """A resize of the user's, by its name."""

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
    """A folder of forty small images with texts."""
    with tempfile.TemporaryDirectory() as name:
        rng = np.random.default_rng(0)
        for number in range(40):
            pixels = rng.integers(0, 255, (PIXELS, PIXELS + number, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(Path(name, f"{number:02}.jpg"))
            Path(name, f"{number:02}.txt").write_text(f"label {number}", encoding="utf-8")
        yield Photos(name)


def raws_of(dataset, indices):
    """The files of samples, as a worker keeps them."""
    loader = DataLoader(KeptFiles(dataset), batch_sampler=[indices], num_workers=1, collate_fn=list)
    return next(iter(loader))


class TestContainers:
    @pytest.mark.parametrize(
        "kind",
        [
            pytest.param(kind, marks=pytest.mark.slow if kind.name == "Arrow" else ())
            for kind in KINDS
        ],
        ids=lambda kind: kind.name,
    )
    def test_gives_back_what_was_written(self, kind, tmp_path):
        """In any order where it can be asked, and each once where it is read through."""
        if why := missing(kind):
            pytest.skip(why)
        container = kind(str(tmp_path), (".bin", ".txt"))
        container.write(BLOBS)

        if kind.is_random:
            assert [BLOBS[at] for at in (3, 0, 19)] == [container.get(at, 2) for at in (3, 0, 19)]
        for buffer in () if kind.is_random else (0, 5):
            found = dict(container.stream(buffer))
            assert dict(enumerate(BLOBS)) == found
        assert sum(len(blob) for parts in BLOBS for blob in parts) <= sum(
            path.stat().st_size for path in container.files()
        )

    def test_how_far_a_shuffle_is_from_uniform(self):
        """A buffer as large as the data is uniform; a small one over few shards is not."""
        tar = next(kind for kind in KINDS if not kind.is_random)

        found = [shuffle_share(tar, 8_000, buffer) for buffer in (8_000, 1_000, 1)]

        assert 0.95 < found[0] <= 1.0
        assert found == sorted(found, reverse=True)
        assert 1.0 == shuffle_share(KINDS[0], 8_000, 0)


class TestServing:
    def test_keeps_every_file_that_a_sample_opens(self, photos):
        """And a sample that is made of these bytes is the very same."""
        raws = raws_of(photos, [7, 3])

        for raw, index in zip(raws, (7, 3), strict=True):
            assert [f"{index:02}.jpg", f"{index:02}.txt"] == [Path(one).name for one in raw.paths]
            assert [Path(one).read_bytes() for one in raw.paths] == list(raw.blobs)
            assert raw.is_same is True

    def test_other_bytes_come_out_of_the_users_own_code(self, photos, tmp_path):
        """Its decode and its transforms work on what the container holds."""
        raws = raws_of(photos, [1, 2])
        swapped = [list(raws[1].blobs), list(raws[0].blobs)]
        container = KINDS[0](str(tmp_path))
        container.write(swapped)
        keys = [(raw.index, raw.paths) for raw in raws]

        loader = DataLoader(Served(photos, container, keys), batch_size=None, num_workers=1)

        assert ["label 2", "label 1"] == [text for _, text in loader]

    def test_streams_give_each_sample_once(self, photos, tmp_path):
        """Whoever of several workers has its shard."""
        pytest.importorskip("webdataset")
        raws = raws_of(photos, list(range(20)))
        container = next(kind for kind in KINDS if not kind.is_random)(
            str(tmp_path), (".jpg", ".txt")
        )
        container.write([list(raw.blobs) for raw in raws])
        stream = ServedStream(photos, container, [(raw.index, raw.paths) for raw in raws], 4)

        found = [text for _, text in DataLoader(stream, batch_size=None, num_workers=2)]

        assert sorted(f"label {number}" for number in range(20)) == sorted(found)

    def test_nothing_is_replaced_in_this_process(self, photos, tmp_path):
        """The user's own `open` is theirs."""
        before = open
        container = KINDS[0](str(tmp_path))
        container.write([[b"other"]])

        served = Served(photos, container, [(0, ("x",))])

        assert "label 0" == served[0][1]
        assert open is before


def compared(dataset, budget_s=8.0, **named):
    """What `ss.layouts` says, with a step that is a timer."""
    loader = DataLoader(dataset, 4, num_workers=1, shuffle=True)
    return ss.layouts(loader, ss.simulated_step(0.0005), budget_s=budget_s, **named)


class TestLayouts:
    @pytest.mark.slow
    def test_of_images(self, photos, tmp_path):
        """Every layout that is installed is there, what time allowed is read, nothing is left."""
        before = torch.get_rng_state()

        found = compared(photos, 12.0, folder=tmp_path)

        table = found.table()
        kinds = {kind.name for kind in KINDS if not missing(kind) and not kind.import_s}
        assert kinds <= set(table.filter(~table["resized"])["kind"])
        assert "files" in set(table.filter(table["rounds"] > 0)["kind"])
        assert {"files", "tar shards"} >= set(table.filter(table["resized"])["kind"])
        assert (40, 32) == (found.circumstances.samples, found.circumstances.image_pixels)
        assert 0 < found.circumstances.pixel_difference < 1
        assert all(row["convert_s"] > 0 for row in table.to_dicts() if row["rounds"])
        assert not list(tmp_path.iterdir())
        assert same(before, torch.get_rng_state())

    def test_ends_in_time(self, photos, tmp_path):
        """A budget that is too small for all of them leaves some unmeasured, and nothing behind."""
        found = compared(photos, 1.5, folder=tmp_path)

        assert found.written.height >= len(KINDS)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("dataset", "words"),
        [(Noise(), "opens a file of its own"), (NoiseStream(), "is a stream")],
    )
    def test_what_has_no_files_is_refused(self, dataset, words):
        """One sentence says why, and what to ask instead."""
        loader = DataLoader(dataset, 4)

        with pytest.raises(ss.StallscopeError, match=words):
            ss.layouts(loader, budget_s=3.0)

    def test_a_full_disk_is_seen_before(self, photos, tmp_path, monkeypatch):
        """Nothing is written where there is no room for all of it."""
        monkeypatch.setattr(layouts_module, "_ROOM_SHARE", 1e-9)

        with pytest.raises(ss.StallscopeError, match="ask for fewer samples"):
            compared(photos, 4.0, folder=tmp_path)
        assert not list(tmp_path.iterdir())

    def test_samples_and_budget_are_numbers(self, photos):
        """Said at once."""
        with pytest.raises(ss.StallscopeError, match="samples=3"):
            compared(photos, samples=3)


RANDOM_KINDS = [kind.name for kind in KINDS if kind.is_random and not missing(kind)]


def seeded(dataset, number):
    """A sample, its random draw the same each time."""
    torch.manual_seed(number)
    return dataset[number]


def small_parts(monkeypatch, samples):
    """So that a few samples make several parts."""
    monkeypatch.setattr(written, "_PART_SAMPLES", samples)


def interrupted_after(monkeypatch, parts):
    """Ctrl-C, while the part after so many is written."""
    save, saved = written._save, []

    def saves(path, value):
        saved.append(path)
        if len(saved) > parts + 1:  # the head comes first
            raise KeyboardInterrupt
        save(path, value)

    monkeypatch.setattr(written, "_save", saves)


class TestWrite:
    @pytest.mark.parametrize(
        "kind",
        [
            pytest.param(name, marks=pytest.mark.slow if name == "Arrow" else ())
            for name in RANDOM_KINDS
        ],
    )
    def test_takes_the_old_ones_place(self, photos, tmp_path, monkeypatch, kind):
        """Same length, same samples, in this process and in workers, and nothing stays replaced."""
        small_parts(monkeypatch, 16)
        state, before = torch.get_rng_state(), open

        found = write_layout(DataLoader(photos, 4), tmp_path / "out", kind)

        assert same(state, torch.get_rng_state())
        assert 40 == len(found)
        assert 3 == len(list((tmp_path / "out").glob("0*.json")))
        for number in (0, 17, 39):
            assert same(seeded(photos, number), seeded(found, number))
        assert open is before
        texts = [text for _, text in DataLoader(found, batch_size=None, num_workers=2)]
        assert [f"label {number}" for number in range(40)] == texts

    def test_does_not_need_the_files_any_more(self, photos, tmp_path):
        """They may be gone, or be others; what was written is what is read."""
        folder = shutil.copytree(photos.folder, tmp_path / "in")
        dataset = Photos(folder)
        found = write_layout(DataLoader(dataset, 4), tmp_path / "out", "zip")
        wanted = seeded(dataset, 7)
        shutil.rmtree(folder)

        assert same(wanted, seeded(found, 7))

    def test_leaves_no_file_open(self, photos, tmp_path):
        """Of this process's, once nobody has the dataset; two of them share what is open."""
        found = write_layout(DataLoader(photos, 4), tmp_path, "zip")
        both = [found[0], written_dataset(tmp_path, photos)[0]]

        del found
        opened = [path.resolve() for path in Path("/proc/self/fd").iterdir() if path.exists()]

        assert "label 0" == both[0][1] == both[1][1]
        assert not [path for path in opened if tmp_path in path.parents]

    def test_a_stream_gives_each_sample_once(self, photos, tmp_path, monkeypatch):
        """Whoever of several workers has its shard; shuffled, as the loader was."""
        pytest.importorskip("webdataset")
        small_parts(monkeypatch, 16)

        found = write_layout(DataLoader(photos, 4, shuffle=True), tmp_path, "tar shards")
        texts = [text for _, text in DataLoader(found, batch_size=None, num_workers=2)]

        wanted = [f"label {number}" for number in range(40)]
        assert wanted == sorted(texts, key=lambda text: int(text[6:]))
        assert wanted != texts
        again = written_dataset(tmp_path, photos)
        assert wanted == [text for _, text in again]
        assert (40, 32) == (len(again), again.shrink.size)

    def test_smaller_images(self, photos, tmp_path):
        """Their short side has so many pixels, and the texts stay."""
        found = write_layout(DataLoader(photos, 4), tmp_path, "files", pixels=48)

        sizes = {min(Image.open(path).size) for path in tmp_path.rglob("*.jpg")}
        assert ({48}, "label 3") == (sizes, found[3][1])

    def test_goes_on_where_it_was(self, photos, tmp_path, monkeypatch):
        """What was whole is not written again, what was half written is; and it is all said."""
        small_parts(monkeypatch, 8)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as stopped:
            interrupted_after(patch, 2)
            write_layout(DataLoader(photos, 4), tmp_path, "zip")
        assert any("16 of 40 samples are written" in one for one in stopped.value.__notes__)
        with pytest.raises(ss.StallscopeError, match="not whole: 16 of 40 samples"):
            written_dataset(tmp_path, photos)
        first = (tmp_path / "00000/data.zip").stat().st_mtime_ns
        (tmp_path / "00002").mkdir()  # as a process that was killed leaves it
        (tmp_path / "00002/data.zip").write_bytes(b"half")

        found = write_layout(DataLoader(photos, 4), tmp_path, "zip")

        assert first == (tmp_path / "00000/data.zip").stat().st_mtime_ns
        assert [f"label {number}" for number in range(40)] == [text for _, text in found]

    def test_an_interrupt_of_the_first_part_leaves_nothing(self, photos, tmp_path, monkeypatch):
        """The folder neither."""
        interrupted_after(monkeypatch, 0)

        with pytest.raises(KeyboardInterrupt) as stopped:
            write_layout(DataLoader(photos, 4), tmp_path / "out", "zip")

        assert any("nothing was written" in one for one in stopped.value.__notes__)
        assert not list(tmp_path.iterdir())

    def test_what_is_not_read_back_is_no_part(self, photos, tmp_path, monkeypatch):
        """A byte that the disk has lost is seen at once."""
        zipped = next(kind for kind in KINDS if kind.name == "zip")
        take = zipped._take
        monkeypatch.setattr(
            zipped,
            "_take",
            lambda self, number, parts: [
                blob[:-1] + b"?" if number == 5 else blob for blob in take(self, number, parts)
            ],
        )

        with pytest.raises(ss.StallscopeError, match="sample 5 was not read back"):
            write_layout(DataLoader(photos, 4), tmp_path / "out", "zip")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("there", "kind", "words"),
        [
            ("notes.txt", "zip", "holds other files"),
            ("", "sip", "kind='sip'"),
            ("stallscope-layout.json", "zip", "is damaged|cannot be read"),
        ],
    )
    def test_refuses_before_it_reads_anything(self, photos, tmp_path, there, kind, words):
        """One sentence; what lies there stays."""
        if there:
            (tmp_path / there).write_text("mine")

        with pytest.raises(ss.StallscopeError, match=words):
            write_layout(DataLoader(photos, 4), tmp_path, kind)
        assert [there] * bool(there) == [path.name for path in tmp_path.iterdir()]

    def test_refuses_another_layout_and_another_dataset(self, photos, tmp_path):
        """Of what was written, it is named which it is."""
        write_layout(DataLoader(photos, 4), tmp_path, "zip")

        with pytest.raises(ss.StallscopeError, match=r"another layout \(kind 'zip'\)"):
            write_layout(DataLoader(photos, 4), tmp_path, "files")
        with pytest.raises(ss.StallscopeError, match=r"40 samples, and this Subset 3"):
            written_dataset(tmp_path, torch.utils.data.Subset(photos, [1, 2, 3]))
        moved = Photos(shutil.copytree(photos.folder, tmp_path / "moved"))
        with pytest.raises(ss.StallscopeError, match="give the dataset that was written"):
            written_dataset(tmp_path, moved)[0]

    def test_a_full_disk_is_seen_before(self, photos, tmp_path, monkeypatch):
        """Nothing is written where there is no room for all of it."""
        room = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: room)

        with pytest.raises(ss.StallscopeError, match="40 samples need about"):
            write_layout(DataLoader(photos, 4), tmp_path / "out", "zip")
        assert not list(tmp_path.iterdir())

    def test_what_has_no_files_is_refused(self, tmp_path):
        """And nothing is left."""
        with pytest.raises(ss.StallscopeError, match="opens no file of its own"):
            write_layout(DataLoader(Noise(), 4), tmp_path / "out", "zip")
        assert not list(tmp_path.iterdir())

    def test_by_the_comparison(self, photos, tmp_path):
        """It knows what was compared; one that was loaded has to be told."""
        compared_now = replace(some_layouts(), target=ss.target(DataLoader(photos, 4)))

        assert "label 2" == compared_now.write(tmp_path, "zip")[2][1]
        with pytest.raises(ss.StallscopeError, match="this comparison was loaded"):
            some_layouts().write(tmp_path, "zip")
        with pytest.raises(ss.StallscopeError, match="no smaller images"):
            some_layouts(image_pixels=None).write(tmp_path, "zip", resized=True)


class TestAnswer:
    def test_a_layout_that_helps(self):
        """What the loop gets is bounded by its step."""
        found = some_layouts(image_pixels=None)

        assert (found.best["kind"], found.best["resized"]) == ("tar shards", True)
        assert sentence(found).startswith("As tar shards, smaller, the loop gets 2.52×")

    def test_the_same_data_where_it_is_as_good(self):
        """Smaller images are other data."""
        rates = {("files", False): 400.0, ("LMDB", False): 800.0, ("files", True): 810.0}

        assert "As LMDB, the loop gets 1.96×" in sentence(some_layouts(rates))

    def test_a_step_that_is_slower_than_the_files(self):
        """Storage is then not what the loop waits for."""
        said = sentence(some_layouts(wanted_per_s=200.0))

        assert said == (
            "Leave the files as they are: cold and shuffled they give 397 samples/s, 2.0× what "
            "the step asks for"
        )

    def test_no_clear_gain(self):
        """The nearest is named, and not recommended."""
        found = some_layouts({("files", False): 400.0, ("zip", False): 404.0})

        assert found.best is None
        assert "no layout gives the loop clearly more; nearest: zip" in sentence(found)

    def test_no_other_layout_was_read(self):
        """Then nothing is known of them, and nothing advised."""
        said = sentence(some_layouts({("files", False): 400.0}))

        assert "Only the files as they are were measured: allow more time (budget_s)" == said

    def test_nothing_was_read(self):
        """It says so."""
        assert no_layouts().best is no_layouts().files is None
        for notes in ((), ("a note",)):
            said = sentence(some_layouts(rounds=0, notes=notes))
            assert "No layout was compared: the time was over" in said
        assert COLD not in str(no_layouts()).partition("\n")[0]
