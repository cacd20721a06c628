import random

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from real_questions.parts import Samples
from real_questions.question import ONCE, question


class Resample:
    """Resamples a slice to the wanted size of its pixels."""

    def __init__(self, hspace, wspace):
        self.hspace, self.wspace = hspace, wspace

    def __call__(self, sample):
        from scipy.ndimage import zoom

        image, spacing = sample
        factors = (spacing[0] / self.hspace, spacing[1] / self.wspace)
        return zoom(image, zoom=factors, order=2)


class CenterCrop2D:
    """Cuts the middle out."""

    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        top, left = ((side - self.size) // 2 for side in image.shape)
        return image[top : top + self.size, left : left + self.size]


class RandomShift:
    """Moves a slice by some pixels."""

    def __call__(self, image):
        return np.roll(image, (random.randint(-5, 5), random.randint(-5, 5)), (0, 1))


class NormalizeInstance:
    """Scales by the mean and the deviation of the slice."""

    def __call__(self, image):
        tensor = torch.from_numpy(np.ascontiguousarray(image, dtype=np.float32))[None]
        return (tensor - tensor.mean()) / tensor.std()


class _MriSlices(Samples):
    """Slices of the spine, with the size of their pixels, in memory."""

    def __init__(self):
        draw = np.random.default_rng(0)
        self.indexes = [(draw.random((320, 320)), (0.75, 0.75)) for _ in range(40)]
        self.transform = transforms.Compose(
            [Resample(0.5, 0.5), CenterCrop2D(128), RandomShift(), NormalizeInstance()]
        )

    def __getitem__(self, index):
        return self.transform(self.indexes[index % 40])


@question(
    source="ivadomed #276",
    report="slices are resampled at each iteration; done once, beforehand",
    step_s=0.02,
    causes=("one-transform", "transforms"),
    place=r"Resample|zoom",
    lever=ONCE,
)
def resampled_slices(_folder):
    """Resample what is the same at each epoch."""
    return DataLoader(_MriSlices(), batch_size=8, shuffle=True, num_workers=2)
