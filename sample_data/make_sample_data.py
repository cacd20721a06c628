"""Make the 48 sample JPEGs, so that the notebooks and tests have real photographs to decode.

Showing why a data loader stalls takes files that cost real time to decode, and a checkout should
be able to show it with no download.  These are crops of photographs that ship inside the
scikit-image and scikit-learn wheels and are public domain, CC0 or CC-BY (see LICENCES.md).

    python sample_data/make_sample_data.py            write the files
    python sample_data/make_sample_data.py --check    exit 1 if the files differ from the recipe
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
LONG, SHORT = 800, 533
MIN_BYTES, MAX_BYTES = 62_000, 200_000
TARGET_BYTES = 95_000, 125_000, 155_000, 190_000  # in turn, so that file sizes differ
QUALITIES = range(95, 59, -1)
# Mean absolute difference in grey levels that --check allows: one step of JPEG quality, which
# another Pillow may take, gives at most 1.6; a crop moved by one pixel gives at least 3.9.
TOLERANCE = 2.5


@dataclass(frozen=True)
class Crop:
    """A region of a photograph: left, top and width in source pixels; the height follows."""

    left: int
    top: int
    width: int
    shape: str  # "L": 800x533, "P": 533x800; "m" after it: mirrored left to right

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the output, pixels."""
        return (LONG, SHORT) if self.shape[0] == "L" else (SHORT, LONG)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom in the photograph, pixels."""
        wide, high = self.size
        bottom = self.top + self.width * high / wide
        return (self.left, self.top, self.left + self.width, bottom)


@dataclass(frozen=True)
class Photo:
    """One source photograph in a wheel, and the crops made from it."""

    package: str
    path: str
    label: str
    licence: str
    crops: tuple[Crop, ...]


# fmt: off
PHOTOS = (
    Photo("skimage", "data/chelsea.png", "earth", "CC0", (
        Crop(2, 0, 448, "L"),
        Crop(180, 0, 199, "Pm"),
        Crop(60, 0, 199, "P"),
        Crop(110, 60, 270, "L"),
        Crop(160, 108, 288, "Lm"),
        Crop(0, 30, 330, "Lm"),
    )),
    Photo("skimage", "data/coffee.png", "earth", "CC0", (
        Crop(0, 0, 600, "L"),
        Crop(150, 0, 266, "P"),
        Crop(150, 0, 320, "Lm"),
        Crop(330, 0, 266, "Pm"),
        Crop(130, 175, 330, "L"),
        Crop(0, 90, 430, "Lm"),
    )),
    Photo("sklearn", "datasets/images/china.jpg", "earth", "CC-BY 2.0", (
        Crop(0, 0, 640, "L"),
        Crop(80, 20, 270, "P"),
        Crop(90, 20, 280, "L"),
        Crop(60, 210, 320, "Lm"),
        Crop(350, 80, 230, "Pm"),
        Crop(240, 150, 400, "L"),
        Crop(0, 100, 480, "Lm"),
    )),
    Photo("sklearn", "datasets/images/flower.jpg", "earth", "CC-BY 2.0", (
        Crop(0, 0, 640, "L"),
        Crop(165, 0, 284, "P"),
        Crop(160, 80, 290, "L"),
        Crop(180, 85, 190, "Pm"),
        Crop(240, 160, 400, "Lm"),
    )),
    Photo("skimage", "data/astronaut.png", "space", "public domain", (
        Crop(0, 0, 341, "P"),
        Crop(0, 0, 512, "L"),
        Crop(130, 5, 200, "Pm"),
        Crop(0, 160, 512, "Lm"),
        Crop(310, 10, 190, "P"),
        Crop(110, 0, 300, "Lm"),
        Crop(30, 270, 300, "L"),
        Crop(232, 300, 280, "Lm"),
    )),
    Photo("skimage", "data/rocket.jpg", "space", "public domain", (
        Crop(0, 0, 640, "L"),
        Crop(180, 0, 284, "P"),
        Crop(0, 0, 284, "Pm"),
        Crop(60, 220, 310, "L"),
        Crop(300, 199, 340, "Lm"),
        Crop(230, 100, 215, "Pm"),
    )),
    Photo("skimage", "data/hubble_deep_field.jpg", "space", "public domain", (
        Crop(0, 0, 1000, "L"),
        Crop(0, 0, 580, "Pm"),
        Crop(420, 0, 578, "P"),
        Crop(0, 40, 480, "L"),
        Crop(480, 360, 500, "Lm"),
        Crop(200, 300, 380, "P"),
        Crop(60, 500, 540, "Lm"),
        Crop(660, 60, 330, "Pm"),
        Crop(300, 60, 400, "Lm"),
        Crop(560, 560, 420, "L"),
    )),
)
# fmt: on


def open_photo(photo: Photo) -> Image.Image:
    """Open a photograph where its wheel put it, without importing the package."""
    spec = importlib.util.find_spec(photo.package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{photo.package} is not installed: its wheel holds {photo.path}")
    with Image.open(Path(spec.submodule_search_locations[0]) / photo.path) as image:
        return Image.fromarray(np.asarray(image.convert("RGB")))  # leaves the metadata behind


def cut(image: Image.Image, crop: Crop) -> Image.Image:
    """Resample one region of a photograph to the output size."""
    right, bottom = crop.box[2:]
    if right > image.width or bottom > image.height:
        raise ValueError(f"{crop} leaves the photograph, which is {image.size}")
    out = image.resize(crop.size, Image.Resampling.LANCZOS, box=crop.box)
    return out.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if "m" in crop.shape else out


def encode(image: Image.Image, target: int) -> bytes:
    """Encode as baseline JPEG, at the highest quality that stays within the target size."""
    data = b""
    for quality in QUALITIES:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality, progressive=False, optimize=False)
        data = buffer.getvalue()
        if len(data) <= target:
            break
    if not MIN_BYTES <= len(data) <= MAX_BYTES:
        raise ValueError(f"no quality gives a size in range: the last gave {len(data)} bytes")
    return data


def make_all() -> Iterator[tuple[Path, bytes]]:
    """Yield each file's path below this folder and its bytes, in a fixed order."""
    for photo in PHOTOS:
        image = open_photo(photo)
        stem = Path(photo.path).stem.split("_")[0]
        for number, crop in enumerate(photo.crops, start=1):
            target = TARGET_BYTES[number % len(TARGET_BYTES)]
            yield Path(photo.label) / f"{stem}_{number:02d}.jpg", encode(cut(image, crop), target)


def difference(made: bytes, path: Path) -> str:
    """Say how the file at path differs from the made one; "" where it does not."""
    if not path.is_file():
        return "missing"
    try:
        old = np.asarray(Image.open(path), dtype=np.int16)
    except OSError as error:
        return f"unreadable: {error}"
    new = np.asarray(Image.open(io.BytesIO(made)), dtype=np.int16)
    if new.shape != old.shape:
        return f"shape {old.shape}, not {new.shape}"
    mean = float(np.abs(new - old).mean())
    return f"pixels differ by {mean:.2f} on average" if mean > TOLERANCE else ""


def check() -> list[str]:
    """List what differs between the files here and the recipe."""
    made = dict(make_all())
    found = {path.relative_to(HERE) for path in HERE.rglob("*.jpg")}
    problems = [f"{path}: not in the recipe" for path in sorted(found - made.keys())]
    for path, data in made.items():
        if what := difference(data, HERE / path):
            problems.append(f"{path}: {what}")
    return problems


def write() -> None:
    """Write every file, over what is there."""
    made = dict(make_all())
    for path, data in made.items():
        (HERE / path).parent.mkdir(exist_ok=True)
        (HERE / path).write_bytes(data)
    print(f"wrote {len(made)} files, {sum(map(len, made.values())) / 1e6:.2f} MB")


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description="Make the sample JPEGs in this folder.")
    parser.add_argument("--check", action="store_true", help="compare with the files, write none")
    if not parser.parse_args().check:
        write()
        return 0
    problems = check()
    print("\n".join(problems) or "the files match the recipe")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
