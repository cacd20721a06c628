"""The loop of a question, for tools that watch a script."""

import sys
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any


def target(address: str) -> tuple[Any, Any]:
    """Return loader and step of `module:function`; the module lies in the working folder."""
    sys.path.insert(0, "")
    module, _, function = address.partition(":")
    return getattr(import_module(module), function)()


def batches(loader: Any, seconds: float, at_most: int) -> Iterator[Any]:
    """Yield batches over several epochs, for so long or so many."""
    end_s, count = time.monotonic() + seconds, 0
    while count < at_most and time.monotonic() < end_s:
        for batch in loader:
            yield batch
            count += 1
            if count >= at_most or time.monotonic() >= end_s:
                return
