import numpy as np
import torch
from scipy import ndimage
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class Spatial:
    def __call__(self, image, label):
        angle, scale = np.random.uniform(-0.5, 0.5), np.random.uniform(0.7, 1.4)
        cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
        matrix = np.array([[scale, 0, 0], [0, cos, -sin], [0, sin, cos]])
        centre = (np.array(image.shape) - 1) / 2
        offset = centre - matrix @ centre
        image = ndimage.affine_transform(image, matrix, offset, order=1)
        return image, ndimage.affine_transform(label, matrix, offset, order=0)


class GaussianNoise:
    def __call__(self, image, label):
        noise = np.random.normal(0, np.random.uniform(0, 0.1), image.shape)
        return (image + noise).astype(np.float32), label


class GaussianBlur:
    def __call__(self, image, label):
        return ndimage.gaussian_filter(image, np.random.uniform(0.5, 1)), label


class Contrast:
    def __call__(self, image, label):
        mean, low, high = image.mean(), image.min(), image.max()
        factor = np.random.uniform(0.75, 1.25)
        return np.clip((image - mean) * factor + mean, low, high).astype(np.float32), label


class LowResolution:
    def __call__(self, image, label):
        small = ndimage.zoom(image, 0.5, order=0)
        return ndimage.zoom(small, 2, order=1), label


class Gamma:
    def __call__(self, image, label):
        low, width = image.min(), np.ptp(image) + 1e-7
        gamma = np.random.uniform(0.7, 1.5)
        return (((image - low) / width) ** gamma * width + low).astype(np.float32), label


class Mirror:
    def __call__(self, image, label):
        axis = np.random.randint(3)
        return np.flip(image, axis).copy(), np.flip(label, axis).copy()


class Cases(Dataset):
    """Patches of volumes that were preprocessed, augmented as nnU-Net does."""

    def __init__(self):
        draw = np.random.default_rng(0)
        self.images = draw.normal(size=(4, 80, 80, 80)).astype(np.float32)
        self.labels = draw.integers(0, 3, (4, 80, 80, 80)).astype(np.int16)
        self.transforms = [
            Spatial(),
            GaussianNoise(),
            GaussianBlur(),
            Contrast(),
            LowResolution(),
            Gamma(),
            Mirror(),
        ]

    def __len__(self):
        return 300

    def __getitem__(self, index):
        patch = tuple(slice(start, start + 64) for start in np.random.randint(0, 16, 3))
        image, label = self.images[index % 4][patch], self.labels[index % 4][patch]
        for transform in self.transforms:
            image, label = transform(image, label)
        return torch.from_numpy(image[None]), torch.from_numpy(label[None])


@question(
    source="nnUNet #3063",
    report="most of the workers' time is augmentations; batched on the GPU, half of the time",
    step_s=0.03,
    causes=("transforms", "one-transform"),
    place=r"[Tt]ransform|[Aa]ugment|Spatial|affine|Cases|__getitem__",
    lever=r"device|GPU|accelerator|batched|whole batch|cheaper|fewer|rarer|less often",
)
def augmented_patches(_folder):
    """Distort volumes by seven augmentations on the CPU."""
    return DataLoader(Cases(), batch_size=2, shuffle=True, num_workers=2)
