"""What a pipeline's first ops give for each sample, in a folder: all workers share it.

It outlives the workers, and the process. One file a sample, written whole or not at all, so that
workers that make the same one at the same time do no harm. `torch.load` reads it without running
code that a file might bring. Where nothing can be written any more, samples are made as ever.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np
import torch
from PIL import Image

from stallscope.errors import StallscopeError
from stallscope.files import read_file, whole_file
from stallscope.loops.cached_values import is_image, same
from stallscope.units import printable, said_by

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable


HEAD: Final = "stallscope-cache.json"
_VERSION: Final = 1
_IN_FOLDER: Final = 1_000
"""Samples in one folder, where they are numbered."""
_KIND: Final = "stallscope"
"""Key of what stands for a value that torch does not store without running code."""
_MODES: Final = ("L", "RGB", "RGBA")
"""Of images that are their pixels and nothing else."""
_PLAIN: Final = (bool, int, float, str, bytes)
_CHECKED: Final = 2
"""Samples that are made again when a folder is opened: has the data changed, or the code?"""


class DiskCache(Mapping["Hashable", Any]):
    """Samples in a folder, by their keys; reading makes each anew.

    Args:
        folder: that there is; see `opened`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writes = True

    @classmethod
    def opened(
        cls, folder: str | os.PathLike[str], about: Mapping[str, Any], make: Callable[[int], Any]
    ) -> DiskCache:
        """Open a folder, or begin a new one.

        Args:
            folder: a new or empty one, or one that was begun with the same `about`.
            about: what the samples are of, as JSON has it.
            make: makes a sample, to be compared with one that is there.

        Raises:
            StallscopeError: it holds something else, cannot be written, or its samples are not what
                is made today.
        """
        place = Path(folder).absolute()
        wanted = {"version": _VERSION, **about}
        try:
            place.mkdir(parents=True, exist_ok=True)
            if any(place.iterdir()):
                known = json.loads(read_file(place / HEAD))
            else:
                known = wanted
                with whole_file(place / HEAD) as file:
                    file.write(json.dumps(wanted).encode())
        except FileNotFoundError as error:
            raise StallscopeError(f"{place} holds other files: give a new folder") from error
        except (OSError, ValueError) as error:
            raise StallscopeError(f"{place} cannot be used ({said_by(error)})") from error
        if not isinstance(known, dict):
            raise StallscopeError(f"{place / HEAD} is damaged: give a new folder")
        differ = [key for key in wanted if known.get(key) != wanted[key]]
        if differ:
            told = ", ".join(f"{key} {printable(str(known.get(key)), 80)}" for key in differ)
            raise StallscopeError(f"{place} holds other samples ({told}): give a new folder")
        found = cls(place)
        for number in islice(found._numbers(), _CHECKED):
            if not same(found.get(number), as_stored(make(number))):
                raise StallscopeError(
                    f"sample {number} in {place} is not what is made of it today: the data or its "
                    "code changed, so give a new folder, or delete this one"
                )
        return found

    def _numbers(self) -> Any:
        """Of samples that are there; some of them, of an order by chance."""
        for path in self.folder.glob("*/*.pt"):
            if path.stem.isdigit():
                yield int(path.stem)

    def __getitem__(self, key: Hashable) -> Any:
        try:
            stored = torch.load(self.path_of(key), map_location="cpu", weights_only=True)
            return _unpacked(stored)
        except Exception:  # noqa: BLE001 - a damaged file is as good as none
            raise KeyError(key) from None

    def __iter__(self) -> Any:
        return self._numbers()

    def __len__(self) -> int:
        return sum(1 for _ in self.folder.glob("*/*.pt"))

    def __setitem__(self, key: Hashable, value: Any) -> None:
        """Write a sample; where that fails it is said once, and this process writes no more."""
        if not self._writes:
            return
        path = self.path_of(key)
        try:
            path.parent.mkdir(exist_ok=True)
            with whole_file(path) as file:
                torch.save(packed(value), file)
        except Exception as error:  # noqa: BLE001 - somebody trains with this
            self._writes = False
            warnings.warn(
                f"stallscope: {self.folder} takes no more samples ({said_by(error)}): those that "
                "are not in it are made every time",
                stacklevel=2,
            )

    def __contains__(self, key: object) -> bool:
        return self.path_of(key).exists()

    def path_of(self, key: Hashable) -> Path:
        """The file of a sample, whether it is there or not."""
        if isinstance(key, SupportsIndex):  # 3, and numpy's 3
            number = int(key)
            return self.folder / f"{number // _IN_FOLDER:06}" / f"{number}.pt"
        name = sha256(key if isinstance(key, bytes) else repr(key).encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.pt"


def as_stored(value: Any) -> Any:
    """A value as it comes back from disk.

    Raises:
        StallscopeError: it holds something that cannot be stored.
    """
    return _unpacked(packed(value))


def packed(value: Any) -> Any:
    """A value as torch stores it without code.

    Raises:
        StallscopeError: it holds something that cannot be stored so.
    """
    if type(value) is dict:
        return {key: packed(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(packed, value))
    return _packed_leaf(value)


def _packed_leaf(leaf: Any) -> Any:
    if leaf is None or type(leaf) in _PLAIN:
        return leaf
    if type(leaf) is torch.Tensor and leaf.layout is torch.strided:
        return leaf.detach().clone() if leaf.untyped_storage().nbytes() > leaf.nbytes else leaf
    if type(leaf) is np.ndarray and leaf.dtype.kind in "buifc":
        return {_KIND: "array", "values": torch.from_numpy(np.ascontiguousarray(leaf))}
    if isinstance(leaf, np.generic) and leaf.dtype.kind in "buifc":
        return {_KIND: "number", "values": torch.from_numpy(np.asarray(leaf).reshape(1))}
    if is_image(leaf) and leaf.mode in _MODES:
        about = {key: value for key, value in leaf.info.items() if type(value) in _PLAIN}
        return {_KIND: leaf.mode, "values": torch.from_numpy(np.array(leaf)), "info": about}
    raise StallscopeError(
        f"a {type(leaf).__name__} cannot be kept on disk: tensors, arrays of numbers, RGB and grey "
        "images, numbers and text can, in lists, tuples and dictionaries"
    )


def _unpacked(value: Any) -> Any:
    if type(value) is dict and _KIND in value:
        array, kind = value["values"].numpy(), value[_KIND]
        if kind in _MODES:
            image = Image.fromarray(array)
            image.info.update(value["info"])
            return image
        return array if kind == "array" else array[0]
    if type(value) is dict:
        return {key: _unpacked(one) for key, one in value.items()}
    return type(value)(map(_unpacked, value)) if type(value) in (list, tuple) else value
