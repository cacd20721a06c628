import time

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Driving(Samples):
    """Samples in a dozen files each, on a drive that others use, too."""

    def __init__(self, folder):
        self.folder = folder
        for name in range(12):
            np.save(folder / f"{name}.npy", np.ones((64, 64), np.float32))

    def __getitem__(self, _index):
        return [self.load(self.folder / f"{name}.npy") for name in range(12)]

    @staticmethod
    def load(path):
        time.sleep(0.003)  # the drive
        return torch.from_numpy(np.load(path))


@question(
    source="transfuser #154",
    report="many input and label files for each sample, on slow storage",
    step_s=0.03,
    causes=("storage-latency", "one-transform"),
    place=r"wait|load|__getitem__",
    lever=r"shard|one file|more workers|at once",
)
def dozen_files(folder):
    """Open many input and label files for each sample."""
    return DataLoader(_Driving(folder), batch_size=8, shuffle=True, num_workers=2)
