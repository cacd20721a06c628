import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Warped(Samples):
    """Slices that are deformed by splines of the third order."""

    def __init__(self):
        self.image = np.random.default_rng(0).normal(size=(160, 160)).astype(np.float32)

    def __getitem__(self, _index):
        from scipy import ndimage

        shifts = [
            ndimage.gaussian_filter(np.random.uniform(-1, 1, self.image.shape), 8) * 200
            for _ in range(2)
        ]
        where = np.indices(self.image.shape) + np.stack(shifts)
        return torch.from_numpy(ndimage.map_coordinates(self.image, where, order=3))


@question(
    source="batchgenerators #74",
    report="order 1 in place of 3, 253 s to 49 s; smaller, rarer",
    step_s=0.005,
    causes=("one-transform", "transforms"),
    place=r"__getitem__|gaussian_filter|map_coordinates",
    lever=r"works on less|less data|fewer",
)
def deformed(_folder):
    """Deform each slice, whatever it takes."""
    return DataLoader(_Warped(), batch_size=4, num_workers=2)
