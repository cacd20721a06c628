import time

import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import Question


class _Few(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, _index):
        return torch.zeros(3, 32, 32)


def opens_its_files(_worker):
    time.sleep(0.6)


def short_epochs(_folder):
    """Start workers for epochs of twenty batches."""
    return DataLoader(_Few(), batch_size=8, num_workers=2, worker_init_fn=opens_its_files)


QUESTION = Question(
    name="short-epochs",
    source="mmpretrain #196",
    report="each epoch is slow at its start",
    make=short_epochs,
    step_s=0.02,
    causes=("start-up",),
    place=r"every epoch",
    lever=r"persistent_workers",
)
