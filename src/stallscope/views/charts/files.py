"""What the samples' files say about themselves: their size and a small picture.

A run may be somebody else's, so its paths are opened with care: regular files only, none that are
huge, and only by decoders of plain image formats.
"""

from __future__ import annotations

import stat
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGEST_BYTES: Final = 50_000_000
LARGEST_PIXELS: Final = 100_000_000
FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that PIL decodes by itself; others start programs (EPS)."""


def sizes(paths: Iterable[str | None]) -> dict[str, int]:
    """Bytes of each path that is a regular file here."""
    found = {path: _size(path) for path in dict.fromkeys(paths) if path}
    return {path: size for path, size in found.items() if size is not None}


def _size(path: str) -> int | None:
    try:
        about = Path(path).stat()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None


def thumbnail(path: str | None, most: int) -> np.ndarray | None:
    """A small picture, uint8 of shape (height, width, 3); None where the file gives none.

    Args:
        path: of an image file.
        most: pixels of its longer side.
    """
    size = _size(path) if path else None
    if path is None or size is None or size > LARGEST_BYTES:
        return None
    try:
        return _opened(path, most)
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
