"""What keeps py-spy from attaching here, and the exact setting that would let it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv")
_SUDO_SCOPE: Final = 2
_NEVER_SCOPE: Final = 3


def what_would_allow() -> str:
    """The setting to change, as a sentence without its full stop."""
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
    if _in_container():
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


def _in_container() -> bool:
    return any(map(os.path.exists, _CONTAINER_MARKS)) or "KUBERNETES_SERVICE_HOST" in os.environ
