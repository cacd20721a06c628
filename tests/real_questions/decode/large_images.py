import numpy as np
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

from real_questions.parts import Samples
from real_questions.question import question


class _Photographs(Samples):
    """Photographs of twelve megapixels, used at 224 pixels."""

    def __init__(self, folder):
        noise = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)
        self.path = folder / "large.jpg"
        Image.fromarray(noise).resize((4000, 3000)).save(self.path)
        self.transform = transforms.Compose(
            [transforms.Resize((224, 224)), transforms.ToTensor(), transforms.Normalize(0.5, 0.2)]
        )

    def __getitem__(self, index):
        return self.transform(Image.open(self.path).convert("RGB"))


@question(
    source="several",
    report="resizing and decoding share the cost",
    step_s=0.05,
    causes=("decode",),
    place=r"larger than",
    lever=r"store|smaller",
)
def large_images(folder):
    """Decode and resize photographs that are stored far larger than they are used."""
    return DataLoader(_Photographs(folder), batch_size=4, num_workers=2)
