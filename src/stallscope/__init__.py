"""Find out why PyTorch training starves for data, measured inside the DataLoader's workers.

Only the public names. They are imported on first use, because every spawned worker imports this
module again.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from stallscope.files import __version__ as __version__

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOMES = {name: home for home, name in re.findall(r"(?m)^from (\S+) import ([A-Za-z]\w*)", _STUB)}
"""Module of each public name, as the stub imports them."""

__all__ = list(dict(sorted(_HOMES.items())))


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'stallscope' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


class _Package(ModuleType):
    """This package, in which `stallscope.ladder` stays the verb, though its folder has that name.

    Python sets a subpackage as an attribute of its parent as soon as it is imported.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def load_ipython_extension(shell: object) -> None:
    """Add `%%stallscope` to a notebook: `%load_ext stallscope`."""
    register: Any = import_module("stallscope.lab.magic").register
    register(shell)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
