from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import Question

if TYPE_CHECKING:
    from pathlib import Path


class _HighResolution(Dataset):
    """Small patches of large PNG, which are read whole."""

    def __init__(self, folder: Path) -> None:
        import cv2

        noise = np.random.default_rng(0).integers(0, 255, (180, 256, 3), dtype=np.uint8)
        self.paths = [str(folder / f"{number}.png") for number in range(4)]
        for path in self.paths:
            cv2.imwrite(path, cv2.resize(noise, (2048, 1440)))

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        import cv2

        image = cv2.imread(self.paths[index % 4])
        top, left = np.random.randint(1440 - 96), np.random.randint(2048 - 96)
        patch = image[top : top + 96, left : left + 96]
        return torch.from_numpy(patch.transpose(2, 0, 1).copy())


def patches_of_png(folder: Path) -> DataLoader:
    """Decode two thousand pixels a side for a hundred."""
    return DataLoader(_HighResolution(folder), batch_size=4, shuffle=True, num_workers=2)


QUESTION = Question(
    name="png",
    source="BasicSR #219, #214",
    report="store smaller sub-images",
    make=patches_of_png,
    step_s=0.01,
    causes=("decode", "one-transform"),
    place=r"[Dd]ecod|__getitem__",
    lever=r"crop|smaller|pieces",
)
