import math

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Poses(Samples):
    """Pictures of a person, whose joints become heat maps pixel by pixel."""

    def __init__(self):
        self.joints = np.random.default_rng(0).uniform(5, 40, (500, 17, 2))
        self.image = torch.zeros(3, 184, 184)

    def __getitem__(self, index):
        heatmap = np.zeros((17, 46, 46), np.float32)
        for number, joint in enumerate(self.joints[index % 500]):
            self.put_heatmap(heatmap[number], joint)
        return self.image, heatmap

    @staticmethod
    def put_heatmap(plane, joint, sigma=2.0):
        reach = sigma * math.sqrt(2 * 4.6)
        x0, y0 = (int(max(0, one - reach)) for one in joint)
        x1, y1 = (int(min(46, one + reach)) for one in joint)
        for y in range(y0, y1):
            for x in range(x0, x1):
                exponent = ((x - joint[0]) ** 2 + (y - joint[1]) ** 2) / 2 / sigma / sigma
                if exponent <= 4.6:
                    plane[y][x] = max(plane[y][x], math.exp(-exponent))


@question(
    source="tf-pose-estimation #272",
    report="heat maps take the time, ten times as fast without loops",
    step_s=0.006,
    causes=("one-transform",),
    place=r"put_heatmap",
    lever=r"whole arrays",
)
def heat_maps(_folder):
    """Draw pixel by pixel, in Python."""
    return DataLoader(_Poses(), batch_size=16, num_workers=2)
