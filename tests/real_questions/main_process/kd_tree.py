import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class PartDataset(Dataset):
    """Points of chairs and lamps, and which one it is."""

    def __init__(self, folder, shapes=40, points=1024):
        self.points = points
        self.paths = [folder / f"shape_{number}.npy" for number in range(shapes)]
        draw = np.random.default_rng(0)
        for path in self.paths:
            np.save(path, draw.normal(size=(2 * points, 3)).astype(np.float32))

    def __len__(self):
        return 400

    def __getitem__(self, index):
        points = np.load(self.paths[index % len(self.paths)])
        points = points[np.random.choice(len(points), self.points, replace=False)]
        points = points - points.mean(0)
        points /= np.linalg.norm(points, axis=1).max()
        return torch.from_numpy(points), index % 16


def split_ps(points):
    """Halve the points at the median of their longest side."""
    longest = int((points.max(dim=0)[0] - points.min(dim=0)[0]).argmax())
    order = points[:, longest].argsort()
    middle = len(points) // 2
    return points[order[:middle]], points[order[middle:]], longest


def build_tree(points):
    """Put points in the order of a k-d tree's leaves, with the side that each level splits."""
    sides, parts = [], [points]
    while len(parts[0]) > 1:
        split = [split_ps(part) for part in parts]
        parts = [half for left, right, _ in split for half in (left, right)]
        sides.append(torch.tensor([longest for _, _, longest in split]))
    return torch.cat(parts), sides


def train_batch(batch):
    points, _labels = batch
    trees = [build_tree(cloud) for cloud in points]
    torch.stack([leaves for leaves, _ in trees])
    time.sleep(0.01)  # the network, on a device


@question(
    source="kdnet.pytorch #4, #5",
    report="split_ps, for the k-d tree of each cloud, is the bottleneck; in C 2 s to 0.13 s",
    step_s=0.01,
    causes=("main-process",),
    place=r"split_ps|build_tree|train_batch",
    lever=r"collate_fn|[Dd]ataset|\b(in|into|to) (the )?workers?\b|vectori|NumPy|numpy|[Ss]ci[Pp]y"
    r"|\bin C\b|C\+\+|compil|numba|\bonce\b|beforehand|cache|[Kk]eep",
    step=lambda: train_batch,
)
def clouds_for_kdnet(folder):
    """Load clouds in no time; their trees are built in the training loop."""
    return DataLoader(PartDataset(folder), batch_size=4, shuffle=True, num_workers=2)
