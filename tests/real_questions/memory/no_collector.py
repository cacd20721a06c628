import gc

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples, blocks
from real_questions.question import question


class Crop:
    """Part of an image, which knows what it was cut out of."""

    def __init__(self, view, top, left, size):
        self.view = view
        self.pixels = view.image[top : top + size, left : left + size].astype(np.float32) / 255


class View:
    """Image and its crops, two large and six small ones."""

    def __init__(self, image, draw):
        self.image = image
        self.crops = []
        for size, number in ((160, 2), (96, 6)):
            for _ in range(number):
                top, left = draw.integers(0, image.shape[0] - size, 2)
                self.crops.append(Crop(self, top, left, size))


class MultiCropDataset(Samples):
    """Crops of an image for training without labels."""

    def __init__(self):
        self.image = blocks(224, 224, 3)
        self.draw = np.random.default_rng(0)

    def __getitem__(self, index):
        view = View(np.roll(self.image, index % 224, axis=1), self.draw)
        large = np.stack([crop.pixels for crop in view.crops[:2]])
        small = np.stack([crop.pixels for crop in view.crops[2:]])
        return torch.from_numpy(large), torch.from_numpy(small)


def without_collector(_worker_id):
    gc.disable()


@question(
    source="dinov3 #150",
    report="memory rises with each step until a worker is killed; without gc.disable() it stays",
    step_s=0.06,
    causes=("memory-growth", "garbage"),
    place=r"\bgc\b|[Gg]arbage|[Cc]ollector|cycl|MultiCropDataset|[Mm]emory|[Gg]row|leak",
    lever=r"\bgc\b|[Gg]arbage|[Cc]ollector|[Cc]ycl|weakref|reference",
)
def collector_off(_folder):
    """Make cycles of objects that nobody collects."""
    return DataLoader(
        MultiCropDataset(),
        batch_size=2,
        shuffle=True,
        num_workers=2,
        worker_init_fn=without_collector,
    )
