import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _Cached(Dataset):
    """Frames that come from a server when they are first asked for, and are kept then."""

    def __init__(self, folder):
        self.paths, self.cache = [folder / f"{number}.npy" for number in range(240)], {}
        for path in self.paths:
            np.save(path, np.ones((128, 128), np.float32))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.read(self.paths[index])
        return self.cache[index]

    @staticmethod
    def read(path):
        time.sleep(0.02)  # the network
        return torch.from_numpy(np.load(path))


@question(
    source="mmhuman3d #233, torchdatasets #26",
    report="7 min to 35 s an epoch",
    step_s=0.01,
    causes=("one-transform", "start-up", "storage-latency", "storage-bandwidth"),
    place=r"__getitem__|read|every epoch",
    lever=r"persistent_workers",
)
def cache_of_workers(folder):
    """Keep what is read in workers that end with the epoch."""
    return DataLoader(_Cached(folder), batch_size=4, shuffle=True, num_workers=2)
