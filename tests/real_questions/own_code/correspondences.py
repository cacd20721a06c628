import numpy as np
import torch
from scipy.spatial import cKDTree
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


def get_matching_indices(source, target, radius):
    """Pair each point with all of the other cloud's that lie near it."""
    tree = cKDTree(target)
    matches = []
    for number, point in enumerate(source):
        matches.extend((number, other) for other in tree.query_ball_point(point, radius))
    return np.array(matches, dtype=np.int64).reshape(-1, 2)


class NeighbourhoodDataset(Dataset):
    """Sweeps of a lidar, each with those before and after it, for features that match."""

    def __init__(self, folder, frames=60, points=2000, num_neighborhood=6):
        self.frames, self.num_neighborhood = frames, num_neighborhood
        self.paths = [folder / f"{frame:06}.npy" for frame in range(frames)]
        draw = np.random.default_rng(0)
        street = draw.uniform((0, 0, 0), (60, 40, 4), (points, 3))
        for path in self.paths:
            np.save(path, (street + draw.normal(0, 0.05, street.shape)).astype(np.float32))

    def __len__(self):
        return 120

    def __getitem__(self, index):
        around = range(-self.num_neighborhood // 2, self.num_neighborhood // 2 + 1)
        clouds = [np.load(self.paths[(index + offset) % self.frames]) for offset in around]
        centre = clouds.pop(len(clouds) // 2)
        pairs = [get_matching_indices(centre, cloud, 0.45) for cloud in clouds]
        return [torch.from_numpy(cloud) for cloud in [centre, *clouds]], [
            torch.from_numpy(pair) for pair in pairs
        ]


def collate_pairs(samples):
    clouds, pairs = zip(*samples, strict=True)
    sizes = torch.tensor([len(pair) for of_sample in pairs for pair in of_sample])
    all_pairs = torch.cat([pair for of_sample in pairs for pair in of_sample])
    return torch.stack([torch.stack(sweeps) for sweeps in clouds]), all_pairs, sizes


@question(
    source="GCL #3",
    report="data time 12 s of 15; the search for neighbours across 7 clouds, with fewer points",
    step_s=0.03,
    causes=("one-transform",),
    place=r"get_matching_indices|query_ball_point|[Tt]ree|[Nn]eighbou?r|__getitem__",
    lever=r"fewer|[Dd]ownsampl|subset|vectori|[Ll]oop|in one call|all (points|of them)|batched"
    r"|\bonce\b|beforehand|cache|[Kk]eep|offline|precomput|device|GPU|compil",
)
def sweeps_with_neighbours(folder):
    """Search the neighbours of every point in six other sweeps."""
    return DataLoader(
        NeighbourhoodDataset(folder),
        batch_size=2,
        shuffle=True,
        num_workers=2,
        collate_fn=collate_pairs,
    )
