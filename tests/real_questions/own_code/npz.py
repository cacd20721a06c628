import numpy as np
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _Archive(Dataset):
    """Open the archive of the whole dataset for each sample."""

    def __init__(self, folder):
        self.path = folder / "all.npz"
        np.savez(self.path, x=np.ones((400, 64, 64), np.float32), y=np.arange(400))

    def __len__(self):
        return 400

    def __getitem__(self, index):
        archive = np.load(self.path)
        return archive["x"][index], archive["y"][index]


@question(
    source="torchgeo #1754",
    report="loading from .npz is slow",
    step_s=0.01,
    causes=("one-transform", "storage-bandwidth"),
    place=r"__getitem__",
    lever=r"once",
)
def archive_of_all(folder):
    """Load everything for one sample."""
    return DataLoader(_Archive(folder), batch_size=8, num_workers=2)
