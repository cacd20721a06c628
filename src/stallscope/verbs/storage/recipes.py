"""Source that converts a folder of images to another layout, with the library of that layout.

Each recipe has ten lines at most and is run by a test. DATA and OUT are the reader's to replace.
"""

from __future__ import annotations

from typing import Final

QUALITY: Final = 90
"""JPEG quality of images that are stored smaller."""
SMALLER: Final = "smaller images"
SHARDS: Final = "tar shards"

RECIPES: Final = {
    SMALLER: """\
from PIL import Image
from pathlib import Path
data, out = Path("DATA"), Path("OUT")
for path in data.rglob("*.jpg"):
    with Image.open(path) as image:
        scale = min(PIXELS / min(image.size), 1)
        shape = [round(side * scale) for side in image.size]
        small = image.resize(shape, Image.Resampling.LANCZOS)
    (out / path.relative_to(data)).parent.mkdir(parents=True, exist_ok=True)
    small.save(out / path.relative_to(data), quality=90, exif=image.getexif())
""",
    SHARDS: """\
import random, webdataset
from pathlib import Path
data, out = Path("DATA"), Path("OUT")
files = sorted(data.rglob("*.jpg"))
random.Random(0).shuffle(files)  # shards are read in order: mix the classes now
out.mkdir(parents=True, exist_ok=True)
with webdataset.ShardWriter(f"{out}/%06d.tar", maxcount=1000) as shards:
    for number, path in enumerate(files):
        name = str(path.relative_to(data))
        shards.write({"__key__": f"{number:08}", "jpg": path.read_bytes(), "name.txt": name})
""",
    "LMDB": """\
import lmdb
from pathlib import Path
data, out = Path("DATA"), Path("OUT")
files = sorted(data.rglob("*.jpg"))
room = 2 * sum(path.stat().st_size for path in files) + (1 << 30)  # an upper limit, not used up
with lmdb.open(str(out), map_size=room) as tree, tree.begin(write=True) as change:
    for path in files:
        change.put(str(path.relative_to(data)).encode(), path.read_bytes())
""",
    "HDF5": """\
import h5py, numpy
from pathlib import Path
data, out = Path("DATA"), Path("OUT")
files = sorted(data.rglob("*.jpg"))
with h5py.File(out.with_suffix(".h5"), "w") as file:
    images = file.create_dataset("jpg", len(files), h5py.vlen_dtype(numpy.uint8))
    file["name"] = [str(path.relative_to(data)) for path in files]
    for number, path in enumerate(files):
        images[number] = numpy.frombuffer(path.read_bytes(), numpy.uint8)
""",
}
"""Source by kind of layout; PIXELS is the short side of smaller images."""
