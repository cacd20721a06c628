import numpy as np
import torch
from scipy.spatial import distance_matrix
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class Mesh_Dataset(Dataset):  # noqa: N801
    """Scans of teeth: features of the cells of a mesh, and which cells are near each other."""

    def __init__(self, folder, scans=20, patch_size=1000):
        self.patch_size = patch_size
        self.paths = [folder / f"scan_{number}.npz" for number in range(scans)]
        draw = np.random.default_rng(0)
        for path in self.paths:
            corners = draw.random((2500, 9), dtype=np.float32)
            centres = corners.reshape(-1, 3, 3).mean(1)
            normals = draw.normal(size=(2500, 3)).astype(np.float32)
            labels = draw.integers(0, 15, 2500)
            np.savez(path, cells=np.hstack([corners, centres, normals]), labels=labels)

    def __len__(self):
        return 400

    def __getitem__(self, index):
        with np.load(self.paths[index % len(self.paths)]) as scan:
            cells, labels = scan["cells"], scan["labels"]
        cells = (cells - cells.mean(0)) / cells.std(0)
        chosen = np.random.choice(len(cells), self.patch_size, replace=False)
        cells, labels = cells[chosen], labels[chosen]

        distances = distance_matrix(cells[:, 9:12], cells[:, 9:12])
        near = (distances < 0.4).astype(np.float32)
        near /= near.sum(axis=1, keepdims=True)
        wide = (distances < 0.8).astype(np.float32)
        wide /= wide.sum(axis=1, keepdims=True)
        return {
            "cells": torch.from_numpy(cells.T.copy()),
            "labels": torch.from_numpy(labels),
            "A_S": torch.from_numpy(near),
            "A_L": torch.from_numpy(wide),
        }


@question(
    source="MeshSegNet #31",
    report="the bottleneck is preprocessing; torch.cdist for distance_matrix, about 4 times",
    step_s=0.02,
    causes=("one-transform",),
    place=r"distance_matrix|scipy|Mesh_Dataset|__getitem__",
    lever=r"cdist|vectori|[Bb]roadcast|KD|[Tt]ree|device|GPU|compil|faster"
    r"|another (library|routine)|torch\.",
)
def cells_of_scans(folder):
    """Measure the distances of all cells for each sample."""
    return DataLoader(Mesh_Dataset(folder), batch_size=4, shuffle=True, num_workers=2)
