import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _Digits(Dataset):
    """Small images in memory, as MNIST's are."""

    def __init__(self):
        self.images = torch.randint(0, 256, (60_000, 28, 28), dtype=torch.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index].unsqueeze(0) / 255, index % 10


@question(
    source="style-based-gan-pytorch #108",
    report="with several workers low resolutions are slower",
    step_s=0.0005,
    causes=("sending",),
    place=r"more .*than .*save",
    lever=r"num_workers=0",
)
def small_images(_folder):
    """Let two workers make batches that take as long to be sent as to be made."""
    return DataLoader(_Digits(), batch_size=8, shuffle=True, num_workers=2)
