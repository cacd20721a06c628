import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class PVNetDataset(Dataset):
    """The weather around some moments, from a store that each worker opens."""

    def __init__(self, path, size):
        self.path, self.size = path, size
        self.satellite: np.ndarray | None = None

    def __len__(self):
        return self.size

    def open_satellite(self):
        with np.load(self.path) as store:
            return store["satellite"]

    def __getitem__(self, index):
        if self.satellite is None:
            self.satellite = self.open_satellite()
        start = index % (len(self.satellite) - 12)
        return torch.from_numpy(self.satellite[start : start + 12].astype(np.float32))


class StreamedDataModule:
    """Makes the loaders."""

    def __init__(self, folder):
        self.path = folder / "satellite.npz"
        moving = np.random.default_rng(0).integers(0, 1024, (240, 11, 48, 48), dtype=np.int16)
        np.savez_compressed(self.path, satellite=moving)
        self._common = {"batch_size": 8, "num_workers": 2, "persistent_workers": False}

    def train_dataloader(self):
        return DataLoader(PVNetDataset(self.path, 160), shuffle=True, **self._common)

    def val_dataloader(self):
        return DataLoader(PVNetDataset(self.path, 80), **self._common)


class Trainer:
    """The batches of the epochs, each with its validation."""

    def __init__(self, datamodule, max_epochs):
        self.max_epochs = max_epochs
        self.train_dataloader = datamodule.train_dataloader()
        self.val_dataloader = datamodule.val_dataloader()

    def __len__(self):
        return self.max_epochs * (len(self.train_dataloader) + len(self.val_dataloader))

    def __iter__(self):
        for _ in range(self.max_epochs):
            yield from self.train_dataloader
            yield from self.val_dataloader


@question(
    source="pvnet #436",
    report="workers start for each training and validation loop; keep them",
    step_s=0.006,
    causes=("start-up",),
    place=r"epoch|start|iterator",
    lever=r"persistent_workers",
)
def epochs_of_weather(folder):
    """Start the workers anew for each epoch, and for each validation."""
    return Trainer(StreamedDataModule(folder), 500)
