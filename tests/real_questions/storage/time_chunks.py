import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.parts import noise
from real_questions.question import question


class SatelliteDataSource(Dataset):
    """Crops of a satellite's images, a few steps of time long, from one compressed array.

    Their author kept the array as Zarr; HDF5 has the same chunks, and is read alike.
    """

    def __init__(self, folder, steps=216, size=400, length=12, crop=64):
        self.path, self.file = folder / "satellite.h5", None
        self.steps, self.size, self.length, self.crop = steps, size, length, crop
        with h5py.File(self.path, "w") as file:
            file.create_dataset(
                "images",
                data=noise(steps, size, size).astype(np.int16),
                chunks=(36, size, size),
                compression="gzip",
                compression_opts=1,
            )

    def __len__(self):
        return 720

    def __getitem__(self, index):
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return self.get_example(self.file["images"])

    def get_example(self, images):
        start = np.random.randint(self.steps - self.length)
        top, left = np.random.randint(self.size - self.crop, size=2)
        example = images[
            start : start + self.length, top : top + self.crop, left : left + self.crop
        ]
        return torch.from_numpy(example.astype(np.float32) / 1023)


@question(
    source="nowcasting_dataset #16, #57",
    report="whole chunks are decompressed for small examples; one step a chunk, 17 to 40 it/s",
    step_s=0.02,
    causes=("one-transform", "decode", "storage-bandwidth"),
    place=r"[Cc]hunk|get_example|__getitem__|SatelliteDataSource|h5py|HDF5|decompress|gzip",
    lever=r"[Cc]hunk|uncompressed|without compression|decompress|\.npy|memmap|mmap|cache|[Kk]eep"
    r"|in memory|into memory",
)
def crops_of_satellite_images(folder):
    """Read small crops from an array whose chunks are 36 whole images."""
    return DataLoader(SatelliteDataSource(folder), batch_size=8, num_workers=2)
