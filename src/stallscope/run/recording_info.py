"""What a run says of itself; light, because a script that is recorded waits for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from stallscope.machine import machine as machine_machine
from stallscope.machine import rank as machine_rank

if TYPE_CHECKING:
    from stallscope.hooks.probe import Probe


@dataclass(frozen=True)
class RecordingInfo:
    """What a run says of itself."""

    name: str = ""
    """What the user pointed at."""
    warmup: int = 0
    """Batches at the start that are not part of the steady state."""
    simulated_step_s: float | None = None
    """How long the step was simulated to take; None where nothing was simulated."""
    notes: tuple[str, ...] = ()
    """Sentences that the run is to carry."""
    rank: int = field(default_factory=machine_rank)
    """Of the process that trains, in a distributed run."""
    machine: dict[str, Any] = field(default_factory=machine_machine)
    """Where it was measured."""

    def leave_with(self, probe: Probe) -> None:
        """Leave it with the logs, which then say all, whatever becomes of this process."""
        probe.marks.say(about=asdict(self))
