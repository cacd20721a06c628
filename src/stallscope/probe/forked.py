"""A process that is forked while something records must not write into its parent's logs."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from stallscope.probe.patches import unlock_in_child

in_this_process: WeakSet[Any] = WeakSet()
"""Everything that writes logs in this process; has a method `retire(close=...)`."""


def _take_off_in_child() -> None:
    unlock_in_child()
    for writer in list(in_this_process):
        writer.retire(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_take_off_in_child)
