"""Find out why PyTorch training starves for data, measured inside the DataLoader's workers.

Only the public names, which stand in the stub beside. They are imported on first use, because every
spawned worker imports this module again.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import lazy_loader

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = [name for name in _names if name != "__version__"]


def load_ipython_extension(shell: object) -> None:
    """Add `%%stallscope` to a notebook: `%load_ext stallscope`."""
    register: Any = import_module("stallscope.lab.notebooks").register
    register(shell)
