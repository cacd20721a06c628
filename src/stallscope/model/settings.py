"""Settings of a DataLoader: the grid to predict, and copies of a loader with a setting.

The user's loader stays as it is: a loader with another setting is a shallow copy.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import DataLoader

from stallscope.errors import ArgumentError
from stallscope.targets.loaders import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_PREFETCH: Final = 2
"""Torch's default of the prefetch factor."""
_DEEPER: Final = 4
"""Prefetch factor that bridges occasional slow samples."""
_MOST_WORKERS: Final = 64
"""Most workers in the grid, unless the loader has more."""
HAS_IN_ORDER: Final = "in_order" in DataLoader.__init__.__annotations__
"""True where torch can deliver batches out of order (from 2.6 on)."""


@dataclass(frozen=True)
class Setting:
    """Arguments of a DataLoader, by their names."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    """Batches that each worker prefetches; None without workers."""
    persistent_workers: bool = False
    in_order: bool = True
    pin_memory: bool = False
    threads: int | None = None
    """Threads of torch, OpenCV and BLAS in each worker; None: their defaults."""
    multiprocessing_context: str | None = None

    @property
    def size(self) -> tuple[Any, ...]:
        """Sort key: fewest workers, least prefetch, fewest changes."""
        limits_threads = self.threads is not None
        ahead = self.prefetch_factor or 0
        return self.num_workers, ahead, self.pin_memory, self.persistent_workers, limits_threads

    def normal(self) -> Setting:
        """Return the setting without arguments that have no effect, as prefetch without workers."""
        if self.num_workers:
            return replace(self, prefetch_factor=self.prefetch_factor or _PREFETCH)
        return Setting(pin_memory=self.pin_memory)

    def changed(self, new: Setting) -> dict[str, Any]:
        """Return the arguments in which another setting differs."""
        mine, changes = vars(self.normal()), vars(new.normal())
        of_workers = () if new.num_workers else ("in_order", "threads")
        return {k: v for k, v in changes.items() if v != mine[k] and k not in of_workers}

    def text(self, new: Setting) -> str:
        """Return the change to another setting in words: "num_workers=4, prefetch_factor=8"."""
        changed = self.changed(new)
        if "num_workers" in changed and not new.num_workers:
            return "num_workers=0"
        threads = changed.pop("threads", None)
        words = [f"{name}={value!r}" for name, value in changed.items()]
        if threads is not None:
            words.append(f"{threads} thread{'s' * (threads != 1)} in each worker")
        return ", ".join(words) or "as it is"


_NAMES: Final = [field.name for field in fields(Setting)]


def setting_of(loader: Any) -> Setting:
    """Return the setting of a loader."""
    context = getattr(loader, "multiprocessing_context", None)
    init = getattr(loader, "worker_init_fn", None)
    return Setting(
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=bool(loader.persistent_workers),
        in_order=bool(getattr(loader, "in_order", True)),
        pin_memory=bool(loader.pin_memory),
        threads=init.threads if isinstance(init, WorkerThreads) else None,
        multiprocessing_context=None if context is None else context.get_start_method(),
    ).normal()


def with_setting(loader: Any, setting: Setting) -> Any:
    """Return a copy of a loader with another setting."""
    setting = setting.normal()
    context, init = setting.multiprocessing_context, loader.worker_init_fn
    init = init.init if isinstance(init, WorkerThreads) else init
    changed: dict[str, Any] = {
        "num_workers": setting.num_workers,
        "prefetch_factor": setting.prefetch_factor,
        "persistent_workers": setting.persistent_workers,
        "pin_memory": setting.pin_memory,
        "worker_init_fn": init if setting.threads is None else WorkerThreads(setting.threads, init),
    }
    if HAS_IN_ORDER:
        changed["in_order"] = setting.in_order
    if not setting.num_workers:
        changed["timeout"] = 0  # torch accepts no other timeout without workers
    if setting_of(loader).multiprocessing_context != context:
        started = None if context is None else torch.multiprocessing.get_context(context)
        changed["_DataLoader__multiprocessing_context"] = started
    return copied(loader, **changed)


@dataclass(frozen=True)
class WorkerThreads:
    """`worker_init_fn` that limits the threads of libraries and calls the user's function."""

    threads: int
    """Threads of torch, OpenCV, and libraries that read OpenMP and BLAS variables on import."""
    init: Callable[[int], object] | None = None
    """The user's `worker_init_fn`, or None."""

    def __call__(self, worker: int) -> None:
        """Limit the threads of imported libraries."""
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(self.threads)
        torch.set_num_threads(self.threads)
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(0 if self.threads == 1 else self.threads)
        if "threadpoolctl" in sys.modules:
            sys.modules["threadpoolctl"].threadpool_limits(self.threads)
        if self.init is not None:
            self.init(worker)


def code_of(now: Setting, setting: Setting) -> str:
    """Return the code to create the loader, with `...` for unchanged arguments."""
    changed = now.changed(setting)
    if not changed:
        return ""
    threads = changed.pop("threads", None)
    arguments = [f"{name}={value!r}" for name, value in changed.items()]
    if threads is None:
        return f"DataLoader({', '.join(['...', *arguments])})"
    return (
        f"def few_threads(worker):  # with the body of your own worker_init_fn\n"
        f"    torch.set_num_threads({threads})\n"
        f"    cv2.setNumThreads({0 if threads == 1 else threads})  # where OpenCV is used\n\n\n"
        f"DataLoader({', '.join(['...', *arguments, 'worker_init_fn=few_threads'])})"
    )


def grid(now: Setting, cores: float, *, pins: bool, is_stream: bool) -> list[Setting]:
    """Return the settings to predict, the current one first.

    Args:
        now: current setting.
        cores: cores available to the loop's processes.
        pins: whether a device copies from pinned memory.
        is_stream: whether the dataset is iterable. Workers of an undivided stream repeat all its
            samples, so a stream that is loaded without workers gets none.
    """
    near = {int(cores), int(2 * cores), now.num_workers + 1, now.num_workers // 2}
    wanted = {0, 1, 2, 3, 4, 6, 8, 12, 16, now.num_workers}
    wanted |= {workers for workers in near if workers <= max(_MOST_WORKERS, now.num_workers)}
    if is_stream and not now.num_workers:
        wanted = {0}
    settings = [now]
    for workers in sorted(wanted):
        base = replace(now, num_workers=workers, threads=now.threads if workers else None)
        depths = {base.prefetch_factor or _PREFETCH, _PREFETCH, _DEEPER} if workers else {0}
        settings += [replace(base, prefetch_factor=depth).normal() for depth in sorted(depths)]
    with_workers = [setting for setting in settings if setting.num_workers]
    deeper = [setting for setting in with_workers if setting.num_workers == now.num_workers]
    settings += [replace(setting, persistent_workers=True) for setting in with_workers]
    if HAS_IN_ORDER:
        settings += [replace(setting, in_order=False) for setting in deeper]
    if pins:
        settings += [replace(setting, pin_memory=True) for setting in deeper]
    return list(dict.fromkeys(settings))


def given_settings(
    now: Setting, requested: Iterable[Mapping[str, Any]] | None, whole: Iterable[Setting]
) -> list[Setting]:
    """Return the settings to try, the current one first; the whole grid for `requested=None`.

    Raises:
        ArgumentError: a setting is no dictionary, or has an unknown argument or value.
    """
    if requested is None:
        return list(whole)
    settings = [now]
    for arguments in [requested] if isinstance(requested, (str, dict)) else requested:
        if not isinstance(arguments, dict) or not arguments.keys() <= set(_NAMES):
            raise ArgumentError(
                f"settings: {arguments!r:.80} is not a setting: give dictionaries of a "
                f"DataLoader's arguments, of {', '.join(_NAMES)}"
            )
        for name, value in arguments.items():
            if not _can_be(name, value):
                raise ArgumentError(f"settings: {name}={value!r:.40} is invalid")
        here = {"prefetch_factor": None} if arguments.get("num_workers") == 0 else {}
        settings.append(replace(now, **{**here, **arguments}).normal())
    return list(dict.fromkeys(settings))


def _can_be(name: str, value: Any) -> bool:
    if name in ("num_workers", "prefetch_factor", "threads"):
        least = 0 if name == "num_workers" else 1
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return (value is None and name != "num_workers") or (is_whole and value >= least)
    if name == "multiprocessing_context":
        return value is None or value in torch.multiprocessing.get_all_start_methods()
    return isinstance(value, bool)
