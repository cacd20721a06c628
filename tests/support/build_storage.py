"""Measurements of storage with planted readings."""

import polars as pl

from stallscope.verbs.storage.layout_result import MAKES, READS, WRITTEN, LayoutConditions, Layouts
from stallscope.verbs.storage.reads import COLD, MEMORY, RANDOM, SAMPLE, SEQUENTIAL, SOLID, WARM
from stallscope.verbs.storage.result import PLACES, READINGS, Storage, StorageConditions

MACHINE = {"cores": 4, "system": "Linux x86_64", "python": "3.11.7", "torch": "2.15.0"}
FILE_BYTES = 110_000
SCATTER = (1.0, 1.06, 0.95, 1.02)
SCATTER_OF_BLOCKS = (1.0, 1.03, 0.98, 1.01)
PLACE = ("/mnt/photos", "nvme0n1p2", "ext4", SOLID, 400, 400 * FILE_BYTES, 0.25)


ACCESS = dict.fromkeys(("files", "LMDB", "HDF5"), (True, 1.0)) | {"tar shards": (False, 0.31)}
"""Pairs of random access to single samples and of the uniformity of a shuffle, by layout."""


def a_storage(
    latency_s=None, *, rounds=4, medium=SOLID, places=(PLACE,), notes=(), **conditions
) -> Storage:
    """Make the readings of a device with this latency for a cold sample, by number of readers."""
    if latency_s is None:
        latency_s = {1: 0.002, 2: 0.002, 4: 0.002, 8: 0.0025}
    patterns = {(SAMPLE, 0, readers, COLD): each_s for readers, each_s in latency_s.items()}
    patterns |= {(SAMPLE, 0, readers, WARM): 0.0002 for readers in (1, 8)}
    patterns |= {
        (RANDOM, 4096, 1, COLD): 0.0001,
        (RANDOM, 4096, 8, COLD): 0.0002,
        (SEQUENTIAL, 1 << 20, 1, COLD): 0.0006,
        (SEQUENTIAL, 1 << 20, 1, WARM): 0.0001,
    }
    rows = [
        _row(pattern, number, each_s)
        for number in range(rounds)
        for pattern, each_s in patterns.items()
    ]
    about = {"name": "train:loader", "machine": MACHINE, "num_workers": 2, "is_whole": True}
    about |= {"files": 400, "data_bytes": 400 * FILE_BYTES, "resident_share": 0.25}
    about |= {"sample_bytes": float(FILE_BYTES), "sample_s": 0.0042, "fetch_s": 0.0002}
    about |= {"loop_per_s": 320.0, "wanted_per_s": 640.0, "simulated_step_s": 0.05}
    about |= {"budget_s": 60.0, "took_s": 21.0}
    return Storage(
        pl.DataFrame(rows, READINGS, orient="row"),
        pl.DataFrame([(*place[:3], medium, *place[4:]) for place in places], PLACES, orient="row"),
        StorageConditions(**about | conditions),
        notes,
    )


def _row(pattern, number, latency_s):
    """Return a reading of 200 requests in a round."""
    _, request_bytes, readers, state = pattern
    each_s = latency_s * SCATTER[number % len(SCATTER)]
    size, took_s = 200 * (request_bytes or FILE_BYTES), 200 * each_s / readers
    return (*pattern, number, 200, size, took_s, each_s, 1.8 * each_s, float(state == WARM))


def warm_storage() -> Storage:
    return a_storage({}, medium=MEMORY, resident_share=None, notes=("a note",))


def no_storage() -> Storage:
    """A dataset that makes its samples."""
    nothing = {"files": 0, "data_bytes": 0, "resident_share": None, "sample_bytes": None}
    return a_storage({}, rounds=0, places=(), **nothing)


def some_layouts(rates=None, *, rounds=4, notes=(), **conditions) -> Layouts:
    """Make layouts with these samples a second, by layout and whether images are smaller."""
    if rates is None:
        rates = {("files", False): 400.0, ("tar shards", False): 700.0, ("HDF5", False): 410.0}
        rates |= {("files", True): 900.0, ("tar shards", True): 1_600.0}
    make_s, scatter = {False: 0.0002, True: 0.00002}, SCATTER_OF_BLOCKS
    makes = [(small, at, took_s, at) for at in range(rounds) for small, took_s in make_s.items()]
    reads = [
        (COLD, number, at, took_s)
        for at in range(rounds)
        for number, ((_, small), rate) in enumerate(rates.items())
        for took_s in [2 / rate * scatter[(at + number) % 4] - make_s[small]]
    ]
    written = [
        (number, kind, smaller, 50_000_000 // (1 + 3 * smaller), 300.0, *ACCESS[kind], "")
        for number, (kind, smaller) in enumerate(rates)
    ]
    written.append((len(rates), "LMDB", False, None, None, None, None, "pip install lmdb"))
    about = {"name": "train:loader", "machine": MACHINE, "num_workers": 2, "samples": 512}
    about |= {"dataset_samples": 50_000, "sample_bytes": float(FILE_BYTES), "wanted_per_s": 1_000.0}
    about |= {"image_pixels": 256, "makers": 2, "simulated_step_s": 0.05}
    about |= {"budget_s": 120.0, "took_s": 96.0}
    return Layouts(
        pl.DataFrame(reads, READS, orient="row"),
        pl.DataFrame(makes, MAKES, orient="row"),
        pl.DataFrame(written, WRITTEN, orient="row"),
        LayoutConditions(**about | conditions),
        notes,
    )


def no_layouts() -> Layouts:
    """Return a comparison that ended before anything was read."""
    return some_layouts(rounds=0)
