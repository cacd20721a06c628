import gzip

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples, noise
from real_questions.question import question


class _Slices(Samples):
    """Slices of a compressed volume, which is unpacked from its begin on for each."""

    def __init__(self, folder):
        self.path = folder / "volume.gz"
        with gzip.open(self.path, "wb") as file:
            file.write(noise(80, 256, 256).tobytes())

    def __getitem__(self, index):
        size = 256 * 256
        with gzip.open(self.path, "rb") as file:
            file.seek(index % 80 * size)
            values = np.frombuffer(file.read(size), np.uint8)
        return torch.from_numpy(values.reshape(256, 256).astype(np.float32))


@question(
    source="eva #705",
    report="the deeper a slice of .nii.gz, the slower",
    step_s=0.005,
    causes=("one-transform", "decode"),
    place=r"__getitem__",
    lever=r"store it unpacked",
)
def slices_of_volumes(folder):
    """Seek in a file that cannot be sought in."""
    return DataLoader(_Slices(folder), batch_size=4, shuffle=True, num_workers=2)
