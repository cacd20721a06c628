import time

import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Satellites(Samples):
    """Small stacks of images, one a month."""

    def __init__(self):
        self.stacks = torch.randn(100, 12, 6, 32, 32)

    def __getitem__(self, index):
        return self.stacks[index % 100]


class RandomMaskingStrategy:
    """Hides patches of an image from the encoder."""

    def apply_mask(self, batch):
        masks = torch.zeros(len(batch), 12, 6, 4, 4, dtype=torch.int64)
        for sample in range(len(batch)):
            for month in range(12):
                for band in range(6):
                    order = torch.randperm(16)
                    masks[sample, month, band].view(-1)[order[:8]] = 1
                    masks[sample, month, band].view(-1)[order[8:12]] = 2
        return masks


class TrainModule:
    """Masks a batch and trains on it."""

    def __init__(self):
        self.masking_strategy = RandomMaskingStrategy()

    def train_batch(self, batch):
        self.masking_strategy.apply_mask(batch)
        time.sleep(0.02)  # the model, on a device


def train_batch(batch):
    TrainModule().train_batch(batch)


@question(
    source="olmoearth_pretrain #467",
    report="masks are drawn in the step; in workers: 1.5 to 2 times",
    step_s=0.02,
    causes=("main-process",),
    place=r"apply_mask",
    lever=r"collate_fn|dataset|worker",
    step=lambda: train_batch,
)
def stacks_of_images(_folder):
    """Load stacks, which takes next to no time."""
    return DataLoader(_Satellites(), batch_size=4, shuffle=True, num_workers=2)
