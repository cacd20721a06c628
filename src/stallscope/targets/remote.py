"""Addresses (`s3://`, `gs://`, `http://`): a bucket or a folder on a server, read with fsspec.

Images are read directly from the server, recorded runs are copied. fsspec's library for the
protocol finds the credentials (its environment variables and files). Each process opens its own
connections at its first read.
"""

from __future__ import annotations

import inspect
import threading
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import PurePosixPath
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Final

from stallscope.errors import TargetError
from stallscope.targets.images import (
    SUFFIXES,
    ImageFile,
    ImageFiles,
    image_loader,
    is_image,
    labelled,
    open_image,
    training_pipeline,
)
from stallscope.units import printable, said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from PIL import Image
    from torch.utils.data import DataLoader


_ANSWER_S: Final = 30.0
"""Seconds to wait for a server's answer."""
_SIZED: Final = 512
"""Number of images whose size is requested if the list has no sizes."""
_CONNECTIONS: Final = {"s3": {"config_kwargs": {"max_pool_connections": 64}}}
"""Requests in flight per process; botocore's default is 10."""


class RemoteImages(ImageFiles):
    """Images at an address; each image is one request.

    Args:
        address: as the user gave it.
        files: addresses without the protocol, and labels.
        sizes: bytes of each image; 0: unknown.
        transform: applied to each image.
    """

    def __init__(
        self,
        address: str,
        files: Sequence[ImageFile],
        sizes: Sequence[int],
        transform: Callable[[Any], Any],
    ) -> None:
        super().__init__(files, transform)
        self.address, self.sizes = address, sizes
        self.loader = self._open

    def _open(self, path: Any) -> Image.Image:
        return open_image(BytesIO(read_remote(self.address, path)))

    def named(self, path: str, error: Exception) -> str:
        """Return the name of an image that cannot be read, with the server's message."""
        return f"{path}: {said_by(error)}"


def read_remote(address: str, path: str, length: int = 0, begin: int = 0) -> bytes:
    """Return an object's bytes from `begin` on; a `length` of 0 means all of them.

    Raises:
        OSError: the server does not send it.
    """
    with _as_os_errors():
        system = _system(address)[0]
        if not length:
            return bytes(system.cat_file(path, **_one_request(system)))
        return bytes(system.cat_file(path, start=begin, end=begin + length))


def _one_request(system: Any) -> dict[str, Any]:
    """Return the option that saves s3fs a request for the size before each read."""
    parameters = inspect.signature(getattr(system, "_cat_file", system.cat_file)).parameters
    return {"max_concurrency": 1} if "max_concurrency" in parameters else {}


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turn the errors of each library into an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {said_by(error)}") from error


def remote_loader(address: str) -> DataLoader[Any]:
    """Return a loader of shuffled (image, label) batches with the default training pipeline.

    Raises:
        TargetError: the server does not answer or refuses, there is no image, or the address'
            library is not installed.
    """
    root, objects = listing(address)
    sizes = {path: size for path, size in objects.items() if is_image(path)}
    if not sizes:
        raise TargetError(
            f"no images at {printable(address)!r}: looked for {', '.join(SUFFIXES)} there and "
            f"below, found {len(objects):,} other objects"
        )
    below = [(path, PurePosixPath(path.removeprefix(root).lstrip("/"))) for path in sizes]
    files = labelled(below)
    return image_loader(RemoteImages(address, files, list(sizes.values()), training_pipeline()))


def listing(address: str) -> tuple[str, dict[str, int]]:
    """Return the path of an address, and the bytes of each object below it, sorted by path.

    Raises:
        TargetError: the server does not answer or refuses, or the address' library is not
            installed.
    """
    listed: tuple[str, dict[str, int]] = _answer(address, lambda: _listed(address))
    return listed


def names_at(address: str) -> list[str]:
    """Return the names of files and folders at an address; empty if they cannot be listed."""

    def names() -> list[str]:
        system, root = _system(address)
        return [PurePosixPath(path).name for path in system.ls(root, detail=False)]

    result: list[str] = []
    with suppress(TargetError):
        result += _answer(address, names)
    return result


def copy_objects(address: str, places: Mapping[str, Path]) -> None:
    """Copy objects of a server to files in existing folders.

    Args:
        address: as the user gave it.
        places: file for each path.

    Raises:
        OSError: the server does not send an object.
    """
    with _as_os_errors():
        _system(address)[0].get(list(places), [str(place) for place in places.values()])


def _listed(address: str) -> tuple[str, dict[str, int]]:
    system, root = _system(address)
    entries = system.find(root, detail=True)
    if not entries:
        system.ls(root)  # raises the reason: `find` ignores errors
    sizes = {path: entry.get("size") for path, entry in sorted(entries.items())}
    unknown = [path for path, size in sizes.items() if size is None][:_SIZED]
    if unknown:  # a web server lists no sizes
        sizes |= dict(zip(unknown, system.sizes(unknown), strict=True))
    return str(root), {path: size or 0 for path, size in sizes.items()}


def _system(address: str) -> tuple[Any, str]:
    """Return this process's connection to a server, and the path of an address on it."""
    import fsspec

    settings = _CONNECTIONS.get(address.partition("://")[0].lower(), {})
    system, path = fsspec.core.url_to_fs(address, **settings)
    return system, str(path)


def _answer(address: str, ask: Callable[[], Any]) -> Any:
    """Return a server's answer.

    Raises:
        TargetError: the server does not answer in time, refuses, or has an unknown protocol.
    """
    answers: Queue[Any] = Queue()

    def wait() -> None:
        try:
            answers.put((ask(), None))
        except Exception as error:  # noqa: BLE001 - each library has errors of its own
            answers.put((None, error))

    threading.Thread(target=wait, daemon=True).start()
    name = printable(address)
    try:
        answer, error = answers.get(timeout=_ANSWER_S)
    except Empty:
        raise TargetError(
            f"{name!r} was not listed within {_ANSWER_S:.0f} s: check that the server answers, or "
            "give an address with fewer objects below it"
        ) from None
    if error is None:
        return answer
    if isinstance(error, ImportError):
        raise TargetError(f"{name!r} cannot be read here: {said_by(error)}") from error
    if isinstance(error, ValueError) and "rotocol" in str(error):
        raise TargetError(f"{name!r}: {said_by(error)}: check the address") from error
    raise TargetError(
        f"{name!r} cannot be listed ({type(error).__name__}: {said_by(error)}): check the address, "
        "and the credentials that its library needs"
    ) from error
