import numpy as np
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

from real_questions.parts import Samples
from real_questions.question import question


class _Portraits(Samples):
    """Photographs whose colours are changed at full size, before they are cropped."""

    def __init__(self):
        noise = np.random.default_rng(0).integers(0, 255, (600, 800, 3), dtype=np.uint8)
        self.image = Image.fromarray(noise)
        colours = [transforms.ColorJitter(**{name: 0.2}) for name in ("brightness", "contrast")]
        self.transform = transforms.Compose(
            [
                *colours,
                transforms.ColorJitter(saturation=0.2),
                transforms.RandomHorizontalFlip(),
                transforms.RandomCrop(128),
                transforms.ToTensor(),
            ]
        )

    def __getitem__(self, _index):
        return self.transform(self.image.copy())


@question(
    source="Portrait-Segmentation #33",
    report="cropping first takes a fifth of the time",
    step_s=0.006,
    causes=("transforms",),
    place=r"ColorJitter",
    lever=r"crop or resize first",
)
def cropped_last(_folder):
    """Change the colours of pixels that are cropped away."""
    return DataLoader(_Portraits(), batch_size=8, num_workers=2)
