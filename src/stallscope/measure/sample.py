"""The target "sample": a usual training loader over photographs that come with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader

from stallscope.errors import TargetError
from stallscope.measure.folder import (
    ImageFile,
    ImageFiles,
    find_images,
    training_pipeline,
    worker_settings,
)
from stallscope.measure.machine import usable_cores
from stallscope.packaged import packaged

if TYPE_CHECKING:
    from pathlib import Path

COPIES: Final = 40
"""How often each photograph is in the sample dataset: 48 files make 1,920 entries."""


def sample_folder() -> Path:
    """The folder of the sample photographs: two class folders of JPEGs, 533 by 800 pixels.

    Raises:
        StallscopeError: it is neither in the installed package nor in the source checkout.
    """
    return packaged("sample_data")


def sample_loader() -> DataLoader[Any]:
    """The target "sample".

    Batches of float32 images, shape (32, 3, 224, 224), and int64 labels, shape (32,); shuffled;
    two workers where there are two cores.

    Raises:
        StallscopeError: torchvision or the sample data is missing.
    """
    dataset = ImageFiles(photographs() * COPIES, training_pipeline())
    settings = worker_settings(min(2, usable_cores()))
    return DataLoader(dataset, batch_size=32, shuffle=True, **settings)


def photographs() -> list[ImageFile]:
    """The sample's files, in the order of their names."""
    found = find_images(sample_folder())
    if not found:
        raise TargetError(
            f"no photographs in the sample data, {sample_folder()}: install stallscope again"
        )
    return found
