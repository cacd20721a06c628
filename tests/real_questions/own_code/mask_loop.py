import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from real_questions.parts import Samples
from real_questions.question import question


class PDDataset(Samples):
    """Short videos of streets, with the masks of what moves there."""

    def __init__(self, length=3):
        draw = np.random.default_rng(0)
        self.length = length
        self.images = draw.integers(0, 255, (20, 125, 250, 3), dtype=np.uint8)
        self.masks = draw.integers(0, 30, (20, 10, 20)).repeat(12, 1).repeat(12, 2)
        self.img_transform = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    def __getitem__(self, index):
        import cv2

        ims, masks = [], []
        mapping: dict[int, int] = {}
        for number in range(self.length):
            place = (index + number) % 20
            image = cv2.resize(self.images[place], (72, 48))
            mask = cv2.resize(self.masks[place].astype(np.uint8), (72, 48), interpolation=0)
            count_ = 0
            for i in range(mask.shape[0]):
                for j in range(mask.shape[1]):
                    if mask[i, j] not in mapping:
                        if mask[mask == mask[i, j]].sum() > 50:
                            mapping[mask[i, j]] = count_
                            count_ += 1
                        else:
                            mapping[mask[i, j]] = 0
                    mask[i, j] = mapping[mask[i, j]]
            masks.append(torch.from_numpy(mask.astype(np.int64)))
            ims.append(self.img_transform(torch.from_numpy(image).float().permute(2, 0, 1) / 255))
        return {"image": torch.stack(ims), "mask": torch.stack(masks)}


@question(
    source="Discovery_Obj_Move #4",
    report="masks pixel by pixel; with np.unique 0.3 s to 0.01 s",
    step_s=0.006,
    causes=("one-transform",),
    place=r"__getitem__",
    lever=r"vector|NumPy|np\.|unique|\bonce\b|beforehand|[Kk]eep|\bcache",
)
def masks_of_streets(_folder):
    """Number the objects of a mask pixel by pixel."""
    return DataLoader(PDDataset(), batch_size=4, shuffle=True, num_workers=2)
