import torch
from torch.utils.data import DataLoader, TensorDataset

from real_questions.question import question


@question(
    source="DeepCTR-Torch #70, pytorch #4959",
    report="slicing is four times as fast",
    step_s=0.005,
    causes=("main-process",),
    place=r"getitem|collate",
    lever=r"by one index",
)
def row_by_row(_folder):
    """Take thousands of rows of a tensor one by one, and stack them."""
    values, labels = torch.randn(200_000, 40), torch.randint(0, 2, (200_000,))
    return DataLoader(TensorDataset(values, labels), batch_size=4096, shuffle=True)
