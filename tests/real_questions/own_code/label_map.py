import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class SemanticDataset(Samples):
    """Streets, with a mask of which the numbers are those of the files, not those of classes."""

    def __init__(self, count=12):
        draw = np.random.default_rng(0)
        self.images = draw.integers(0, 255, (count, 512, 1024, 3), dtype=np.uint8)
        coarse = draw.integers(0, 34, (count, 16, 32), dtype=np.uint8)
        self.masks = coarse.repeat(32, axis=1).repeat(32, axis=2)
        self.label_mapping = {number: number % 19 for number in range(34)} | {34: 255}

    def convert_label(self, label):
        temp = label.copy()
        for old, new in self.label_mapping.items():
            label[temp == old] = new
        return label

    def __getitem__(self, index):
        import cv2

        number = index % len(self.images)
        mask = self.convert_label(self.masks[number].copy())
        image = cv2.resize(self.images[number], (320, 160))
        mask = cv2.resize(mask, (320, 160), interpolation=cv2.INTER_NEAREST)
        return torch.from_numpy(image).permute(2, 0, 1), torch.from_numpy(mask)


@question(
    source="ultralytics #25813",
    report="a pass over the mask for each label; with a lookup table 17 times",
    step_s=0.006,
    causes=("one-transform", "transforms"),
    place=r"convert_label|SemanticDataset|__getitem__",
    lever=r"look-?up|table|LUT|at once|vector|one pass|"
    r"\bonce\b|beforehand|in advance|smaller first",
)
def masks_of_labels(_folder):
    """Go over the whole mask for each number it may have."""
    return DataLoader(SemanticDataset(), batch_size=8, shuffle=True, num_workers=2)
