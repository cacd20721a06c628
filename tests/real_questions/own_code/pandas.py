import numpy as np
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _Windows(Dataset):
    """Windows of a recording in memory; their starts and labels in a table of pandas."""

    def __init__(self, count=20_000):
        import pandas as pd

        self.signal = np.random.default_rng(0).normal(size=(32, count + 200)).astype(np.float32)
        columns = {"start": np.arange(count), "stop": np.arange(count) + 200}
        self.metadata = pd.DataFrame(columns | {"target": np.arange(count) % 4})

    def __len__(self):
        return len(self.metadata)

    def __getitem__(self, index):
        start = self.metadata.iloc[index]["start"]
        stop = self.metadata.iloc[index]["stop"]
        target = self.metadata.iloc[index]["target"]
        return self.signal[:, start:stop], int(target)


@question(
    source="braindecode #89",
    report="slow though all is in memory",
    step_s=0.004,
    causes=("one-transform",),
    place=r"__getitem__",
    lever=r"NumPy|to_numpy",
)
def windows_of_pandas(_folder):
    """Look three values of each sample up by `iloc`."""
    return DataLoader(_Windows(), batch_size=256, shuffle=True, num_workers=2)
