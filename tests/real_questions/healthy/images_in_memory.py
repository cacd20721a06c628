import random

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class LoadImagesAndLabels(Samples):
    """Images with boxes, read and augmented when they are asked for."""

    def __init__(self, folder, img_size=640, images=60):
        import cv2

        draw = np.random.default_rng(0)
        self.img_size = img_size
        self.img_files = [str(folder / f"{number}.jpg") for number in range(images)]
        for path in self.img_files:
            small = draw.integers(0, 255, (24, 24, 3), dtype=np.uint8)
            cv2.imwrite(path, cv2.resize(small, (800, 800)))
        self.labels = [draw.random((30, 5), dtype=np.float32) for _ in self.img_files]

    def load_image(self, i):
        import cv2

        im = cv2.imread(self.img_files[i])
        ratio = self.img_size / max(im.shape[:2])
        return cv2.resize(im, None, fx=ratio, fy=ratio, interpolation=cv2.INTER_LINEAR)

    def augment_hsv(self, im):
        import cv2

        gains = np.random.uniform(-1, 1, 3) * [0.015, 0.7, 0.4] + 1
        channels = cv2.split(cv2.cvtColor(im, cv2.COLOR_BGR2HSV))
        values = np.arange(256)
        tables = [(values * gains[0]) % 180, *(np.clip(values * g, 0, 255) for g in gains[1:])]
        changed = [
            cv2.LUT(channel, table.astype(np.uint8))
            for channel, table in zip(channels, tables, strict=True)
        ]
        return cv2.cvtColor(cv2.merge(changed), cv2.COLOR_HSV2BGR)

    def __getitem__(self, index):
        index %= len(self.img_files)
        img, labels = self.augment_hsv(self.load_image(index)), self.labels[index]
        if random.random() < 0.5:
            img = np.fliplr(img)
        labels_out = torch.zeros(len(labels), 6)
        labels_out[:, 1:] = torch.from_numpy(labels)
        return torch.from_numpy(np.ascontiguousarray(img.transpose(2, 0, 1)[::-1])), labels_out

    @staticmethod
    def collate_fn(batch):
        im, label = zip(*batch, strict=True)
        for number, boxes in enumerate(label):
            boxes[:, 0] = number
        return torch.stack(im), torch.cat(label)


@question(
    source="yolov5 #6457",
    report="a long time per epoch; with --cache, or on a RAM disk, it is 'very similar'",
    step_s=0.06,
    causes=("healthy",),
    place=r"[Hh]ealthy|keep|in time|fast enough|wait|hardly",
    lever=r"model|step|device|GPU|train|nothing|compute",
)
def images_of_wheat(folder):
    """Read images from the disk, which is quick enough for the model."""
    dataset = LoadImagesAndLabels(folder)
    return DataLoader(
        dataset, batch_size=4, shuffle=True, num_workers=2, collate_fn=dataset.collate_fn
    )
