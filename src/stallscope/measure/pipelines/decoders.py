"""Other ways to decode an image that `PIL.Image.open` has opened; the first op of a pipeline.

They live here, apart from what proposes them, because workers import them. Each gives an image of
PIL's, so that the ops behind it get what they got.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


class Draft:
    """Decode a JPEG at the smallest of its sizes that is no smaller than this.

    Args:
        width: pixels.
        height: likewise.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height

    def __call__(self, image: Any) -> Any:
        """The image, decoded."""
        if getattr(image, "tile", None):
            image.draft(image.mode, (self.width, self.height))
        image.load()
        return image

    def __repr__(self) -> str:
        return f"Draft(width={self.width}, height={self.height})"


class TorchvisionDecoder:
    """Decode with torchvision.io; what is decoded already stays as it is."""

    def __call__(self, image: Any) -> Any:
        """The image, decoded."""
        data = _encoded(image)
        if data is None:
            return image
        import torch
        from torchvision.io import ImageReadMode, decode_image

        tensor = decode_image(
            torch.frombuffer(bytearray(data), dtype=torch.uint8), _mode(image, ImageReadMode)
        )
        return _image(tensor.permute(1, 2, 0).contiguous().numpy())

    def __repr__(self) -> str:
        return "TorchvisionDecoder()"


class Cv2Decoder:
    """Decode with OpenCV; what is decoded already stays as it is."""

    def __call__(self, image: Any) -> Any:
        """The image, decoded."""
        data = _encoded(image)
        if data is None:
            return image
        import cv2

        flag = cv2.IMREAD_GRAYSCALE if image.mode == "L" else cv2.IMREAD_COLOR
        # as PIL does, without turning by the file's Exif data
        array: Any = cv2.imdecode(
            np.frombuffer(data, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION
        )
        return _image(array if array.ndim == 2 else cv2.cvtColor(array, cv2.COLOR_BGR2RGB))  # noqa: PLR2004 - a grey one

    def __repr__(self) -> str:
        return "Cv2Decoder()"


class Reader:
    """Makes an image of a path, as RGB, with another decoder.

    Args:
        decoder: one of those above.
    """

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder

    def __call__(self, path: Any) -> Any:
        """The image, decoded; whatever the decoder cannot read is decoded by PIL."""
        with Image.open(path) as image:
            return self.decoder(image).convert("RGB")

    def __repr__(self) -> str:
        return f"Reader({self.decoder!r})"


def _encoded(image: Any) -> bytes | None:
    """The bytes of a file that is open and not yet decoded; only RGB and grey ones."""
    if not getattr(image, "tile", None) or image.mode not in ("RGB", "L"):
        return None
    file = image.fp
    file.seek(0, io.SEEK_SET)
    data = bytes(file.read())
    image.close()
    return data


def _mode(image: Any, modes: Any) -> Any:
    return modes.GRAY if image.mode == "L" else modes.RGB


def _image(array: Any) -> Any:
    return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)
