"""Addresses (`s3://`, `gs://`, `http://`): a bucket or a folder on a server, read with fsspec.

Images are read directly from the server, recorded runs are copied. fsspec's library for the
protocol finds the credentials (its environment variables and files). Each process opens its own
connections at its first read.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from stallscope.errors import TargetError
from stallscope.targets import images as folder
from stallscope.units import printable, said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from PIL import Image
    from torch.utils.data import DataLoader


class RemoteImages(folder.ImageFiles):
    """Images at an address; each is read as a whole. Files are named without the protocol."""

    def __init__(
        self, address: str, files: Sequence[folder.ImageFile], transform: Callable[[Any], Any]
    ) -> None:
        super().__init__(files, transform)
        self.address = address
        self.loader = self._open

    def _open(self, path: Any) -> Image.Image:
        return folder.open_image(BytesIO(_system(self.address)[0].cat_file(path)))


def remote_loader(address: str) -> DataLoader[Any]:
    """Return a loader of shuffled (image, label) batches with the default training pipeline.

    A `TargetError` says that there is no image; see `listing`.
    """
    root, objects = listing(address)
    images = [path for path in objects if folder.is_image(path)]
    if not images:
        raise TargetError(
            f"no images at {printable(address)!r}: looked for {', '.join(folder.SUFFIXES)} there "
            f"and below, found {len(objects):,} other objects"
        )
    below = [(path, PurePosixPath(path.removeprefix(root).lstrip("/"))) for path in images]
    return folder.image_loader(
        RemoteImages(address, folder.labelled(below), folder.training_pipeline())
    )


def listing(address: str) -> tuple[str, list[str]]:
    """Return the path of an address, and the path of each object below it, sorted.

    A `TargetError` says that the server refuses, or that the address' library is missing.
    """
    name = printable(address)
    try:
        system, root = _system(address)
        objects = sorted(system.find(root))
        if not objects:
            system.ls(root)  # raises the reason: `find` ignores errors
    except Exception as error:
        if isinstance(error, ImportError):
            raise TargetError(f"{name!r} cannot be read here: {said_by(error)}") from error
        raise TargetError(
            f"{name!r} cannot be listed ({type(error).__name__}: {said_by(error)}): check the "
            "address, and the credentials that its library needs"
        ) from error
    return root, objects


def names_at(address: str) -> list[str]:
    """Return the names of files and folders at an address; empty if they cannot be listed."""
    try:
        system, root = _system(address)
        return [PurePosixPath(path).name for path in system.ls(root, detail=False)]
    except Exception:  # noqa: BLE001 - each library has errors of its own
        return []


def copy_objects(address: str, places: Mapping[str, Path]) -> None:
    """Copy objects of a server to files, by their paths, else raise a `TargetError`."""
    try:
        for place in places.values():  # a rank without a run has a folder, too
            place.parent.mkdir(parents=True, exist_ok=True)
        _system(address)[0].get(list(places), [str(place) for place in places.values()])
    except Exception as error:  # of the protocol's library
        raise TargetError(
            f"{printable(address)} cannot be copied ({said_by(error)}): try again, or copy it here"
        ) from error


def _system(address: str) -> tuple[Any, str]:
    """Return this process's connection to a server, and the path of an address on it."""
    import fsspec

    system, path = fsspec.core.url_to_fs(address)
    return system, str(path)
