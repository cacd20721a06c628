import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


def write_events(path, events=20_000):
    """Write the hits of the events of a detector, and where those of each begin."""
    draw = np.random.default_rng(0)
    hits = draw.integers(50, 300, events)
    with h5py.File(path, "w") as file:
        file["event_hits_index"] = np.append(0, np.cumsum(hits))
        file["hit_pmt"] = draw.integers(0, 2014, hits.sum()).astype(np.int32)
        file["hit_charge"] = draw.random(hits.sum(), np.float32)


class H5Dataset(Dataset):
    """Charges of a detector's tubes, from the file by memory map."""

    def __init__(self, path):
        with h5py.File(path, "r") as file:
            self.index = file["event_hits_index"][:]
            self.pmt = self.map(path, file["hit_pmt"])
            self.charge = self.map(path, file["hit_charge"])

    def map(self, path, array):
        return np.memmap(
            path, mode="r", dtype=array.dtype, shape=array.shape, offset=array.id.get_offset()
        )

    def __len__(self):
        return len(self.index) - 1

    def __getitem__(self, event):
        hits = slice(self.index[event], self.index[event + 1])
        image = np.zeros(2014, np.float32)
        image[self.pmt[hits]] = self.charge[hits]
        return torch.from_numpy(image)


@question(
    source="WatChMaL #74",
    report="all hits in memory instead of a map train at the same speed; loading is no bottleneck",
    step_s=0.05,
    causes=("healthy",),
    place=r"hardly|keeps up|[Hh]ealthy|\b([Nn]o|not|never|rarely|little)\b|[Mm]odel|[Ss]tep",
    lever=r"[Mm]odel|[Ss]tep|[Nn]othing|no change",
)
def mapped_hits(folder):
    """Read each sample by memory map."""
    write_events(folder / "events.h5")
    dataset = H5Dataset(folder / "events.h5")
    return DataLoader(dataset, batch_size=64, shuffle=True, num_workers=2)
