"""Small pictures of the samples' files.

A run may be somebody else's, so its paths are opened with care: regular files only, none that are
huge, and only by decoders of plain image formats.
"""

from __future__ import annotations

import stat
import warnings
from pathlib import Path
from typing import Final

import numpy as np

LARGEST_BYTES: Final = 50_000_000
LARGEST_PIXELS: Final = 100_000_000
FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that PIL decodes by itself; others start programs (EPS)."""


def thumbnail(path: str | None, most: int) -> np.ndarray | None:
    """A small picture, uint8 of shape (height, width, 3); None where the file gives none.

    Args:
        path: of an image file.
        most: pixels of its longer side.
    """
    try:
        about = Path(path or "").stat()
        plain = stat.S_ISREG(about.st_mode) and about.st_size <= LARGEST_BYTES
        return _opened(str(path), most) if plain else None
    except Exception:  # noqa: BLE001 - a picture that cannot be opened is shown as a plain tile
        return None


def _opened(path: str, most: int) -> np.ndarray | None:
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > LARGEST_PIXELS:
                return None
            image.draft("RGB", (most, most))  # lets the JPEG decoder do less
            small = image.convert("RGB")
            small.thumbnail((most, most))
            return np.asarray(small)
