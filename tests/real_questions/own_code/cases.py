import random

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples, noise
from real_questions.question import question


class _Cases(Samples):
    """Patches of compressed cases: all of a case is read and unpacked for one patch."""

    def __init__(self, folder):
        self.paths = [folder / f"{number}.npz" for number in range(4)]
        for path in self.paths:
            np.savez_compressed(path, data=noise(2, 48, 128, 128).astype(np.float32))

    def __getitem__(self, index):
        data = np.load(self.paths[index % 4])["data"]
        z, y, x = (random.randrange(size - 32) for size in data.shape[1:])
        return torch.from_numpy(data[:, z : z + 32, y : y + 32, x : x + 32].copy())


@question(
    source="nnUNet #1332, #2380, #566",
    report="compressed cases are a lot slower",
    step_s=0.005,
    causes=("one-transform",),
    place=r"__getitem__",
    lever=r"of \.npy, not \.npz",
)
def patches_of_cases(folder):
    """Use a fiftieth of what is read."""
    return DataLoader(_Cases(folder), batch_size=2, shuffle=True, num_workers=2)
