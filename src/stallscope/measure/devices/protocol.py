"""What a device has to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(Protocol):
    """Times the steps of one window; on a device that runs behind its host, in its own time."""

    def begin(self) -> None:
        """The window begins: with the next batch."""

    def step_begins(self) -> None:
        """The batch has come, and is where the step wants it."""

    def step_ends(self) -> None:
        """The step has returned."""

    def read(self) -> list[tuple[float, float]]:
        """Wait for the device; for each step, the time since the one before, and in the step, s."""


class Device(Protocol):
    """Computes the steps."""

    name: str
    """In words."""
    counts_kernels: bool
    """Whether `busy_share` can tell anything."""
    has_memory: bool
    """Whether it has one of its own, into which batches are copied."""

    def move(self, batch: Any) -> Any:
        """The batch where the step wants it."""

    def put(self, batch: Any) -> Any:
        """The batch in the device's own memory; the same without one."""

    def clock(self) -> Clock:
        """A new clock."""

    def busy_share(self, use: Callable[[], None]) -> float | None:
        """Share of the wall in which the device computes while `use` runs; None: not to be told."""

    def reported_share(self) -> float | None:
        """What the device's driver calls its utilisation of late (0 to 1); None: not to be told."""

    def held_bytes(self) -> int:
        """What lies in its memory, bytes; 0 without one."""
