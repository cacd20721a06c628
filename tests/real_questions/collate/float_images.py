import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Floats(Samples):
    """Images of uint8 that become floats in each `__getitem__`."""

    def __init__(self):
        self.images = torch.randint(0, 256, (32, 3, 192, 192), dtype=torch.uint8)

    def __getitem__(self, index):
        return self.images[index % 32].float().div_(255), index % 10


@question(
    source="modern-yolonas #42, sleap-nn #434",
    report="float32 leaves the workers where uint8 would do",
    step_s=0.01,
    causes=("collate", "sending"),
    place=r"uint8 would hold",
    lever=r"uint8.*on the device",
)
def float_images(_folder):
    """Collate and send four times the bytes that there are."""
    return DataLoader(_Floats(), batch_size=128, num_workers=2)
