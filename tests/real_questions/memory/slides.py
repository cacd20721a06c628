from functools import cached_property

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from real_questions.question import question


class Wsi:
    """An open slide, with what its library keeps of it."""

    def __init__(self, path):
        self.level = np.load(path)

    def read_region(self, location, size):
        x, y = location
        return self.level[y : y + size, x : x + size]


class WsiDataset(Dataset):
    """Patches of one slide."""

    def __init__(self, file_path, patches=64, size=64):
        self._file_path, self._patches, self._size = file_path, patches, size

    def __len__(self):
        return self._patches

    @cached_property
    def _wsi(self):
        return Wsi(self._file_path)

    @cached_property
    def _coords(self):
        height, width = self._wsi.level.shape[:2]
        high = (width - self._size, height - self._size)
        return np.random.default_rng(0).integers(0, high, (self._patches, 2))

    def __getitem__(self, index):
        patch = self._wsi.read_region(self._coords[index], self._size)
        return torch.from_numpy(patch.transpose(2, 0, 1).copy())


class MultiWsiDataset(ConcatDataset):
    """Patches of many slides, one slide after the other."""

    def __init__(self, folder, slides=30_000, files=12):
        draw = np.random.default_rng(0)
        paths = [folder / f"slide_{number}.npy" for number in range(files)]
        for path in paths:
            np.save(path, draw.integers(0, 255, (900, 800, 3), dtype=np.uint8))
        super().__init__([WsiDataset(paths[number % files]) for number in range(slides)])


@question(
    source="eva #387, #388",
    report="memory builds up with each slide's cached properties; an LRU cache",
    step_s=0.03,
    causes=("memory-growth",),
    place=r"[Mm]emor|grow|WsiDataset|_wsi|cached",
    lever=r"\bcache|LRU|lru|bound|limit|maxsize|[Kk]eep|kept|\bh[oe]ld|stor(e|es|ed|ing)\b|clos",
)
def patches_of_slides(folder):
    """Leave each slide open that a worker has read from."""
    return DataLoader(MultiWsiDataset(folder), batch_size=8, num_workers=2)
