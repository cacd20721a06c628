import numpy as np
import torch
from PIL import Image
from scipy.ndimage import distance_transform_edt
from torch.utils.data import DataLoader, Dataset

from real_questions.parts import blocks
from real_questions.question import question


def one_hot2dist(one_hot):
    """Signed distance of each pixel to the boundary of each class."""
    distances = np.zeros(one_hot.shape, dtype=np.float32)
    for number, inside in enumerate(one_hot):
        if inside.any():
            outside = distance_transform_edt(~inside) * ~inside
            distances[number] = outside - (distance_transform_edt(inside) - 1) * inside
    return distances


class SliceDataset(Dataset):
    """Slices of brains, their lesions, and distances to these for a boundary loss."""

    def __init__(self, folder, slices=40):
        self.images = [folder / f"img_{number}.png" for number in range(slices)]
        self.masks = [folder / f"gt_{number}.png" for number in range(slices)]
        rows, columns = np.mgrid[:256, :256]
        for number, (image, mask) in enumerate(zip(self.images, self.masks, strict=True)):
            Image.fromarray(np.roll(blocks(256, 256), number, 0)).save(image)
            lesion = (rows - 100 - number) ** 2 + (columns - 120) ** 2 < (20 + number) ** 2
            Image.fromarray(lesion.astype(np.uint8)).save(mask)

    def __len__(self):
        return 800

    def __getitem__(self, index):
        image = np.array(Image.open(self.images[index % len(self.images)]), dtype=np.float32)
        mask = np.array(Image.open(self.masks[index % len(self.masks)]))
        one_hot = np.stack([mask == number for number in range(2)])
        return {
            "images": torch.from_numpy(image[None] / 255),
            "gt": torch.from_numpy(one_hot),
            "boundary": torch.from_numpy(one_hot2dist(one_hot)),
        }


@question(
    source="boundary-loss #59",
    report="distances are computed on the CPU; in the loader this 'does not slow down at all'",
    step_s=0.25,
    causes=("healthy",),
    place=r"[Hh]ealthy|keep|in time|fast enough|wait|hardly",
    lever=r"model|step|device|GPU|train|nothing|compute",
)
def slices_with_distances(folder):
    """Compute distances in workers, in less time than the model needs."""
    return DataLoader(SliceDataset(folder), batch_size=8, shuffle=True, num_workers=2)
