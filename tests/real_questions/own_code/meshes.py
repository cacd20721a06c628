import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Humans(Samples):
    """Points around a mesh, drawn anew for each sample, with which of them are inside."""

    def __init__(self):
        draw = np.random.default_rng(0)
        normals = draw.normal(size=(10_000, 3))
        self.normals = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        self.vertices = self.normals * (1 + 0.1 * np.sin(5 * self.normals[:, :1]))
        self.image = torch.zeros(3, 256, 256)

    def select_sampling_method(self):
        from scipy.spatial import cKDTree

        chosen = np.random.randint(0, len(self.vertices), 16_000)
        near = self.vertices[chosen] + np.random.normal(scale=0.05, size=(16_000, 3))
        points = np.concatenate([near, np.random.uniform(-1.3, 1.3, (1000, 3))])
        _, nearest = cKDTree(self.vertices).query(points)
        offset = points - self.vertices[nearest]
        inside = (offset * self.normals[nearest]).sum(axis=1) < 0
        keep = np.concatenate([np.nonzero(inside)[0][:2500], np.nonzero(~inside)[0][:2500]])
        return points[keep].astype(np.float32), inside[keep].astype(np.float32)

    def __getitem__(self, _index):
        points, labels = self.select_sampling_method()
        return self.image, torch.from_numpy(points), torch.from_numpy(labels)


@question(
    source="Open-PIFuhd #19",
    report="points are drawn while loading; offline it is much faster",
    step_s=0.01,
    causes=("one-transform",),
    place=r"select_sampling_method|__getitem__|query",
    lever=r"beforehand",
)
def points_of_meshes(_folder):
    """Draw points while loading."""
    return DataLoader(_Humans(), batch_size=4, shuffle=True, num_workers=2)
