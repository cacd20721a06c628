import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from real_questions.parts import blocks
from real_questions.question import question

CLASSES = ("road", "kerb", "grass", "car", "person", "sign", "water")


class LoadImageFromFile:
    def __call__(self, results):
        results["img"] = Image.open(results["img_path"]).convert("RGB")
        return results


class LoadSegMaps:
    """Load the map of each class."""

    def __call__(self, results):
        results["maps"] = [Image.open(path).convert("L") for path in results["seg_paths"]]
        return results


class Resize:
    def __init__(self, size):
        self.size = size

    def __call__(self, results):
        results["img"] = results["img"].resize(self.size)
        results["maps"] = [one.resize(self.size, Image.NEAREST) for one in results["maps"]]
        return results


class PackInputs:
    def __call__(self, results):
        image = np.asarray(results["img"]).transpose(2, 0, 1)
        maps = np.stack([np.asarray(one) > 127 for one in results["maps"]])
        return torch.from_numpy(image.copy()), torch.from_numpy(maps)


class MapsDataset(Dataset):
    """Images, and what each class covers of them in a file of its own."""

    def __init__(self, folder, images=12):
        self.samples = []
        for number in range(images):
            img_path = folder / f"{number}.jpg"
            Image.fromarray(np.roll(blocks(800, 800, 3), number, 1)).save(img_path)
            seg_paths = [folder / f"{number}_{name}.png" for name in CLASSES]
            for shift, path in enumerate(seg_paths):
                covered = np.roll(blocks(800, 800), 31 * number + 7 * shift, 0) > 127
                Image.fromarray(covered.astype(np.uint8) * 255).save(path)
            self.samples.append({"img_path": img_path, "seg_paths": seg_paths})
        self.pipeline = [LoadImageFromFile(), LoadSegMaps(), Resize((256, 256)), PackInputs()]

    def __len__(self):
        return 960

    def __getitem__(self, index):
        results = dict(self.samples[index % len(self.samples)])
        for transform in self.pipeline:
            results = transform(results)
        return results


@question(
    source="mmpretrain #1099",
    report="seven maps are loaded for each image; one file in place of seven 'works'",
    step_s=0.02,
    causes=("decode", "one-transform"),
    place=r"LoadSegMaps|[Mm]aps?\b|[Ss]eg|[Pp][Nn][Gg]|[Dd]ecod|convert|Image\.open",
    lever=r"(one|single) file|merg|concatenat|combin|pack|\.npy|array|uncompressed|[Mm]emory"
    r"|\bonce\b|beforehand|cache|[Kk]eep|offline",
)
def images_with_seven_maps(folder):
    """Decode seven files of masks for each image."""
    return DataLoader(MapsDataset(folder), batch_size=8, shuffle=True, num_workers=2)
