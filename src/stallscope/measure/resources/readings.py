"""What one sample holds, and what it is read from."""

from __future__ import annotations

from typing import NamedTuple, Protocol

Readings = dict[str, dict[str, float]]
"""Of each resource (see `stallscope.resources`) and device, its counter or its value."""


class Source(Protocol):
    """Something that a sample is read from, always by one thread at a time."""

    seldom: bool
    """Whether it is read only with every few samples: it changes slowly, or costs much."""
    limits: Readings
    """Of its resources, those that are known."""
    notes: list[str]
    """What a reader of the run has to know, in sentences; more may come while it is read."""

    def read(self) -> Readings:
        """What is used now.

        Raises:
            OSError, ValueError, LookupError: that cannot be read any more.
        """

    def close(self) -> None:
        """Give back what it holds open."""


class Missing(NamedTuple):
    """Resources that are not sampled."""

    resources: tuple[str, ...]
    why: str = ""
    """Nothing where there is nothing to sample: no GPU, no quota."""
