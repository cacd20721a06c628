"""Letting the process that made a worker look into it.

Under Yama's ptrace_scope 1, Ubuntu's default, a process may look only into its own descendants:
py-spy, a sibling of the worker, is refused, unless the worker names an ancestor of py-spy's. See
prctl(2), PR_SET_PTRACER.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from contextlib import suppress
from typing import Final

_PR_SET_PTRACER: Final = 0x59616D61


def let_creator_attach() -> None:
    """Let the process that created this one attach, and what it starts; does nothing elsewhere."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(Exception):  # a kernel without Yama refuses, which is as good
        # Not getppid(): of a process made by a fork server that is the server.
        creator = multiprocessing.parent_process()
        pid = os.getppid() if creator is None or creator.pid is None else creator.pid
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
