import time

import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _Few(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, _index):
        return torch.zeros(3, 32, 32)


def opens_its_files(_worker):
    time.sleep(0.6)


@question(
    source="mmpretrain #196",
    report="each epoch is slow at its start",
    step_s=0.02,
    causes=("start-up",),
    place=r"every epoch",
    lever=r"persistent_workers",
)
def short_epochs(_folder):
    """Start workers for epochs of twenty batches."""
    return DataLoader(_Few(), batch_size=8, num_workers=2, worker_init_fn=opens_its_files)
