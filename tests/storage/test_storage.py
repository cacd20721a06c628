"""`ss.storage`: the page cache, timed reads, the loop's demand, and the answer."""

import io
import os
import tarfile
from itertools import pairwise, product
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from support.build_storage import a_storage, no_storage, warm_storage
from support.loaders import Noise
from torch.utils.data import DataLoader, Dataset, IterableDataset

import stallscope as ss
from stallscope.verbs.storage import reads
from stallscope.verbs.storage import storage as storage_module
from stallscope.verbs.storage.reads import COLD, RANDOM, SAMPLE, SEQUENTIAL, WARM
from stallscope.verbs.storage.result import describe, sentence

PAGE = 4096
DELIVERS = "Your storage delivers 3,176 samples/s with 8 readers"


class Files(Dataset):
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


class Shards(IterableDataset):
    """Samples of one tar shard after another, behind a buffer that is filled first."""

    def __init__(self, folder) -> None:
        self.paths = sorted(map(str, Path(folder).iterdir()))

    def __iter__(self):
        buffer = []
        for path in self.paths:
            with tarfile.open(path) as archive:
                for member in archive:
                    buffer.append(len(archive.extractfile(member).read()))
                    if len(buffer) > 40:
                        yield buffer.pop(0)


def written(path, size=200_000):
    with path.open("wb") as file:
        file.write(np.random.default_rng(0).bytes(size))
        file.flush()
        os.fsync(file.fileno())
    return str(path)


@pytest.fixture
def folder(tmp_path):
    for number in range(40):
        written(tmp_path / f"{number:02}.bin", 20_000 + 100 * number)
    return tmp_path


@pytest.fixture
def files(folder):
    return reads.data_files(map(str, folder.iterdir()))


@pytest.fixture
def tmpfs():
    shm = Path("/dev/shm")
    if not (shm.is_dir() and os.access(shm, os.W_OK)):
        pytest.skip("no tmpfs that can be written")
    folder = shm / f"test-storage-{os.getpid()}"
    folder.mkdir()
    paths = [Path(written(folder / f"{number}.bin", 30_000)) for number in range(10)]
    yield folder
    for path in paths:
        path.unlink()
    folder.rmdir()


class TestPageCache:
    def test_read_files_are_cached_and_dropped_ones_are_not(self, tmp_path):
        path = written(tmp_path / "a", 8 << 20)
        Path(path).read_bytes()
        assert 1.0 == reads.resident_share(path)

        with reads.opened(path) as file:
            assert reads.drop(file, 5 << 20, PAGE)  # with the large page around it
            assert 0 == reads.resident_bytes(file, 5 << 20, PAGE)
            assert 6 << 20 == reads.resident_bytes(file, 0, 8 << 20)
            reads.drop(file)
        assert 0.0 == reads.resident_share(path)

    def test_unwritten_pages_are_written_and_dropped(self, tmp_path):
        """A dataset that was just made has most of its pages in this state."""
        path = tmp_path / "a"
        path.write_bytes(bytes(64 * PAGE))

        with reads.opened(str(path)) as file:
            reads.drop(file)
        assert 0.0 == reads.resident_share(str(path))
        assert bytes(64 * PAGE) == path.read_bytes()


class TestReads:
    @pytest.mark.parametrize(
        ("access", "length"), [(RANDOM, PAGE), (SEQUENTIAL, 8192), (SAMPLE, 0), (SAMPLE, 9000)]
    )
    def test_no_byte_is_requested_twice(self, files, access, length):
        wanted = reads.requests(files, access, length, 3)
        pieces = sorted(
            (request.path, max(request.offset, 0), request.length) for request in wanted
        )

        assert len({path for path, *_ in pieces}) == 40
        for (path, begin, size), (next_path, next_begin, _) in pairwise(pieces):
            assert path != next_path or begin + size <= next_begin

    def test_several_readers_read_every_byte_once(self, files):
        wanted = reads.requests(files, SAMPLE, 0, 0)
        Path(wanted[0].path).unlink()

        reading = reads.timed(wanted, 4, 30.0)

        assert sum(request.length for request in wanted[1:]) == reading.bytes
        assert (39, 1) == (reading.requests, reading.failed)
        assert 0 < reading.latency_s <= reading.latency_p95_s <= reading.took_s

    def test_the_cached_share_is_measured_before_reading(self, files):
        wanted = reads.requests(files, SAMPLE, 0, 0)

        reads.make_cold(wanted)
        cold, warm = (reads.timed(wanted, 2, 30.0) for _ in range(2))

        assert (0.0, 1.0) == (cold.cached_share, warm.cached_share)


class TestPlaces:
    def test_unread_files_represent_the_data(self, folder, monkeypatch):
        """The number of unread files is limited, not the number of read files."""
        monkeypatch.setattr(reads, "_MOST_FILES", 3)
        read = [str(folder / f"{number:02}.bin") for number in range(10)]

        was_read = [file.was_read for file in reads.data_files(read)]

        assert (10, 3) == (was_read.count(True), was_read.count(False))

    def test_only_files_with_the_same_suffix_are_data(self, folder):
        (folder / "readme.txt").write_text("no data")
        (folder / "more.bin").mkdir()

        data = reads.data_files([str(folder / "03.bin"), str(folder / "gone.bin")])

        assert 40 == len(data)
        assert ["03.bin"] == [Path(file.path).name for file in data if file.was_read]

    def test_mounts_have_the_device_of_their_files(self, files, folder, tmpfs):
        mounts = reads.mounts_of([*files, *reads.data_files(map(str, tmpfs.iterdir()))])
        on_disk, in_memory = (mounts[str(path)] for path in (folder / "00.bin", tmpfs / "0.bin"))

        assert folder.stat().st_dev == Path(on_disk.path).stat().st_dev
        assert on_disk.system
        assert reads.MEMORY == in_memory.medium

    def test_a_sample_of_tar_shards_is_all_members_of_one_name(self, tmp_path):
        """Names that differ behind the first dot are one sample; other files have no samples."""
        with tarfile.open(tmp_path / "shard.tar", "w") as archive:
            for number, suffix in product(range(3), ("jpg", "seg.png")):
                member = tarfile.TarInfo(f"train.v1/{number:03}.{suffix}")
                member.size = 1000
                archive.addfile(member, io.BytesIO(bytes(1000)))
        (tmp_path / "torn.tar").write_bytes(bytes(700))
        (tmp_path / "rows.bin").write_bytes(bytes(700))
        torn, rows, shard = (
            reads.DataFile(str(tmp_path / name), 1)
            for name in ("torn.tar", "rows.bin", "shard.tar")
        )

        # Six headers and contents of whole blocks of 512 bytes, the last without its padding
        assert (6 * (512 + 1024) - 24) / 3 == reads.tar_sample_bytes([torn, rows, shard])
        assert reads.tar_sample_bytes([torn, rows]) is None


def measured(loader, budget_s=60.0):
    return ss.storage(loader, ss.simulated_step(0.005), budget_s=budget_s)


class TestStorage:
    @pytest.fixture(autouse=True)
    def briefly(self, monkeypatch):
        """Record and read little, however long that takes on a busy machine."""
        for name, value in {"_STEADY_S": 0.1, "_BATCHES": 6, "_ROUNDS": 1}.items():
            monkeypatch.setattr(storage_module, name, value)

    def test_of_files(self, folder):
        before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}

        storage = measured(DataLoader(Files(folder), 4, num_workers=2, shuffle=True))

        conditions = storage.circumstances
        assert 40 == conditions.files
        assert sum(path.stat().st_size for path in before) == conditions.data_bytes
        assert 20_000 < conditions.sample_bytes < 24_000
        assert 0 < conditions.loop_per_s <= conditions.wanted_per_s * 1.001
        rows = storage.of(SAMPLE, COLD)
        assert {1, 2, 8} <= {row["readers"] for row in rows}
        assert all(row["cached_share"] <= 0.1 for row in rows)
        assert storage.of(SAMPLE, WARM)
        assert "the step needs" in sentence(storage)
        assert {"files of 22 kB, in order", "4.1 kB, random"} <= set(
            map(describe, storage.table().to_dicts())
        )
        assert [40] == storage.places["files"].to_list()
        assert before == {
            path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()
        }

    def test_of_a_container(self, tmp_path):
        """The file is one that the workers hold open, and is read in pieces."""
        with h5py.File(tmp_path / "rows.h5", "w") as file:
            file["x"] = np.random.default_rng(0).random((512, 2048), np.float32)

        storage = measured(DataLoader(Rows(tmp_path / "rows.h5"), 8, num_workers=1))

        assert not storage.circumstances.is_whole
        assert 1 == storage.circumstances.files
        assert 8192 <= storage.circumstances.sample_bytes < 90_000  # HDF5 reads more than a row
        assert storage.of(SAMPLE, COLD)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_of_tar_shards(self, tmp_path, workers):
        """A sample has the bytes of its member, whatever a buffer holds or a round reads ahead."""
        for number in range(4):
            with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
                for name in map(str, range(30)):
                    member = tarfile.TarInfo(name)
                    member.size = 64 << 10
                    archive.addfile(member, io.BytesIO(bytes(64 << 10)))

        storage = measured(DataLoader(Shards(tmp_path), 4, num_workers=workers))

        assert not storage.circumstances.is_whole
        assert 512 + (64 << 10) == storage.circumstances.sample_bytes
        assert {512 + (64 << 10)} == {row["request_bytes"] for row in storage.of(SAMPLE, COLD)}

    def test_of_memory(self, tmpfs):
        storage = measured(DataLoader(Files(tmpfs), 2))

        assert {WARM} == set(storage.table()["state"])
        assert "are in memory" in sentence(storage)

    def test_of_a_dataset_that_reads_nothing(self):
        storage = measured(DataLoader(Noise(), 4))

        assert storage.table().is_empty()
        assert "opens no data file" in str(storage)

    def test_a_budget_of_zero_is_refused(self, folder):
        with pytest.raises(ss.StallscopeError, match="budget_s=0"):
            measured(DataLoader(Files(folder), 4), 0)


class TestSentence:
    @pytest.mark.parametrize(
        ("conditions", "words"),
        [
            (
                {},
                (
                    f"{DELIVERS}, 5.0× what the step needs. A "
                    "cold read takes 34% of a sample's time (2.0 ms)"
                ),
            ),
            (
                {"latency_s": {1: 0.004, 8: 0.032}, "loop_per_s": 240.0},
                (
                    "Storage is the bottleneck of a first epoch: it delivers 248 samples/s with 1 "
                    "reader, 0.4× what the step needs. A cold read takes 50% of a sample's time "
                    "(4.0 ms)"
                ),
            ),
            (
                {"loop_per_s": 200.0, "wanted_per_s": 9_000.0, "sample_s": None},
                (
                    f"{DELIVERS}: less than the step needs, "
                    "but more than this loader's 200/s. Speed up the loader first"
                ),
            ),
            (
                {"resident_share": 1.0, "sample_s": None},
                (
                    f"{DELIVERS}, 5.0× what the step needs. "
                    "All files are in the page cache now, so your loop is faster than that"
                ),
            ),
            (
                {"wanted_per_s": None, "has_step": False, "sample_s": None},
                f"{DELIVERS} in a first epoch",
            ),
            ({"latency_s": {}}, "The speed of a first epoch is unknown: the files stayed in the"),
        ],
        ids=["fast", "slow", "loader slower", "cached", "no step", "no cold read"],
    )
    def test_names_the_rate_and_the_demand(self, conditions, words):
        assert sentence(a_storage(**conditions)).startswith(words)

    def test_without_storage(self):
        assert "are in memory" in sentence(warm_storage())
        assert "opens no data file" in sentence(no_storage())

    def test_unmeasured_values_are_none(self):
        nowhere = a_storage({})

        assert nowhere.best is nowhere.spare is nowhere.cold_share is None
        assert a_storage(wanted_per_s=None).spare is None
        assert 1 == a_storage({1: 0.004, 8: 0.032}).best["readers"]

    @pytest.mark.parametrize("kind", ["samples", "pieces"])
    def test_is_the_title_of_an_empty_picture(self, kind):
        assert "opens no data file" in no_storage().plot(kind).title
