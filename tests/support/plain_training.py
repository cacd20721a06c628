"""A training over three loaders that goes through every hook; nothing in it knows of stallscope."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import stallscope as ss


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Pictures(Dataset):
    """Reads, decodes and transforms, by ops that stand in a container and functions in a list."""

    def __init__(self, picture: Path) -> None:
        self.picture = picture
        self.transform = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity()))
        self.ops = [Scale(0.5), Scale(0.25), plus_one]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 5 == 0:
            gc.collect()
        with ss.stage("named"):
            x = self.load_picture() + index + torch.rand(3)
        for op in self.ops:
            x = op(x)
        return nn.Sequential(self.transform)(x)

    def load_picture(self) -> torch.Tensor:
        with PIL.Image.open(self.picture) as picture:
            return torch.tensor(np.asarray(picture.resize((1, 1))).reshape(3) / 255.0).float()


class Bulk(Pictures):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """Makes samples without an index."""

    def __iter__(self) -> Any:
        for number in range(7):
            yield torch.full((3,), float(number))


def loaders(picture: Path, workers: int) -> list[DataLoader]:
    """Three loaders; the last one has the workers."""
    has_workers = workers > 0
    return [
        DataLoader(Bulk(picture), 4),
        DataLoader(Stream(), 4),
        DataLoader(
            Pictures(picture), 2, shuffle=True, num_workers=workers,
            persistent_workers=has_workers,
            multiprocessing_context="fork" if has_workers else None,
        ),
    ]  # fmt: skip


def train(picture: Path, workers: int) -> list[Any]:
    """Batches and losses of a training over three loaders."""
    torch.manual_seed(0)
    seen: list[Any] = []
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for loader in loaders(picture, workers):
        for _ in range(2):
            for batch in loader:
                with ss.stage("step"):
                    loss = model(batch).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                seen += [batch.tolist(), loss.item()]
        gc.collect()
    return seen
