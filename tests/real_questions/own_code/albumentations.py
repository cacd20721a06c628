import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Signs(Samples):
    """Photographs of text as floats, changed by albumentations."""

    def __init__(self):
        import albumentations

        self.images = np.random.default_rng(0).random((8, 512, 512, 3), dtype=np.float32)
        self.augment = albumentations.Compose(
            [
                albumentations.Affine(rotate=(-5, 5), p=1.0),
                albumentations.RGBShift(p=1.0),
                albumentations.CLAHE(p=0.5),
                albumentations.HueSaturationValue(p=1.0),
                albumentations.MedianBlur(blur_limit=5, p=0.5),
                albumentations.RandomBrightnessContrast(p=1.0),
            ]
        )

    def __getitem__(self, index):
        image = self.augment(image=self.images[index % 8])["image"]
        return torch.from_numpy(image.transpose(2, 0, 1).copy())


@question(
    source="albumentations #717",
    report="up to four times as fast on uint8; Normalize last",
    step_s=0.01,
    causes=("one-transform", "transforms"),
    place=r"",
    lever=r"uint8",
)
def floats_of_albumentations(_folder):
    """Change images of float32 where uint8 takes a quarter."""
    return DataLoader(_Signs(), batch_size=8, shuffle=True, num_workers=2)
