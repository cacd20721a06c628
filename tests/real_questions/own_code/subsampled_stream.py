import io
import random
import tarfile

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from real_questions.parts import own_part
from real_questions.question import question


def write_shards(folder, shards=4, samples=1500):
    """Write features as a tar file each 1500."""
    draw = np.random.default_rng(0)
    for shard in range(shards):
        with tarfile.open(folder / f"train-{shard:03}.tar", "w") as tar:
            for number in range(samples):
                content = io.BytesIO()
                np.save(content, draw.random((64, 32), np.float32))
                member = tarfile.TarInfo(f"{shard:03}{number:06}.npy")
                member.size = content.tell()
                content.seek(0)
                tar.addfile(member, content)
    return sorted(folder.glob("train-*.tar"))


class TarStream(IterableDataset):
    """Samples of all shards one after the other, of which a part is taken."""

    def __init__(self, shards, part):
        self.shards, self.part = shards, part

    def tar_file_expander(self):
        shards = own_part(self.shards)
        while True:
            random.shuffle(shards)
            for shard in shards:
                with tarfile.open(shard, "r|") as tar:
                    for member in tar:
                        yield member.name, tar.extractfile(member).read()

    def rsample(self, samples):
        for sample in samples:
            if random.random() < self.part:
                yield sample

    def __iter__(self):
        for _name, content in self.rsample(self.tar_file_expander()):
            yield torch.from_numpy(np.load(io.BytesIO(content)))


@question(
    source="webdataset #196",
    report="rsample() is too slow, it still reads the whole stream; to sample shards instead of "
    "samples pays no overhead",
    step_s=0.01,
    causes=("one-transform", "storage-bandwidth"),
    place=r"TarStream|rsample|tar_file_expander|__iter__|tarfile|\.tar\b",
    lever=r"[Ss]hard|[Ii]ndex|\bseek|offset|random access|[Ss]kip|extract|smaller|subset|fewer"
    r"|\bonce\b|beforehand|[Kk]eep|\bcache",
)
def part_of_a_stream(folder):
    """Read fifty samples for each that is used."""
    dataset = TarStream(write_shards(folder), part=0.02)
    return DataLoader(dataset, batch_size=16, num_workers=2)
