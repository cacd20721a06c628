"""Target "sample": photographs that come with the kit, loaded with common mistakes.

Tutorials use this pipeline, and each of its mistakes is real: the stored photographs are far larger
than the model's input, the image becomes floats before it is resized, and each sample searches a
list of all annotations. The notebooks find each mistake and measure the speedup of its fix; the
arguments of `sample_loader` are these fixes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader

from stallscope.files import packaged_folder
from stallscope.machine import usable_cores
from stallscope.targets.images import (
    ImageFile,
    ImageFiles,
    find_images,
    no_images,
    torchvision_transforms,
    worker_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COPIES: Final = 40
"""Entries for each photograph: 48 files make 1,920."""
BOXES: Final = 80
"""Annotations of each image."""
HALF: Final = (0.5, 0.5, 0.5)
"""Mean and standard deviation per channel in most tutorials."""


class Photographs(ImageFiles):
    """Photographs with annotated boxes: (image, label of the first box).

    With `indexed`, annotations are grouped by image once, instead of a search in every sample.
    """

    def __init__(
        self, files: Sequence[ImageFile], transform: Callable[[Any], Any], *, indexed: bool
    ) -> None:
        super().__init__(files, transform)
        self.annotations = [
            {"image_id": number, "category_id": file.label}
            for number, file in enumerate(files)
            for _ in range(BOXES)
        ]
        self.by_image: dict[int, list[dict[str, int]]] = {}
        for box in self.annotations if indexed else ():
            self.by_image.setdefault(box["image_id"], []).append(box)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.loader(self.files[index].path)
        boxes = self.find_boxes(index)
        return self.transform(image), boxes[0]["category_id"]

    def find_boxes(self, index: int) -> list[dict[str, int]]:
        """Return the annotations of an image."""
        if self.by_image:
            return self.by_image[index]
        return [box for box in self.annotations if box["image_id"] == index]


def sample_folder() -> Path:
    """Return the folder of the photographs: two class folders of JPEGs, 533 by 800 pixels."""
    return packaged_folder("sample_data")


def photographs(folder: Path | None = None) -> list[ImageFile]:
    """Return the sample's files in the order of their names, or those of a converted copy."""
    folder = folder or sample_folder()
    files = find_images(folder)
    if not files:
        raise no_images(folder)
    return files


def tutorial_pipeline() -> Callable[[Any], Any]:
    """Return the transforms of many tutorials: PIL image to float32 of shape (3, 224, 224)."""
    ops = torchvision_transforms("torchvision.transforms")
    return ops.Compose(  # type: ignore[no-any-return]
        [
            ops.ToTensor(),
            ops.Normalize(HALF, HALF),
            ops.Resize(256),
            ops.RandomCrop(224),
            ops.RandomHorizontalFlip(),
        ]
    )


def sample_loader(
    *,
    indexed: bool = False,
    transform: Callable[[Any], Any] | None = None,
    folder: Path | str | None = None,
) -> DataLoader[Any]:
    """Return the loader of the target "sample"; each argument fixes one of its mistakes.

    Batches of float32 images, shape (32, 3, 224, 224), and int64 labels, shape (32,); shuffled;
    two workers on a machine with two cores or more.

    Args:
        indexed: as for `Photographs`.
        transform: None takes `tutorial_pipeline`.
        folder: photographs to load; None takes those that come with the kit.

    Raises:
        StallscopeError: torchvision or the sample data is missing.
    """
    files = photographs(Path(folder) if folder else None) * COPIES
    dataset = Photographs(files, transform or tutorial_pipeline(), indexed=indexed)
    return DataLoader(dataset, 32, shuffle=True, **worker_settings(min(2, usable_cores())))
