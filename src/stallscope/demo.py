"""The published pipeline of case B, for the notebooks: five transforms, one needlessly slow.

"Solving Bottlenecks on the Data Input Pipeline with PyTorch Profiler" (2023). The code is in a
module because a spawned worker imports code by name and cannot find classes of a notebook cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from stallscope.errors import TargetError
from stallscope.loops.cached_values import leaves
from stallscope.machine import usable_cores
from stallscope.targets.images import torchvision_transforms, worker_settings
from stallscope.targets.sample import photographs

if TYPE_CHECKING:
    from collections.abc import Callable


CROP: Final = 256
Order = Literal["published", "crop_first"]
_SIDE: Final = 32
"""Side of the images that `SlowStep` trains on, in pixels."""

CROSS: Final = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]])
"""A pixel and its four neighbours."""


class RandomMask:
    """Set random pixels and their four neighbours to 0; the neighbours the slow way."""

    def __init__(self, size: int = CROP, ratio: float = 0.25) -> None:
        self.size = size
        self.ratio = ratio
        # Imported with the pipeline, so that the first sample does not take longer
        from scipy.signal import convolve2d

        self._convolve2d = convolve2d

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Mask an image of shape (channels, size, size), drawing from torch's generator."""
        mask = torch.rand(self.size, self.size) < self.ratio
        return image.masked_fill(self.dilate(mask), 0)

    def dilate(self, mask: torch.Tensor) -> torch.Tensor:
        """Add the four neighbours to a bool mask, by a 2-D convolution."""
        hits = self._convolve2d(mask.numpy(), CROSS, mode="same")
        return torch.from_numpy(hits > 0)


class FasterRandomMask(RandomMask):
    """The same output as `RandomMask` on the same draws; the neighbours by shifted masks."""

    def dilate(self, mask: torch.Tensor) -> torch.Tensor:
        """Add the four neighbours to a bool mask, by a boolean or of shifted masks."""
        wide = mask.clone()
        wide[1:] |= mask[:-1]
        wide[:-1] |= mask[1:]
        wide[:, 1:] |= mask[:, :-1]
        wide[:, :-1] |= mask[:, 1:]
        return wide


class ConvertColor:
    """RGB to YUV: a matrix product over all pixels, and an offset for each channel."""

    def __init__(self) -> None:
        # BT.601, the analogue form
        self.matrix = torch.tensor(
            [[0.299, 0.587, 0.114], [-0.14713, -0.28886, 0.436], [0.615, -0.51499, -0.10001]]
        )
        self.offset = torch.tensor([[0.0], [128.0], [128.0]])

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Convert an image of shape (3, height, width), values 0 to 255, to float32."""
        return (self.matrix @ image.float().flatten(1) + self.offset).view(image.shape)


class Scale:
    """Division by 255."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Convert values 0 to 255 to float32 values 0 to 1."""
        return image / 255


class SlowStep:
    """A training step with typical slow habits, for the notebooks; it trains on any batch.

    It reads the loss after each step, sets gradients to zero, and its optimizer updates one weight
    after the other. It uses a GPU if there is one.
    """

    def __init__(self) -> None:
        self.where = "cuda" if torch.cuda.is_available() else "cpu"
        wide, pool = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.MaxPool2d(2)
        deep, last = torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.Linear(64, 10)
        relu, mean = torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
        layers = (wide, relu, pool, deep, relu, mean, torch.nn.Flatten(), last)
        self.model = torch.nn.Sequential(*layers).to(self.where)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        self.last_loss = 0.0

    def __call__(self, batch: Any) -> torch.Tensor:
        """Train on the first floats of a batch, of any shape, as small images."""
        self.optimizer.zero_grad(set_to_none=False)
        tensors = (leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor))
        floats = next(leaf for leaf in tensors if leaf.is_floating_point() and leaf.ndim > 1)
        rows = floats.to(self.where, non_blocking=True).flatten(1).unsqueeze(1)
        pixels: Any = torch.nn.functional.adaptive_avg_pool1d(rows, 3 * _SIDE**2)
        loss: Any = self.model(pixels.view(-1, 3, _SIDE, _SIDE)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.last_loss = loss.item()
        detached: torch.Tensor = loss.detach()
        return detached


class OneImageManyTimes(Dataset[Any]):
    """`entries` samples that are all the same file, opened and (being lazy) not yet decoded."""

    def __init__(self, path: str, entries: int, transform: Callable[[Any], Any]) -> None:
        self.path = path
        self.entries = entries
        self.transform = transform

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(Image.open(self.path)), 0


def case_b_pipeline(
    order: Order = "published", mask: type[RandomMask] = RandomMask
) -> Callable[[Any], Any]:
    """Return the five transforms: PIL image, at least 256 by 256, to float32 (3, 256, 256).

    Args:
        order: as published, or with the crop moved before the conversion to a tensor.
        mask: `RandomMask` as published, or `FasterRandomMask`.

    Raises:
        TargetError: there is no such order, or torchvision is missing.
    """
    v2 = torchvision_transforms()
    orders = {
        "published": [v2.PILToTensor(), v2.RandomCrop(CROP)],
        "crop_first": [v2.RandomCrop(CROP), v2.PILToTensor()],
    }
    if order not in orders:
        raise TargetError(f"there is no order {order!r} of case B: take {' or '.join(orders)}")
    return v2.Compose([*orders[order], mask(), ConvertColor(), Scale()])  # type: ignore[no-any-return]


def case_b_loader(
    order: Order = "published",
    mask: type[RandomMask] = RandomMask,
    *,
    num_workers: int | None = None,
    batch_size: int = 32,
    entries: int = 10_000,
) -> DataLoader[Any]:
    """Return the published loader of case B, with smaller batches: its 256 need 200 MB each.

    Batches of float32 images, shape (batch_size, 3, 256, 256), and int64 labels.

    Args:
        order: see `case_b_pipeline`.
        mask: see `case_b_pipeline`.
        num_workers: None takes four, or as many as there are CPUs.
        batch_size: samples in a batch.
        entries: length of the dataset.

    Raises:
        TargetError: there is no such order, or torchvision or the sample data is missing.
    """
    dataset = OneImageManyTimes(photographs()[0].path, entries, case_b_pipeline(order, mask))
    workers = min(4, usable_cores()) if num_workers is None else num_workers
    return DataLoader(dataset, batch_size, shuffle=True, **worker_settings(workers))
