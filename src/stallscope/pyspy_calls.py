"""Calls of py-spy: each with an end, and a refusal in words with the setting that would allow it.

Nothing here waits: whoever made a call looks whether it is over. A refused `record` can hang, so it
is only made where a `dump` under a timeout has worked.
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
"""So long a `dump` may take; it takes a quarter of a second."""
_MORE_DUMPS: Final = 5
"""So often it is made again: it reads stacks that change meanwhile, and may fail by that."""
_END_S: Final = 2.0
"""So long it may take where it is told to end."""


class PySpyCall:
    """One run of py-spy, with an end. Hold interrupts back until it is kept where it gets killed.

    Args:
        arguments: of py-spy.
        folder: for its output.
        name: of its files there.
        bound_s: it is killed after so long.
        more: so often it is made again, within that time, where it fails without being refused.
    """

    def __init__(
        self, arguments: Sequence[str], folder: Path, name: str, bound_s: float, more: int = 0
    ) -> None:
        self._arguments = arguments
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._deadline = time.monotonic() + bound_s
        self._more = more
        self.timed_out = False
        self._make()

    def _make(self) -> None:
        with held_back(), self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(  # noqa: S603 - py-spy, and numbers
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
            )

    @property
    def is_over(self) -> bool:
        """Whether it has ended; ends it where its time is over."""
        if self._process.poll() is not None:
            if self._more and not self.worked and not is_refused(self):
                self._more -= 1
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
        """Whether it ended well."""
        return self._process.poll() == 0 and not self.timed_out

    @property
    def out(self) -> str:
        """What it printed."""
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def said(self) -> str:
        """What it has to say, without the trace of its own stack."""
        text = self._err.read_text(encoding="utf-8", errors="replace")
        return text.partition("Stack backtrace:")[0].strip()

    def tell_to_end(self) -> None:
        """End it as Ctrl-C does: it writes down what it has."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._deadline = min(self._deadline, time.monotonic() + _END_S)

    def kill(self) -> None:
        """End it now."""
        self._more = 0
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def executable() -> Path | None:
    """Find the py-spy that belongs to this Python, else the one on the PATH; None without one."""
    beside = Path(sys.executable).parent
    for folder in (beside, beside / "Scripts"):
        for name in ("py-spy", "py-spy.exe"):
            if (folder / name).is_file():
                return folder / name
    found = shutil.which("py-spy")
    return Path(found) if found else None


def dump(program: Path, pid: int, folder: Path, *, with_locals: bool = False) -> PySpyCall:
    """Ask for the stacks of a process, once."""
    arguments = [str(program), "dump", "--nonblocking", "--json", "--pid", str(pid)]
    arguments += ["--locals"] * with_locals
    return PySpyCall(arguments, folder, f"dump-{pid}", DUMP_S, _MORE_DUMPS)


def is_refused(call: PySpyCall) -> bool:
    """Return whether py-spy was not allowed to look."""
    said = call.said.lower()
    return any(word in said for word in ("permission denied", "not permitted", "elevated", "sudo"))


def why_not(call: PySpyCall) -> str:
    """Say why a call failed."""
    if call.timed_out:
        return f"py-spy got no answer within {DUMP_S:.0f} s"
    if is_refused(call):
        return "py-spy may not attach"
    said = call.said
    first = said.removeprefix("Error: ").partition("\n")[0].rstrip(". ")
    with suppress(ValueError):
        first = first[: first.index(" Check that the process is running")].rstrip(". ")
    return f"py-spy could not read it ({first or 'it ended without a word'})"


_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv")
_SUDO_SCOPE: Final = 2
_NEVER_SCOPE: Final = 3


def what_would_allow() -> str:
    """Name the setting to change, as a sentence without its full stop."""
    if sys.platform == "darwin":
        return "macOS lets only root attach: start this Python with sudo to use py-spy"
    if sys.platform == "win32":
        return "start this Python as administrator to use py-spy"
    said = []
    scope = _ptrace_scope()
    if scope == _NEVER_SCOPE:
        said.append(
            "kernel.yama.ptrace_scope is 3, which forbids attaching until the machine starts anew "
            "with a lower value"
        )
    elif scope:
        root = " (2 allows root alone)" if scope == _SUDO_SCOPE else ""
        said.append(
            f"kernel.yama.ptrace_scope is {scope}{root}: `sudo sysctl kernel.yama.ptrace_scope=0` "
            "lets py-spy attach"
        )
    if any(map(os.path.exists, _CONTAINER_MARKS)) or "KUBERNETES_SERVICE_HOST" in os.environ:
        said.append(
            "this is a container: start it with `--cap-add SYS_PTRACE` (Kubernetes: "
            'securityContext.capabilities.add: ["SYS_PTRACE"]) to let py-spy attach'
        )
    return "; ".join(said) or (
        "neither kernel.yama.ptrace_scope nor a container is in the way that could be seen: run as "
        "the user of that process or with sudo, or allow SYS_PTRACE"
    )


def _ptrace_scope() -> int:
    with suppress(OSError, ValueError):
        return int(_SCOPE.read_text())
    return 0
