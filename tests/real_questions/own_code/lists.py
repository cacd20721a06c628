import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.question import question


@question(
    source="datasets #7210, #5841",
    report="rows as lists; 1.4 s to 0.04 s with numpy",
    step_s=0.005,
    causes=("one-transform", "collate"),
    place=r"datasets|__getitem__|_of_lists",
    lever=r"with_format\('numpy'\)",
)
def rows_as_lists(_folder):
    """Take rows of a table as lists of numbers."""
    from datasets import Array2D, Features, Value
    from datasets import Dataset as Table

    values = np.random.default_rng(0).normal(size=(400, 200, 200)).astype(np.float32)
    features = Features({"x": Array2D((200, 200), "float32"), "y": Value("int64")})
    table = Table.from_dict({"x": values, "y": np.arange(400)}, features=features)
    twice = torch.utils.data.ConcatDataset([table] * 50)
    return DataLoader(twice, batch_size=8, num_workers=2, collate_fn=_of_lists)


def _of_lists(rows):
    values = [np.array(row["x"], np.float32) for row in rows]
    return torch.from_numpy(np.stack(values)), torch.tensor([row["y"] for row in rows])
