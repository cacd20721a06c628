import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _HighResolution(Samples):
    """Small patches of large PNG, which are read whole."""

    def __init__(self, folder):
        import cv2

        noise = np.random.default_rng(0).integers(0, 255, (180, 256, 3), dtype=np.uint8)
        self.paths = [str(folder / f"{number}.png") for number in range(4)]
        for path in self.paths:
            cv2.imwrite(path, cv2.resize(noise, (2048, 1440)))

    def __getitem__(self, index):
        import cv2

        image = cv2.imread(self.paths[index % 4])
        top, left = np.random.randint(1440 - 96), np.random.randint(2048 - 96)
        patch = image[top : top + 96, left : left + 96]
        return torch.from_numpy(patch.transpose(2, 0, 1).copy())


@question(
    source="BasicSR #219, #214",
    report="store smaller sub-images",
    step_s=0.01,
    causes=("decode", "one-transform"),
    place=r"[Dd]ecod|__getitem__",
    lever=r"crop|smaller|pieces",
)
def patches_of_png(folder):
    """Decode two thousand pixels a side for a hundred."""
    return DataLoader(_HighResolution(folder), batch_size=4, shuffle=True, num_workers=2)
