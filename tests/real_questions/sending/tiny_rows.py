import torch
from torch.utils.data import DataLoader, TensorDataset

from real_questions.question import question


@question(
    source="lightning #17410, pytorch #154318",
    report="workers make training slow, the data is in memory",
    step_s=0.0005,
    causes=("sending",),
    place=r"more .*than .*save",
    lever=r"num_workers=0",
)
def tiny_rows(_folder):
    """Let four workers take a few numbers out of memory."""
    columns = torch.randn(60_000, 20), torch.randint(0, 9, (60_000, 4)), torch.rand(60_000)
    return DataLoader(TensorDataset(*columns), batch_size=16, shuffle=True, num_workers=4)
