"""What lies behind an address (`s3://`, `gs://`, `http://`): a bucket or a folder on a server.

Images are read where they are, what was recorded is copied: with fsspec and its library for that
kind of address. Who may read is theirs to know (their environment variables and files). Each
process has connections of its own, made when it first reads.
"""

from __future__ import annotations

import inspect
import threading
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader

from stallscope.errors import TargetError
from stallscope.machine import usable_cores
from stallscope.targets.images import (
    BATCH_SIZE,
    SUFFIXES,
    ImageFile,
    ImageFiles,
    open_image,
    training_pipeline,
    worker_settings,
)
from stallscope.units import printable, said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from PIL import Image


_ANSWER_S: Final = 30.0
"""A server that does not list what it has by then is not waited for."""
_SIZED: Final = 512
"""Images whose size is asked for where a list does not say it, ..."""
_CONNECTIONS: Final = {"s3": {"config_kwargs": {"max_pool_connections": 64}}}
"""... and requests in flight that a process may have: botocore allows 10 unless told."""


class RemoteImages(ImageFiles):
    """Images behind an address, read whole, a request each.

    Args:
        address: as the user gave it.
        files: their addresses without the protocol, and their labels.
        sizes: bytes of each; 0: nobody has said.
        transform: is called with each image.
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
        """How an image that cannot be read is called: with what the server said."""
        return f"{path}: {said_by(error)}"


def read_remote(address: str, path: str, length: int = 0, begin: int = 0) -> bytes:
    """Bytes of what lies at a path of a server: so many from there on; 0: all.

    Raises:
        OSError: it is not given, in whichever way.
    """
    with _errors_of_the_library():
        system = _system(address)[0]
        if not length:
            return bytes(system.cat_file(path, **_one_request(system)))
        return bytes(system.cat_file(path, start=begin, end=begin + length))


def _one_request(system: Any) -> dict[str, Any]:
    """What keeps s3fs from asking for an object's size before it reads it: a latency more."""
    known = inspect.signature(getattr(system, "_cat_file", system.cat_file)).parameters
    return {"max_concurrency": 1} if "max_concurrency" in known else {}


@contextmanager
def _errors_of_the_library() -> Iterator[None]:
    """Each library has errors of its own; they come out as an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {said_by(error)}") from error


def remote_loader(address: str) -> DataLoader[Any]:
    """Shuffled batches of (image, label) with the default training pipeline.

    Raises:
        TargetError: nobody answers, the list is refused, or there is no image in it; the address'
            library is not installed.
    """
    root, listed = listing(address)
    found = {path: size for path, size in listed.items() if path.lower().endswith(SUFFIXES)}
    if not found:
        raise TargetError(
            f"no images at {printable(address)!r}: looked for {', '.join(SUFFIXES)} there and "
            f"below, found {len(listed):,} other objects"
        )
    inner = [PurePosixPath(path.removeprefix(root).lstrip("/")).parts for path in found]
    classes = [parts[0] if len(parts) > 1 else "" for parts in inner]
    label = {name: number for number, name in enumerate(sorted(set(classes)))}
    files = [ImageFile(path, label[name]) for path, name in zip(found, classes, strict=True)]
    dataset = RemoteImages(address, files, list(found.values()), training_pipeline())
    return DataLoader(dataset, BATCH_SIZE, shuffle=True, **worker_settings(min(4, usable_cores())))


def listing(address: str) -> tuple[str, dict[str, int]]:
    """The path of an address, and the bytes of each object below it, sorted by its path.

    Raises:
        TargetError: nobody answers, the list is refused; the address' library is not installed.
    """
    listed: tuple[str, dict[str, int]] = _answer(address, lambda: _listed(address))
    return listed


def names_at(address: str) -> list[str]:
    """What lies at an address itself, folders too; empty where nobody says so."""

    def names() -> list[str]:
        system, root = _system(address)
        return [PurePosixPath(path).name for path in system.ls(root, detail=False)]

    found: list[str] = []
    with suppress(TargetError):
        found += _answer(address, names)
    return found


def copy_objects(address: str, places: Mapping[str, Path]) -> None:
    """Copy objects of a server, each into a file of its own, whose folder is there.

    Args:
        address: as the user gave it.
        places: the file of each path.

    Raises:
        OSError: one is not given, in whichever way.
    """
    with _errors_of_the_library():
        _system(address)[0].get(list(places), [str(place) for place in places.values()])


def _listed(address: str) -> tuple[str, dict[str, int]]:
    system, root = _system(address)
    found = system.find(root, detail=True)
    if not found:
        system.ls(root)  # says why: what looks for all that is below passes over errors
    sizes = {path: about.get("size") for path, about in sorted(found.items())}
    unknown = [path for path, size in sizes.items() if size is None][:_SIZED]
    if unknown:  # a web server's list says nothing of sizes
        sizes |= dict(zip(unknown, system.sizes(unknown), strict=True))
    return str(root), {path: size or 0 for path, size in sizes.items()}


def _system(address: str) -> tuple[Any, str]:
    """This process's connection to a server, and the path of an address on it."""
    fsspec = _fsspec()
    more = _CONNECTIONS.get(address.partition("://")[0].lower(), {})
    system, path = fsspec.core.url_to_fs(address, **more)
    return system, str(path)


def _fsspec() -> ModuleType:
    import fsspec

    return fsspec  # type: ignore[no-any-return]


def _answer(address: str, ask: Callable[[], Any]) -> Any:
    """What a server says, if it says anything in time.

    Raises:
        TargetError: it does not, refuses, or nobody knows how to ask it.
    """
    said: list[Any] = []
    failed: list[Exception] = []

    def wait() -> None:
        try:
            said.append(ask())
        except Exception as error:  # noqa: BLE001 - each library has errors of its own
            failed.append(error)

    waits = threading.Thread(target=wait, daemon=True)
    waits.start()
    waits.join(_ANSWER_S)
    name = printable(address)
    if said:
        return said[0]
    if not failed:
        raise TargetError(
            f"{name!r} was not listed within {_ANSWER_S:.0f} s: check that the server answers, or "
            "give an address with fewer objects below it"
        )
    error = failed[0]
    if isinstance(error, ImportError):
        raise TargetError(f"{name!r} cannot be read here: {said_by(error)}") from error
    if isinstance(error, ValueError) and "rotocol" in str(error):
        raise TargetError(f"{name!r}: {said_by(error)}: check the address") from error
    raise TargetError(
        f"{name!r} cannot be listed ({type(error).__name__}: {said_by(error)}): check the address, "
        "and what its library needs to be let in"
    ) from error
