"""Calls of py-spy with a time limit; a refusal names the setting that would allow the call.

Nothing here waits: the caller polls for the end. A refused `record` can hang, so it is started only
after a `dump` under a timeout has worked.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Sequence


DUMP_S: Final = 3.0
"""Time limit of a `dump`, which takes a quarter of a second."""
_DUMP_RETRIES: Final = 5
"""Retries of a `dump`: the stacks change while it reads them, which may make it fail."""
_END_S: Final = 2.0
"""Time limit for a clean end."""


class PySpyCall:
    """A run of py-spy with a time limit. Hold interrupts back until its owner can kill it.

    If it fails without being refused, it is started anew within its time, at most `retries` times.
    """

    def __init__(
        self, arguments: Sequence[str], folder: Path, name: str, bound_s: float, retries: int = 0
    ) -> None:
        self._arguments = arguments
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._deadline = time.monotonic() + bound_s
        self._retries = retries
        self.timed_out = False
        self._make()

    def _make(self) -> None:
        with held_back(), self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(  # noqa: S603 - py-spy, and numbers
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # this process passes a Ctrl-C on
            )

    @property
    def is_over(self) -> bool:
        """True after its end; kills it after its time limit."""
        if self._process.poll() is not None:
            if self._retries and not self.worked and not is_refused(self):
                self._retries -= 1
                self._make()
                return False
            return True
        if time.monotonic() < self._deadline:
            return False
        self.timed_out = True
        self.kill()
        return True

    @property
    def worked(self) -> bool:
        """True after a successful end."""
        return self._process.poll() == 0 and not self.timed_out

    @property
    def out(self) -> str:
        """Text that it printed."""
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def message(self) -> str:
        """Text on stderr, without py-spy's own traceback."""
        text = self._err.read_text(encoding="utf-8", errors="replace")
        return text.partition("Stack backtrace:")[0].strip()

    def tell_to_end(self) -> None:
        """End it as Ctrl-C does: it writes its results."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._deadline = min(self._deadline, time.monotonic() + _END_S)

    def kill(self) -> None:
        """End it now."""
        self._retries = 0
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def executable() -> Path | None:
    """Return the py-spy for this Python, else from the PATH; None if missing."""
    beside = Path(sys.executable).with_name("py-spy")
    path = shutil.which(beside) or shutil.which("py-spy")
    return Path(path) if path else None


def dump(program: Path, pid: int, folder: Path, *, with_locals: bool = False) -> PySpyCall:
    """Start a `dump` of the stacks of a process."""
    arguments = [str(program), "dump", "--nonblocking", "--json", "--pid", str(pid)]
    arguments += ["--locals"] * with_locals
    return PySpyCall(arguments, folder, f"dump-{pid}", DUMP_S, _DUMP_RETRIES)


def is_refused(call: PySpyCall) -> bool:
    """Return whether py-spy lacks the permission to attach."""
    words = ("permission denied", "not permitted", "elevated", "sudo")
    return any(word in call.message.lower() for word in words)


def why_not(call: PySpyCall) -> str:
    """Return the reason why a call failed."""
    if call.timed_out:
        return f"py-spy got no answer within {DUMP_S:.0f} s"
    if is_refused(call):
        return "py-spy may not attach"
    reason = call.message.removeprefix("Error: ").partition("\n")[0].rstrip(". ")
    with suppress(ValueError):
        reason = reason[: reason.index(" Check that the process is running")].rstrip(". ")
    return f"py-spy could not read it ({reason or 'no message'})"


_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv")


def what_would_allow() -> str:
    """Return a sentence on the setting to change, without a full stop."""
    if not sys.platform.startswith("linux"):
        return "start this Python as administrator (macOS: with sudo) to use py-spy"
    settings, scope = [], 0
    with suppress(OSError, ValueError):
        scope = int(_SCOPE.read_text())
    if scope:
        settings.append(
            f"kernel.yama.ptrace_scope is {scope}: `sudo sysctl kernel.yama.ptrace_scope=0` lets "
            "py-spy attach (3 cannot be changed until a reboot)"
        )
    if any(map(os.path.exists, _CONTAINER_MARKS)) or "KUBERNETES_SERVICE_HOST" in os.environ:
        settings.append(
            "this is a container: start it with `--cap-add SYS_PTRACE` (Kubernetes: "
            'securityContext.capabilities.add: ["SYS_PTRACE"]) to let py-spy attach'
        )
    return "; ".join(settings) or (
        "neither kernel.yama.ptrace_scope nor a container seems to forbid it: run as the user of "
        "that process or with sudo, or allow SYS_PTRACE"
    )
