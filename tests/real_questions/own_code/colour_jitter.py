import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Droid(Samples):
    """Clips of robots, whose colours change at random."""

    def __init__(self):
        from torchvision.transforms import v2

        self.clips = torch.randint(0, 256, (4, 17, 3, 180, 320), dtype=torch.uint8)
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop((180, 320), scale=(0.9, 1.0), antialias=True),
                v2.ColorJitter(brightness=0.3, contrast=0.4, saturation=0.5, hue=0.08),
            ]
        )

    def __getitem__(self, index):
        return self.transform(self.clips[index % 4])


@question(
    source="cosmos-framework #174",
    report="ColorJitter in workers is the bottleneck; on the device",
    step_s=0.03,
    causes=("one-transform", "transforms"),
    place=r"ColorJitter",
    lever=r"device|GPU",
)
def colours_of_clips(_folder):
    """Change colours on the workers' cores."""
    return DataLoader(_Droid(), batch_size=2, shuffle=True, num_workers=2)
