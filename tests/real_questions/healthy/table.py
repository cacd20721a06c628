import numpy as np
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class TorchDataset(Dataset):
    """The rows of a table, in memory."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


@question(
    source="tabnet #258",
    report="would load rows faster; 'we never saw any speed up'",
    step_s=0.1,
    causes=("healthy",),
    place=r"[Hh]ealthy|keep|in time|fast enough|wait",
    lever=r"model|step|device|GPU|train|nothing|compute",
)
def rows_of_table(_folder):
    """Take rows one by one, for a model that takes far longer."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200_000, 54)).astype(np.float32)
    return DataLoader(TorchDataset(x, draw.integers(0, 7, 200_000)), batch_size=256, shuffle=True)
