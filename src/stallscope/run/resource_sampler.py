"""Starts and ends the process that samples the use of resources during a recording.

That process runs `resource_process`; the training process only holds a pipe to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from stallscope.hooks.event_log import JsonLines
from stallscope.hooks.patches import in_this_process
from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from typing_extensions import Self

    from stallscope.hooks.log_place import LogPlace


_COMMAND: Final = """
import sys
sys.path[:] = sys.argv[4:]
from stallscope.run.resource_process import main
main(*sys.argv[1:4])
"""
"""Command with the import path of this process, so that the current folder adds no modules."""
_PATIENCE_S: Final = 5.0
"""Seconds for the last sample; a process that has just started on busy cores must import first."""
_RESOURCES: Final = "the resources"


class Sampler:
    """Samples resources during a `with` block; an error becomes a note of the run."""

    def __init__(self, place: LogPlace) -> None:
        self._place = place
        self.failures = place.failures
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            with held_back(), self.failures.within(_RESOURCES):
                in_this_process.add(self)
                self._start()
        except BaseException:  # an interrupt that was held back
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with held_back():
            if self in in_this_process:  # not in a forked child that leaves the block, too
                self.retire()

    def retire(self, *, close: bool = True) -> None:
        """End the process after a last sample; a forked child (not `close`) only drops its pipe."""
        in_this_process.discard(self)
        process, self._process = self._process, None
        if process is not None and close:
            self.failures.insist(_RESOURCES, lambda: self._stop(process))
        elif process is not None:
            process.returncode = 0  # no child of this process: nothing to wait for
            process.__exit__(None, None, None)

    def _start(self) -> None:
        ours = Path(__file__).parents[2]  # an editable installation may use an import hook
        paths = [os.path.abspath(path) for path in (*sys.path, str(ours))]  # noqa: PTH100 - "" too
        has_gpu = str(int(torch.cuda.is_available()))
        arguments: list[Any] = [self._place.resources().absolute(), os.getpid(), has_gpu, *paths]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
                [get_executable(), "-S", "-c", _COMMAND, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # carries only its end
                stderr=subprocess.DEVNULL,
                cwd=os.sep,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in a terminal is for the training
            )
        except OSError as error:
            self._note(f"the resources were not sampled: no process could be started ({error})")

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """End the process by a byte: a forked child may hold its pipe open."""
        with process, suppress(subprocess.TimeoutExpired):
            try:
                process.communicate(b".", _PATIENCE_S)
            finally:
                process.kill()
        if process.returncode:
            code = process.returncode
            self._note(f"the resources were sampled only in part: the process ended with {code}")

    def _note(self, sentence: str) -> None:
        with suppress(OSError):  # no room for a few kB: notes in the logs say so
            JsonLines(self._place.resources()).say(note=sentence)
