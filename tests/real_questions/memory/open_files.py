import shutil

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question

FIELDS = ("density", "pressure", "velocity")


def write_simulations(folder, files=240, steps=16):
    """Write simulations, a file each: the same one, since only its size matters."""
    first = folder / "simulation_000.hdf5"
    draw = np.random.default_rng(0)
    with h5py.File(first, "w") as file:
        for name in FIELDS:
            small = draw.random((steps, 16, 16), np.float32)
            file.create_dataset(
                f"t0_fields/{name}",
                data=small.repeat(8, 1).repeat(8, 2),
                chunks=(1, 128, 128),
                compression="gzip",
                compression_opts=1,
            )
    for number in range(1, files):
        shutil.copy(first, folder / f"simulation_{number:03}.hdf5")
    return sorted(folder.glob("*.hdf5"))


class WellDataset(Samples):
    """Some steps of all fields of a simulation."""

    def __init__(self, paths, steps=16, window=8):
        self.paths, self.steps, self.window = paths, steps, window
        self.files = {}

    def open_file(self, path):
        if path not in self.files:
            file = h5py.File(path, "r")
            self.files[path] = file, [file[f"t0_fields/{name}"] for name in FIELDS]
        return self.files[path][1]

    def __getitem__(self, index):
        fields = self.open_file(self.paths[index % len(self.paths)])
        start = index // len(self.paths) % (self.steps - self.window + 1)
        return torch.stack(
            [torch.from_numpy(field[start : start + self.window]) for field in fields]
        )


@question(
    source="the_well #51",
    report="memory gets enormous: files are opened and never closed; opened for each "
    "sample, memory stays and the speed is the same",
    step_s=0.06,
    causes=("memory-growth",),
    place=r"WellDataset|open_file|[Ff]iles|[Hh]andle|[Mm]emory|[Gg]row",
    lever=r"\bclos|\bwith\b|[Ee]ach sample|per sample|LRU|lru|\bbound|\blimit|\bcap\b|evict|rdcc"
    r"|maxsize|at most|\bclear|[Cc]hunk cache",
)
def never_closed(folder):
    """Keep every file open, with its cache of chunks."""
    dataset = WellDataset(write_simulations(folder))
    return DataLoader(dataset, batch_size=2, shuffle=True, num_workers=2)
