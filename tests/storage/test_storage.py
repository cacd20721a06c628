"""`ss.storage`: what of a file lies in the page cache, what reading it takes, what is asked for."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from support.build_storage import a_storage, no_storage, warm_storage
from support.device_loops import Naps
from support.loaders import Noise
from torch.utils.data import DataLoader, Dataset

import stallscope as ss
from stallscope.hooks.device_time import SimulatedDevice
from stallscope.storage import places, reads
from stallscope.storage import storage as storage_module
from stallscope.storage.page_cache import drop, opened, resident_bytes, resident_share
from stallscope.storage.reads import COLD, RANDOM, SAMPLE, SEQUENTIAL, WARM, Medium, ReadRequest
from stallscope.storage.result import sentence, way_of
from stallscope.storage.storage import asked
from stallscope.targets.target import SimulatedStep

PAGE = 4096


class Files(Dataset):
    """A file for each sample."""

    def __init__(self, folder) -> None:
        self.paths = sorted(map(str, Path(folder).iterdir()))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index):
        with Path(self.paths[index]).open("rb") as file:
            return torch.tensor(len(file.read()))


class Rows(Dataset):
    """Rows of one HDF5 file, which each process opens for itself."""

    def __init__(self, path) -> None:
        self.path, self.file = str(path), None

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index):
        self.file = self.file or h5py.File(self.path)
        return torch.from_numpy(self.file["x"][index])


def written(path, size=200_000):
    """A file of noise that has reached the disk."""
    with path.open("wb") as file:
        file.write(np.random.default_rng(0).bytes(size))
        file.flush()
        os.fsync(file.fileno())
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """Forty files of which nothing waits to be written."""
    for number in range(40):
        written(tmp_path / f"{number:02}.bin", 20_000 + 100 * number)
    return tmp_path


def in_memory():
    """A folder of a file system that is memory; None where there is none."""
    shm = Path("/dev/shm")
    return shm if shm.is_dir() and os.access(shm, os.W_OK) else None


class TestPageCache:
    def test_what_was_read_is_there_and_what_was_dropped_is_not(self, tmp_path):
        """All of a file, and a part of it."""
        path = written(tmp_path / "a", 8 << 20)
        Path(path).read_bytes()
        assert 1.0 == resident_share(path)

        with opened(path) as file:
            assert drop(file, 5 << 20, PAGE)  # with the large page around it
            assert 0 == resident_bytes(file, 5 << 20, PAGE)
            assert 6 << 20 == resident_bytes(file, 0, 8 << 20)
            drop(file)
        assert 0.0 == resident_share(path)

    def test_what_is_not_written_yet_is_written_and_dropped(self, tmp_path):
        """A data set that was just made has most of its pages in this state."""
        path = tmp_path / "a"
        path.write_bytes(bytes(64 * PAGE))

        with opened(str(path)) as file:
            drop(file)
        assert 0.0 == resident_share(str(path))
        assert bytes(64 * PAGE) == path.read_bytes()

    def test_of_files_of_others_nothing_is_known(self, tmp_path, monkeypatch):
        """The kernel would call them all cached; that is not passed on."""
        path = written(tmp_path / "a")
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setattr(os, "access", lambda *_, **__: False)

        assert resident_share(path) is None


def test_a_step_asks_for_no_more_than_its_device_can_use():
    """What the loop waits while the device works is no time to spare."""
    step = SimulatedStep(0.02, SimulatedDevice(depth=1))
    run = ss.record(DataLoader(Naps(0.002), 4, num_workers=1), step, batches=30)

    assert asked(run)["wanted_per_s"] == pytest.approx(4 / 0.02, rel=0.25)


class TestReading:
    def test_no_byte_is_asked_for_twice(self, folder):
        """Else the second time would be answered by the page cache."""
        files = places.data_files(map(str, folder.iterdir()))
        for access, length in ((RANDOM, PAGE), (SEQUENTIAL, 8192), (SAMPLE, None), (SAMPLE, 9000)):
            asked = reads.requests(files, access, length, 3)
            pieces = sorted((one.path, max(one.offset, 0), one.length) for one in asked)

            assert len({path for path, *_ in pieces}) == 40
            for (path, at, many), (other, next_at, _) in pairwise(pieces):
                assert path != other or at + many <= next_at

    def test_reads_what_is_there(self, folder):
        """Every byte once, whoever reads; files that go meanwhile are counted."""
        files = places.data_files(map(str, folder.iterdir()))
        asked = reads.requests(files, SAMPLE, None, 0)
        Path(asked[0].path).unlink()

        found = reads.timed(asked, 4, 30.0, Medium())

        assert sum(one.length for one in asked[1:]) == found.bytes
        assert (39, 1, False) == (len(found.each_s), found.gone, found.hangs)
        assert 0 < max(found.each_s) <= found.seconds

    def test_counts_what_is_cached_before_it_reads(self, folder):
        """Cold is cold, and warm is warm."""
        files = places.data_files(map(str, folder.iterdir()))
        asked = reads.requests(files, SAMPLE, None, 0)
        medium = Medium()

        reads.make_cold(asked, medium)
        cold = reads.timed(asked, 2, 30.0, medium)
        warm = reads.timed(asked, 2, 30.0, medium)

        assert 0.0 == cold.cached_share
        assert 1.0 == warm.cached_share

    def test_so_many_readers_read_at_once(self, folder):
        """Each request meets those of the other readers."""
        at_once, most, lock = [0], [0], threading.Lock()

        def read(file, length, offset):
            with lock:
                at_once[0] += 1
                most[0] = max(most[0], at_once[0])
            time.sleep(0.01)
            with lock:
                at_once[0] -= 1
            return os.pread(file, length, offset)

        files = places.data_files(map(str, folder.iterdir()))
        for readers in (1, 3):
            most[0] = 0
            reads.timed(reads.requests(files, SAMPLE, None, 0), readers, 30.0, Medium(read))
            assert readers == most[0]

    def test_a_read_that_hangs_is_left_alone(self, folder, monkeypatch):
        """It says so instead of waiting for ever."""
        monkeypatch.setattr(reads, "_GRACE_S", 0.1)
        release = threading.Event()
        files = places.data_files(map(str, folder.iterdir()))

        def read(file, length, offset):
            release.wait()
            return os.pread(file, length, offset)

        found = reads.timed(reads.requests(files, SAMPLE, None, 0), 1, 0.1, Medium(read))

        release.set()
        assert found.hangs
        while any("(read)" in one.name for one in threading.enumerate()):
            time.sleep(0.01)


class TestPlaces:
    def test_others_stand_for_the_data_however_many_were_read(self, folder, monkeypatch):
        """Else what lay in the page cache before would not be known of large data."""
        monkeypatch.setattr(places, "_MOST_FILES", 3)
        read = [str(folder / f"{number:02}.bin") for number in range(10)]

        found = [file.was_read for file in places.data_files(read)]

        assert (10, 3) == (found.count(True), found.count(False))

    def test_others_beside_stand_for_the_data(self, folder):
        """Of the same ending; links and folders are no files of their own."""
        (folder / "readme.txt").write_text("no data")
        (folder / "more.bin").mkdir()

        found = places.data_files([str(folder / "03.bin"), str(folder / "gone.bin")])

        assert 40 == len(found)
        assert ["03.bin"] == [Path(one.path).name for one in found if one.was_read]

    def test_where_they_lie(self, folder):
        """The device number of a file is that of its mount."""
        mount = places.mount_of(str(folder / "00.bin"), places.mounts())

        assert folder.stat().st_dev == Path(mount.path).stat().st_dev
        assert mount.system
        if shm := in_memory():
            assert places.MEMORY == places.mount_of(str(shm / "x"), places.mounts()).medium


def measured(loader, budget_s=60.0, **named):
    """What `ss.storage` says with a step that is a timer."""
    return ss.storage(loader, ss.simulated_step(0.005), budget_s=budget_s, **named)


class TestStorage:
    @pytest.fixture(autouse=True)
    def briefly(self, monkeypatch):
        """Little is recorded and read, however long that takes on a busy machine."""
        for name, value in {"_STEADY_S": 0.1, "_BATCHES": 6, "_ROUNDS": 1}.items():
            monkeypatch.setattr(storage_module, name, value)

    def test_of_files(self, folder):
        """Which files there are, that cold was cold, and what the loader asks for."""
        loader = DataLoader(Files(folder), 4, num_workers=2, shuffle=True)

        found = measured(loader)

        told = found.circumstances
        assert 40 == told.files
        assert sum(path.stat().st_size for path in folder.iterdir()) == told.data_bytes
        assert 20_000 < told.sample_bytes < 24_000
        assert 0 < told.loop_per_s <= told.wanted_per_s * 1.001
        rows = found.of(SAMPLE, COLD)
        assert {1, 2, 8} <= {row["readers"] for row in rows}
        assert all(row["cached_share"] <= 0.1 for row in rows)
        assert found.of(SAMPLE, WARM)
        assert "what the step asks for" in sentence(found)
        assert {"files of 22 kB, in order", "4.1 kB, anywhere"} <= set(
            map(way_of, found.table().to_dicts())
        )
        assert [40] == found.places["files"].to_list()

    def test_of_a_container(self, tmp_path):
        """Its file is found among those that the workers hold open, and read in pieces."""
        with h5py.File(tmp_path / "rows.h5", "w") as file:
            file["x"] = np.random.default_rng(0).random((512, 2048), np.float32)
        loader = DataLoader(Rows(tmp_path / "rows.h5"), 8, num_workers=1)

        found = measured(loader)

        assert not found.circumstances.is_whole
        assert 1 == found.circumstances.files
        assert 8192 <= found.circumstances.sample_bytes < 90_000  # HDF5 reads more than a row
        assert found.of(SAMPLE, COLD)

    def test_of_memory(self):
        """Files on tmpfs are not read cold, and it says why."""
        shm = in_memory()
        if shm is None:
            pytest.skip("no tmpfs that can be written")
        folder = shm / f"test-storage-{os.getpid()}"
        folder.mkdir()
        try:
            for number in range(10):
                written(folder / f"{number}.bin", 30_000)
            found = measured(DataLoader(Files(folder), 2))
        finally:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()

        assert {WARM} == set(found.table()["state"])
        assert "lie in memory" in sentence(found)

    def test_of_nothing(self):
        """A dataset that makes its samples reads no file."""
        found = measured(DataLoader(Noise(), 4))

        assert found.table().is_empty()
        assert "No file was seen" in str(found)

    def test_files_are_only_read(self, folder):
        """Nothing of them is changed, not even the time of the last change."""
        before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}

        measured(DataLoader(Files(folder), 4))

        assert before == {
            path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()
        }

    def test_refuses_what_is_no_time(self, folder):
        """As all verbs do."""
        with pytest.raises(ss.StallscopeError, match="budget_s=0"):
            measured(DataLoader(Files(folder), 4), 0)


class TestAnswer:
    def test_what_a_first_epoch_reads(self):
        """Its part of a sample, the readers that give most, and what the step asks for."""
        assert sentence(a_storage()) == (
            "Reading cold takes 34% of a sample (2.0 ms), and your storage gives 3,176 samples/s "
            "with 8 readers, 5.0× what the step asks for"
        )

    def test_storage_that_is_too_slow(self):
        """It bounds the training, however many read."""
        slow = a_storage({1: 0.004, 8: 0.032}, loop_per_s=240.0)

        assert 1 == slow.best["readers"]
        assert "gives no more than" in sentence(slow)
        assert "it is the limit of a first epoch" in sentence(slow)

    def test_storage_that_gives_more_than_the_loader_makes(self):
        """It is then no limit, however fast the step is."""
        said = sentence(a_storage(loop_per_s=200.0, wanted_per_s=9_000.0))

        assert "more than the 200/s that this loader makes of them" in said
        assert "limit" not in said

    def test_everything_in_the_page_cache(self):
        """What is measured is then not the first epoch."""
        said = sentence(a_storage(resident_share=1.0))

        assert said.startswith("Everything lies in the page cache, so what you measure is not your")

    def test_of_memory_and_of_nothing(self):
        """They have no cold figure, and nobody makes one up."""
        assert "lie in memory" in sentence(warm_storage())
        assert "No file was seen" in sentence(no_storage())
        nowhere = a_storage({})
        assert nowhere.best is nowhere.spare is nowhere.cold_share is None
        assert "nothing could be taken out of the page cache" in sentence(nowhere)

    def test_the_same_without_a_step(self):
        """What is needed is not known then."""
        alone = a_storage(wanted_per_s=None, has_step=False, simulated_step_s=None)

        assert alone.spare is None
        assert sentence(alone).endswith("your storage gives 3,176 samples/s with 8 readers")

    def test_a_request_that_is_a_file(self):
        """It opens the file as well."""
        assert ReadRequest("a", -1, 5).is_whole
        assert not ReadRequest("a", 0, 5).is_whole


@pytest.mark.parametrize("kind", ["samples", "pieces"])
def test_pictures_of_nothing(kind):
    """There is one, and its title says why it is empty."""
    assert "No file was seen" in no_storage().plot(kind).title
