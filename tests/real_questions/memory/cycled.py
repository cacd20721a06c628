import itertools

import numpy as np
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms

from real_questions.question import question


class CameraDataset(Dataset):
    """What cameras around an object see of it."""

    def __init__(self, folder, cameras=10_000, images=40):
        from PIL import Image

        self.cam_infos = [folder / f"r_{number % images}.png" for number in range(cameras)]
        draw = np.random.default_rng(0)
        for path in self.cam_infos[:images]:
            image = draw.integers(0, 255, (8, 8, 4), dtype=np.uint8)
            Image.fromarray(image).resize((200, 200)).save(path)
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Resize((160, 160))])

    def __len__(self):
        return len(self.cam_infos)

    def __getitem__(self, idx):
        from PIL import Image

        gt_image = Image.open(self.cam_infos[idx])
        loaded_mask = self.transform(gt_image.split()[3]).repeat(3, 1, 1)
        original_image = self.transform(gt_image.convert("RGB")).clamp(0.0, 1.0) * loaded_mask
        return {"uid": idx, "original_image": original_image, "image_mask": loaded_mask}


class Iterations:
    """The batches of a training that counts iterations, not epochs."""

    def __init__(self, dataloader, iterations):
        self.dataloader, self.iterations = dataloader, iterations

    def __len__(self):
        return self.iterations

    def __iter__(self):
        return itertools.islice(itertools.cycle(self.dataloader), self.iterations)


@question(
    source="SSS-GS #6, #7",
    report="RAM grows until killed; itertools.cycle keeps all batches, iter() does not",
    step_s=0.2,
    causes=("memory-growth", "shm"),
    place=r"[Mm]emor|/dev/shm|grow|Iterations|cycle",
    lever=r"cycle|\bcache|[Kk]eep|kept|\bh[oe]ld|\biter\(|referenc|releas|stor(e|es|ed|ing)\b",
)
def cameras_in_cycles(folder):
    """Keep each batch for the time when all have been seen."""
    dataset = CameraDataset(folder)
    sampler = RandomSampler(dataset, replacement=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2, drop_last=True)
    return Iterations(loader, iterations=30_000)
