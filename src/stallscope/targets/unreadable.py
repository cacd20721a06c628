"""Images of the user's that cannot be read: left out, counted over all workers, and named.

One bad file among thousands is usual; a measurement goes on with the others. What was met stands in
memory that workers share with the loop's process, so that a result can tell of it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Final

import torch

from stallscope.errors import UnreadableError
from stallscope.units import count, printable

_NAMED: Final = 3
_NAME_BYTES: Final = 512
"""Of a longer name its end is kept."""
_BEARABLE: Final = 0.1
"""A larger share of unreadable images is an error."""
_ENOUGH: Final = 30
"""From so many images on, a share is judged."""


class Unreadable:
    """How many images were read, how many could not be, and the names of some.

    Args:
        places: what is counted apart (a file, a shard); one process at a time reads in each.
        images: how many there are, where that is known.
    """

    def __init__(self, places: int, images: int = _ENOUGH) -> None:
        self._counts = _shared(places, 2, dtype=torch.int32)
        self._names = _shared(_NAMED, _NAME_BYTES, dtype=torch.uint8)
        self._enough = min(images, _ENOUGH)

    def __deepcopy__(self, _: Any) -> Unreadable:
        """Make none: what a measurement's private copy of a loader meets is told of the loader."""
        return self

    def begin(self, place: int) -> None:
        """Forget what was met in a place, which is read anew."""
        self._counts[place] = 0

    def read(self, place: int) -> None:
        """Count an image that was read."""
        self._counts[place, 0] += 1

    def leave_out(self, place: int, name: str) -> None:
        """Count an image that could not be read.

        Raises:
            UnreadableError: they are too many for numbers that mean anything.
        """
        self._counts[place, 1] += 1
        self._keep(name)
        read, bad = self._counts.sum(0).tolist()
        if bad > _BEARABLE * max(read + bad, self._enough):
            raise UnreadableError(
                f"{bad} of the first {count(read + bad, 'image')} cannot be read "
                f"({self._some(bad)}): take such files away, or give your own loader"
            )

    def notes(self) -> tuple[str, ...]:
        """What a result has to tell; nothing where all could be read."""
        bad = int(self._counts[:, 1].sum())
        if not bad:
            return ()
        return (f"{count(bad, 'image')} could not be read and was left out: {self._some(bad)}",)

    def _keep(self, name: str) -> None:
        known = self._known()
        if len(known) < _NAMED and name not in known:
            kept = os.fsencode(name)[-_NAME_BYTES:].ljust(_NAME_BYTES, b"\0")
            self._names[len(known)] = torch.frombuffer(bytearray(kept), dtype=torch.uint8)

    def _known(self) -> list[str]:
        rows = (bytes(row.tolist()).rstrip(b"\0") for row in self._names)
        return [os.fsdecode(row) for row in rows if row]

    def _some(self, of: int) -> str:
        known = [printable(name, 200) for name in self._known()]
        return ", ".join(known) + (", ..." if of > len(known) else "")


def _shared(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    zeros = torch.zeros(shape, dtype=dtype)
    with suppress(RuntimeError, OSError):  # no room in /dev/shm: each process counts for itself
        zeros.share_memory_()  # type: ignore[no-untyped-call]
    return zeros
