import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from real_questions.question import question


class ElasticDistortion:
    """Moves points by noise that changes little from one to the next."""

    def __init__(self, distortion_params=((0.2, 0.4), (0.8, 1.6))):
        self.distortion_params = distortion_params

    @staticmethod
    def elastic_distortion(coords, granularity, magnitude):
        from scipy.interpolate import RegularGridInterpolator
        from scipy.ndimage import convolve

        low = coords.min(0)
        size = ((coords - low).max(0) // granularity).astype(int) + 3
        noise = np.random.randn(*size, 3).astype(np.float32)
        for _ in range(2):
            for axis in range(3):
                blur = np.ones([3 if axis == other else 1 for other in range(4)], np.float32) / 3
                noise = convolve(noise, blur, mode="constant", cval=0)
        axes = [
            np.linspace(b - granularity, b + granularity * (n - 2), n)
            for b, n in zip(low, size, strict=True)
        ]
        interp = RegularGridInterpolator(axes, noise, bounds_error=False, fill_value=0)
        return coords + interp(coords) * magnitude

    def __call__(self, data_dict):
        for granularity, magnitude in self.distortion_params:
            coord = self.elastic_distortion(data_dict["coord"], granularity, magnitude)
            data_dict["coord"] = coord
        return data_dict


class GridSample:
    """Leaves one point in each cell of a grid."""

    def __init__(self, grid_size=0.04):
        self.grid_size = grid_size

    def __call__(self, data_dict):
        cell = np.floor(data_dict["coord"] / self.grid_size).astype(np.int64)
        cell -= cell.min(0)
        key = np.ravel_multi_index(cell.T, cell.max(0) + 1)
        _, first = np.unique(key, return_index=True)
        return {name: values[first] for name, values in data_dict.items()}


class SphereCrop:
    """Keeps the points that are next to one of them."""

    def __init__(self, point_max=4096):
        self.point_max = point_max

    def __call__(self, data_dict):
        coord = data_dict["coord"]
        center = coord[np.random.randint(len(coord))]
        near = np.argsort(np.square(coord - center).sum(1))[: self.point_max]
        return {name: values[near] for name, values in data_dict.items()}


class S3DISDataset(Dataset):
    """The points of rooms, two of which are huge."""

    def __init__(self, rooms=48, loop=1000):
        draw = np.random.default_rng(0)
        sizes = [450_000, 400_000] + [9000] * (rooms - 2)
        self.data_list = []
        for size in sizes:
            extent = np.array([40, 25, 3]) if size > 100_000 else np.array([6, 5, 3])
            coord = (draw.random((size, 3)) * extent).astype(np.float32)
            color = draw.random((size, 3), dtype=np.float32)
            self.data_list.append({"coord": coord, "color": color})
        self.loop = loop
        self.transform = transforms.Compose([ElasticDistortion(), GridSample(), SphereCrop()])

    def __len__(self):
        return len(self.data_list) * self.loop

    def __getitem__(self, idx):
        data_dict = self.transform(dict(self.data_list[idx % len(self.data_list)]))
        return {name: torch.from_numpy(values).float() for name, values in data_dict.items()}


def point_collate_fn(batch):
    offset = torch.tensor([len(data_dict["coord"]) for data_dict in batch]).cumsum(0)
    names = ("coord", "color")
    points = {name: torch.cat([data_dict[name] for data_dict in batch]) for name in names}
    return {**points, "offset": offset}


@question(
    source="Pointcept #308, #103",
    report="two huge clouds block loading; distort after cropping, or in chunks",
    step_s=0.06,
    causes=("slow-samples", "one-transform", "transforms"),
    place=r"one in|[Ss]low(er|est)? sample|ElasticDistortion|elastic_distortion|S3DISDataset",
    lever=r"crop|GridSample|\bchunk|split|smaller|in_order=False|beforehand|in advance|"
    r"prefetch_factor|\bonce\b|GPU|device",
)
def rooms_distorted(_folder):
    """Distort all points of a room, be it huge, before some are chosen."""
    return DataLoader(
        S3DISDataset(), batch_size=2, shuffle=True, num_workers=2, collate_fn=point_collate_fn
    )
