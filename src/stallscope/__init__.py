"""Find out why PyTorch training starves for data, measured inside the DataLoader's workers.

Only the public names. They are imported on first use, because every spawned worker imports this
module again.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stallscope.files import __version__ as __version__

if TYPE_CHECKING:
    from stallscope.compare.compare import Comparison as Comparison
    from stallscope.compare.compare import compare as compare
    from stallscope.diagnose.diagnose import diagnose as diagnose
    from stallscope.diagnose.result import Diagnosis as Diagnosis
    from stallscope.errors import StallscopeError as StallscopeError
    from stallscope.experiments.experiments import experiments as experiments
    from stallscope.experiments.result import Experiments as Experiments
    from stallscope.flame.flame import flame as flame
    from stallscope.flame.result import Flame as Flame
    from stallscope.hooks.training_step import stage as stage
    from stallscope.ladder.ladder import ladder as ladder
    from stallscope.ladder.result import Ladder as Ladder
    from stallscope.lines.lines import lines as lines
    from stallscope.lines.result import Lines as Lines
    from stallscope.load import load as load
    from stallscope.orders.orders import orders as orders
    from stallscope.orders.result import Orders as Orders
    from stallscope.run.record import instrumented as instrumented
    from stallscope.run.record import record as record
    from stallscope.run.result import Run as Run
    from stallscope.storage.layout_result import Layouts as Layouts
    from stallscope.storage.layouts import layouts as layouts
    from stallscope.storage.result import Storage as Storage
    from stallscope.storage.storage import storage as storage
    from stallscope.targets.target import Target as Target
    from stallscope.targets.target import simulated_step as simulated_step
    from stallscope.targets.target import target as target
    from stallscope.tune.result import Tuning as Tuning
    from stallscope.tune.tune import tune as tune


_VERBS = ("diagnose", "experiments", "flame", "ladder", "lines", "orders", "storage", "tune")
_HOMES = {
    **{verb: f"{verb}.{verb}" for verb in _VERBS},
    **{verb.capitalize(): f"{verb}.result" for verb in (*_VERBS[1:-1], "run")},
    **dict.fromkeys(("Comparison", "compare"), "compare.compare"),
    **dict.fromkeys(("Target", "simulated_step", "target"), "targets.target"),
    **dict.fromkeys(("instrumented", "record"), "run.record"),
    "Diagnosis": "diagnose.result",
    "Layouts": "storage.layout_result",
    "StallscopeError": "errors",
    "Tuning": "tune.result",
    "layouts": "storage.layouts",
    "load": "load",
    "stage": "hooks.training_step",
}
"""Module of each public name."""

__all__ = list(dict(sorted(_HOMES.items())))


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'stallscope' has no attribute {name!r}")
    return getattr(import_module(f"stallscope.{_HOMES[name]}"), name)


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
