"""The training whose runs lie in the folders here: photographs, two ops, a small model.

`make_saved.py` runs it under `stallscope run`.
"""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

SIDE = 16
SLOW_EVERY = 20


class Grain:
    """An op of the user's, in Python."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return grain(image)


def grain(image: torch.Tensor) -> torch.Tensor:
    """Burn a millisecond of CPU time."""
    end = time.thread_time() + 0.001
    while time.thread_time() < end:
        image = image + 0.001 * torch.rand_like(image)
    return image


class Photographs(Dataset):
    """The files of a folder; every twentieth is slow to open."""

    def __init__(self, folder: Path, entries: int) -> None:
        self.files = sorted(folder.glob("*.jpg"))
        self.entries = entries
        steps = (v2.RandomCrop(SIDE), v2.PILToTensor(), v2.ToDtype(torch.float32), Grain())
        self.transform = v2.Compose(steps)

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> Any:
        if index % SLOW_EVERY == 0:
            time.sleep(0.02)
        with Image.open(self.files[index % len(self.files)]) as image:
            return self.transform(image.convert("RGB"))


def loader(folder: Path, entries: int, workers: int = 2) -> DataLoader:
    return DataLoader(Photographs(folder, entries), 4, num_workers=workers)


def main() -> None:
    """Train; with `--kill`, be killed in the middle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", action="store_true")
    asked = parser.parse_args()
    model = nn.Linear(3 * SIDE * SIDE, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for number, batch in enumerate(loader(asked.folder, 4 * asked.batches, asked.workers)):
        optimizer.zero_grad()
        model(batch.flatten(1)).sum().backward()
        optimizer.step()
        time.sleep(0.003)
        if asked.kill and number == asked.batches // 2:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
