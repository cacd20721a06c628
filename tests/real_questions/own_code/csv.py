import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _Tiles(Dataset):
    """Paths and labels in a table that is read for each sample."""

    def __init__(self, folder):
        self.path = folder / "tiles.csv"
        np.save(folder / "tile.npy", np.ones((3, 64, 64), np.float32))
        rows = (f"{folder / 'tile.npy'};{number % 4}\n" for number in range(5000))
        self.path.write_text("".join(rows))

    def __len__(self):
        return 5000

    def __getitem__(self, index):
        import pandas as pd

        tiles = pd.read_csv(self.path, sep=";", header=None)
        path, label = tiles.loc[index, 0], tiles.loc[index, 1]
        return torch.from_numpy(np.load(path)), int(label)


@question(
    source="geo-deep-learning #418",
    report="the table is read whenever a sample is asked for",
    step_s=0.005,
    causes=("one-transform",),
    place=r"__getitem__",
    lever=r"load it once",
)
def table_of_tiles(folder):
    """Parse five thousand rows for one."""
    return DataLoader(_Tiles(folder), batch_size=8, shuffle=True, num_workers=2)
