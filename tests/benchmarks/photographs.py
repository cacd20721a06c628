"""Two thousand JPEG files to load: crops of the sample photographs, each encoded anew.

The files differ in size and content as a real folder's do; the recipe has no chance in it.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from tqdm import tqdm

from stallscope.measure.sample import sample_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

SHRINK = (0.96, 0.98, 1.0)
"""A crop keeps one of these shares of the width and of the height: 533x800 at most."""
QUALITIES = (75, 80, 85, 90)


@contextmanager
def photographs(count: int) -> Iterator[Path]:
    """A temporary folder of two classes with so many JPEG files; deleted after the block."""
    sources = sorted(sample_folder().glob("*/*.jpg"))
    with tempfile.TemporaryDirectory(prefix="benchmark-photographs-") as name:
        for number in tqdm(range(count), desc="making the files", unit="file", leave=False):
            source = sources[number % len(sources)]
            folder = Path(name, source.parent.name)
            folder.mkdir(exist_ok=True)
            variant = number // len(sources)
            _crop(source, variant).save(folder / f"{number}.jpg", quality=_quality(variant))
        yield Path(name)


def _quality(variant: int) -> int:
    return QUALITIES[variant % len(QUALITIES)]


def _crop(source: Path, variant: int) -> Image.Image:
    """Another part of the photograph for each variant, now and then mirrored."""
    with Image.open(source) as image:
        wide = round(image.width * SHRINK[variant % len(SHRINK)])
        high = round(image.height * SHRINK[variant // len(SHRINK) % len(SHRINK)])
        left = (image.width - wide) * (variant % 5) // 4
        top = (image.height - high) * (variant % 7) // 6
        part = image.crop((left, top, left + wide, top + high))
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if variant % 2 else part
