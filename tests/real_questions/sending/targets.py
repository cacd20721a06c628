import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class CocoDetection(Dataset):
    """Images, with what is known of the objects on them."""

    def __init__(self, count=200):
        draw = np.random.default_rng(0)
        self.images = torch.from_numpy(draw.integers(0, 255, (count, 3, 96, 96), dtype=np.uint8))
        self.boxes = [torch.rand(draw.integers(1, 12), 4) for _ in range(count)]

    def __len__(self):
        return 500_000

    def __getitem__(self, index):
        number = index % len(self.images)
        boxes = self.boxes[number]
        target = {
            "boxes": boxes.clone(),
            "labels": torch.randint(0, 80, (len(boxes),)),
            "image_id": torch.tensor([number]),
            "area": boxes[:, 2] * boxes[:, 3],
            "iscrowd": torch.zeros(len(boxes), dtype=torch.int64),
            "orig_size": torch.tensor([480, 640]),
            "size": torch.tensor([96, 96]),
        }
        return self.images[number], target


def collate_fn(batch):
    images, targets = zip(*batch, strict=True)
    return torch.stack(images), targets


@question(
    source="rf-detr #1399",
    report="a batch is sent as 114 tensors; as nine it is 1.25 to 1.67 times as fast",
    step_s=0.006,
    causes=("sending",),
    place=r"[Ss]end|tensors\b|collate_fn|hand",
    lever=r"one tensor|few(er)?\b|pack|concat|\bcat\b|larger|single|together|stack",
)
def targets_of_images(_folder):
    """Send seven small tensors for each image."""
    return DataLoader(
        CocoDetection(), batch_size=16, shuffle=True, num_workers=2, collate_fn=collate_fn
    )
