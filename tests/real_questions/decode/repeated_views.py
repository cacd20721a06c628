import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision import transforms

from real_questions.parts import blocks
from real_questions.question import question


class RepeatedRandomSampler(Sampler):
    """Draw images at random, each as often as there are views of it."""

    def __init__(self, dataset, n_views):
        self.dataset, self.n_views = dataset, n_views

    def __len__(self):
        return len(self.dataset) * self.n_views

    def __iter__(self):
        for index in torch.randperm(len(self.dataset)).tolist():
            yield from [index] * self.n_views


class MultiViewTransform:
    """Apply one transform after the other, one at each call."""

    def __init__(self, several):
        self.several, self.counter = several, 0

    def __call__(self, image):
        transform = self.several[self.counter % len(self.several)]
        self.counter += 1
        return transform(image)


def crop(scale):
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(96, scale=scale),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
        ]
    )


class Photos(Dataset):
    """Photos in a folder."""

    def __init__(self, folder, transform, photos=30):
        self.transform = transform
        self.paths = [folder / f"{number}.jpg" for number in range(photos)]
        for number, path in enumerate(self.paths):
            Image.fromarray(np.roll(blocks(640, 800, 3), 8 * number, 1)).save(path, quality=92)

    def __len__(self):
        return 300

    def __getitem__(self, index):
        image = Image.open(self.paths[index % len(self.paths)]).convert("RGB")
        return self.transform(image), index


@question(
    source="stable-pretraining #310, #315",
    report="with RepeatedRandomSampler the same image is loaded 8 times, for its 8 views",
    step_s=0.05,
    causes=("decode", "one-transform", "repeated-work"),
    place=r"RepeatedRandomSampler|[Ss]ampler|Photos|__getitem__|[Dd]ecod|[Jj][Pp][Ee]?[Gg]|convert",
    lever=r"\bonce\b|same (image|file|sample)|repeat|cache|[Kk]eep|all views|several views|n_views",
)
def views_of_photos(folder):
    """Load a photo again for each of its views."""
    views = MultiViewTransform([crop((0.4, 1))] * 2 + [crop((0.05, 0.4))] * 6)
    dataset = Photos(folder, views)
    sampler = RepeatedRandomSampler(dataset, n_views=8)
    return DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=2, drop_last=True)
