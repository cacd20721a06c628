import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


def nonlinear_transformation(image, prob=0.5):
    """Map grey values along a random curve."""
    if random.random() >= prob:
        return image
    (x_1, y_1), (x_2, y_2) = np.random.rand(2, 2)
    t = np.linspace(0, 1, 1000)
    xs = 3 * x_1 * t * (1 - t) ** 2 + 3 * x_2 * t**2 * (1 - t) + t**3
    ys = 3 * y_1 * t * (1 - t) ** 2 + 3 * y_2 * t**2 * (1 - t) + t**3
    return np.interp(image, np.sort(xs), np.sort(ys))


def local_pixel_shuffling(image, prob=0.5, num_block=3000):
    """Shuffle the pixels of many small windows, each in itself."""
    if random.random() >= prob:
        return image
    shuffled = image.copy()
    rows, cols = image.shape
    for _ in range(num_block):
        height = random.randint(1, rows // 10)
        width = random.randint(1, cols // 10)
        top = random.randint(0, rows - height)
        left = random.randint(0, cols - width)
        window = image[top : top + height, left : left + width].flatten()
        np.random.shuffle(window)
        shuffled[top : top + height, left : left + width] = window.reshape(height, width)
    return shuffled


def in_painting(image, prob=0.5):
    """Hide a few windows by noise."""
    if random.random() >= prob:
        return image
    painted = image.copy()
    for _ in range(5):
        height, width = random.randint(20, 40), random.randint(20, 40)
        top, left = random.randint(0, 128 - height), random.randint(0, 128 - width)
        painted[top : top + height, left : left + width] = np.random.rand(height, width)
    return painted


class GenesisSlices(Dataset):
    """Slices of chests, to be restored from what the transformations left of them."""

    def __init__(self):
        self.slices = np.random.default_rng(0).random((64, 128, 128))

    def __len__(self):
        return 960

    def __getitem__(self, index):
        original = self.slices[index % 64]
        image = local_pixel_shuffling(original)
        image = nonlinear_transformation(image)
        image = in_painting(image)
        return torch.from_numpy(image[None]).float(), torch.from_numpy(original[None]).float()


@question(
    source="ModelsGenesis #24",
    report="20 s a batch for the transformations; fewer blocks in pixel shuffling helped",
    step_s=0.03,
    causes=("one-transform", "transforms"),
    place=r"shuffl",
    lever=r"vectori|[Ll]oop|fewer|numba|compil|NumPy|numpy|rarer|less often|probab|cheaper|faster",
)
def restored_slices(_folder):
    """Distort slices in many ways, one of them window by window."""
    return DataLoader(GenesisSlices(), batch_size=16, shuffle=True, num_workers=2, drop_last=True)
