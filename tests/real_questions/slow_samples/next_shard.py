import gzip
import pickle

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from real_questions.question import question


class DiskDataset:
    """Molecules in files of some thousand each."""

    def __init__(self, folder, shards=4, shard_size=2560):
        draw = np.random.default_rng(0)
        self.folder, self.shards = folder, shards
        for number in range(shards):
            x = draw.poisson(3, (shard_size, 2048)).astype(np.float32)
            y = draw.normal(size=(shard_size, 12)).astype(np.float32)
            with gzip.open(folder / f"shard-{number}.pkl.gz", "wb", 1) as file:
                pickle.dump((x, y), file)

    def get_shard(self, number):
        with gzip.open(self.folder / f"shard-{number}.pkl.gz") as file:
            return pickle.load(file)  # noqa: S301 - written above

    def iterbatches(self, shards, batch_size):
        for number in shards:
            x, y = self.get_shard(number)
            order = np.random.permutation(len(x))
            for start in range(0, len(x), batch_size):
                indices = order[start : start + batch_size]
                yield x[indices], y[indices]


class _TorchDiskDataset(IterableDataset):
    def __init__(self, disk_dataset, batch_size):
        self.disk_dataset, self.batch_size = disk_dataset, batch_size

    def __iter__(self):
        info = get_worker_info()
        shards = range(info.id, self.disk_dataset.shards, info.num_workers)
        endless = (number for _ in range(200) for number in shards)
        return self.disk_dataset.iterbatches(endless, self.batch_size)


@question(
    source="deepchem #848",
    report="the GPU waits for the next shard; it is loaded ahead, in a thread",
    step_s=0.006,
    causes=("slow-samples", "too-little-prefetch"),
    place=r"shard|iterbatches|load|prefetch|[Ss]ome|now and then",
    lever=r"prefetch|thread|ahead|smaller|background",
)
def shards_of_molecules(folder):
    """Read the next file only when all of the last one is used."""
    dataset = _TorchDiskDataset(DiskDataset(folder), 128)
    return DataLoader(dataset, batch_size=None, num_workers=2)
