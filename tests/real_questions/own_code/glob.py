import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from real_questions.parts import blocks
from real_questions.question import question


class _Carvana(Dataset):
    """Images and masks that are looked for in their folders by a pattern."""

    def __init__(self, folder):
        self.images_dir, self.mask_dir = folder / "imgs", folder / "masks"
        for where, name in ((self.images_dir, "{}.jpg"), (self.mask_dir, "{}_mask.png")):
            where.mkdir(exist_ok=True)
            first = where / name.format("0000")
            Image.fromarray(blocks(256, 256)).save(first)
            for number in range(1, 5088):
                (where / name.format(f"{number:04d}")).hardlink_to(first)
        self.ids = [f"{number:04d}" for number in range(5088)]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        name = self.ids[index]
        mask_file = list(self.mask_dir.glob(name + "_mask" + ".*"))
        img_file = list(self.images_dir.glob(name + ".*"))
        img = np.asarray(Image.open(img_file[0]).convert("RGB")).transpose((2, 0, 1)) / 255.0
        mask = np.asarray(Image.open(mask_file[0])) > 127
        return torch.as_tensor(img.copy()).float(), torch.as_tensor(mask.copy()).long()


@question(
    source="Pytorch-UNet #317",
    report="infer the names, do not glob; 'its training fast now'",
    step_s=0.02,
    causes=("one-transform",),
    place=r"__getitem__|glob",
    lever=r"once|beforehand",
)
def glob_of_folders(folder):
    """Look all names of two folders through for each sample."""
    return DataLoader(_Carvana(folder), batch_size=4, shuffle=True, num_workers=2)
