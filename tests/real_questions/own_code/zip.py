import io
import zipfile

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from real_questions.parts import noise
from real_questions.question import question


class _Zipped(Dataset):
    """Small images in an archive of thousands, which is opened for each."""

    def __init__(self, folder):
        self.path, photograph = folder / "images.zip", io.BytesIO()
        Image.fromarray(noise(96, 96)).save(photograph, "JPEG")
        self.names = [f"images/{number:06d}.jpg" for number in range(5000)]
        with zipfile.ZipFile(self.path, "w") as archive:
            for name in self.names:
                archive.writestr(name, photograph.getvalue())

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        with zipfile.ZipFile(self.path) as archive:
            image = Image.open(io.BytesIO(archive.read(self.names[index]))).convert("RGB")
        return torch.from_numpy(np.array(image))


@question(
    source="vision #950",
    report="opening a ZipFile reads all of its contents' names, 2 s for CelebA",
    step_s=0.005,
    causes=("one-transform",),
    place=r"__getitem__",
    lever=r"open it once",
)
def archive_of_images(folder):
    """Read the archive's table of contents for each image."""
    return DataLoader(_Zipped(folder), batch_size=8, shuffle=True, num_workers=2)
