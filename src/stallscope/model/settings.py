"""A setting of a DataLoader as a value, the grid of those that are predicted, and a loader with it.

Nothing of the user's is changed: a loader with another setting is a shallow copy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import DataLoader

from stallscope.errors import ArgumentError
from stallscope.targets.loaders import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_PREFETCH: Final = 2
"""What torch takes where it is not told."""
_DEEPER: Final = 4
"""A prefetch factor that outlasts samples which are slow now and then."""
_MOST_WORKERS: Final = 64
"""More are only looked at where the loader has more."""
HAS_IN_ORDER: Final = "in_order" in DataLoader.__init__.__annotations__
"""Whether this torch delivers batches out of order on demand (from 2.6 on)."""


@dataclass(frozen=True)
class Setting:
    """How a DataLoader is to load; named as its arguments are."""

    num_workers: int = 0
    """Worker processes; 0: the main process loads."""
    prefetch_factor: int | None = None
    """Batches that each worker makes ahead; None without workers."""
    persistent_workers: bool = False
    """Whether workers live on from epoch to epoch."""
    in_order: bool = True
    """Whether a batch waits for those that were asked for earlier."""
    pin_memory: bool = False
    """Whether batches are copied to pinned memory."""
    threads: int | None = None
    """Threads of torch, OpenCV and BLAS in each worker; None: whatever they take."""
    multiprocessing_context: str | None = None
    """How workers are started; None: as Python starts processes."""

    def normal(self) -> Setting:
        """The same without what has no meaning: nothing is prefetched where nobody works ahead."""
        if self.num_workers:
            return replace(self, prefetch_factor=self.prefetch_factor or _PREFETCH)
        return Setting(pin_memory=self.pin_memory)

    def changed(self, other: Setting) -> dict[str, Any]:
        """The arguments in which another setting differs from this one."""
        mine = self.normal()
        names = [field.name for field in fields(Setting)]
        given = {name: getattr(other.normal(), name) for name in names}
        changed = {name: value for name, value in given.items() if value != getattr(mine, name)}
        if not other.num_workers:  # which these are about
            changed.pop("in_order", None)
            changed.pop("threads", None)
        return changed

    def text(self, other: Setting) -> str:
        """The change to another setting in words, as in "num_workers=4, prefetch_factor=8"."""
        changed = self.changed(other)
        if "num_workers" in changed and not other.num_workers:
            changed = {"num_workers": 0}
        threads = changed.pop("threads", None)
        said = [f"{name}={value!r}" for name, value in changed.items()]
        if threads is not None:
            said.append(f"{threads} thread{'s' * (threads != 1)} in each worker")
        return ", ".join(said) or "as it is"


def setting_of(loader: Any) -> Setting:
    """The setting of a loader."""
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
    """A loader with a setting: same dataset, samplers, generator, collate and worker_init_fn.

    Args:
        loader: a DataLoader; it stays as it is.
        setting: the new one.
    """
    setting = setting.normal()
    context = setting.multiprocessing_context
    changed: dict[str, Any] = {
        "num_workers": setting.num_workers,
        "prefetch_factor": setting.prefetch_factor,
        "persistent_workers": setting.persistent_workers,
        "pin_memory": setting.pin_memory,
        "worker_init_fn": _init_of(loader, setting.threads),
    }
    if HAS_IN_ORDER:
        changed["in_order"] = setting.in_order
    if not setting.num_workers:
        changed["timeout"] = 0  # torch accepts no other one without workers
    if setting_of(loader).multiprocessing_context != context:
        started = None if context is None else torch.multiprocessing.get_context(context)
        changed["_DataLoader__multiprocessing_context"] = started
    return copied(loader, **changed)


def _init_of(loader: Any, threads: int | None) -> Any:
    init = loader.worker_init_fn
    inner = init.init if isinstance(init, WorkerThreads) else init
    return inner if threads is None else WorkerThreads(threads, inner)


@dataclass(frozen=True)
class WorkerThreads:
    """A `worker_init_fn` that limits the threads of a worker's libraries, and calls the user's."""

    threads: int
    """For torch, OpenCV, and what reads the variables of OpenMP and BLAS when it is imported."""
    init: Callable[[int], object] | None = None
    """The user's own; None where there is none."""

    def __call__(self, worker: int) -> None:
        """Limit them; what is not installed or not imported has none."""
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(self.threads)
        torch.set_num_threads(self.threads)
        import sys

        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(0 if self.threads == 1 else self.threads)
        if "threadpoolctl" in sys.modules:
            sys.modules["threadpoolctl"].threadpool_limits(self.threads)
        if self.init is not None:
            self.init(worker)


def code_of(now: Setting, setting: Setting) -> str:
    """The line to write where the loader is made, with `...` for all that stays."""
    changed = now.changed(setting)
    if not changed:
        return ""
    threads = changed.pop("threads", None)
    said = [f"{name}={value!r}" for name, value in changed.items()]
    if threads is not None:
        said.append("worker_init_fn=few_threads")
    line = f"DataLoader({', '.join(['...', *said])})"
    if threads is None:
        return line
    return (
        f"def few_threads(worker):  # and whatever your own worker_init_fn does\n"
        f"    torch.set_num_threads({threads})\n"
        f"    cv2.setNumThreads({0 if threads == 1 else threads})  # where OpenCV is used\n\n\n"
        f"{line}"
    )


def grid(now: Setting, cores: float, *, pins: bool, is_stream: bool) -> list[Setting]:
    """The settings that are predicted, the one as it is first.

    Args:
        now: the setting as it is.
        cores: that the loop's processes may use.
        pins: whether there is a device that pinned memory is copied to.
        is_stream: whether the dataset is iterable: one that nobody divides among the workers gives
            its samples as often as there are workers, so none that loads here gets any.
    """
    near = {int(cores), int(2 * cores), now.num_workers + 1, now.num_workers // 2}
    wanted = {0, 1, 2, 3, 4, 6, 8, 12, 16, now.num_workers}
    wanted |= {many for many in near if many <= max(_MOST_WORKERS, now.num_workers)}
    if is_stream and not now.num_workers:
        wanted = {0}
    found = [now]
    for many in sorted(wanted):
        base = replace(now, num_workers=many, threads=now.threads if many else None)
        depths = {base.prefetch_factor or _PREFETCH, _PREFETCH, _DEEPER} if many else {None}
        found += [
            replace(base, prefetch_factor=depth).normal()
            for depth in sorted(depths, key=lambda one: one or 0)
        ]
    deeper = [one for one in found if one.num_workers == now.num_workers and now.num_workers]
    found += [replace(one, persistent_workers=True) for one in found if one.num_workers]
    if HAS_IN_ORDER:
        found += [replace(one, in_order=False) for one in deeper]
    if pins:
        found += [replace(one, pin_memory=True) for one in deeper]
    return list(dict.fromkeys(found))


def given_settings(
    now: Setting, given: Iterable[Mapping[str, Any]] | None, whole: Iterable[Setting]
) -> list[Setting]:
    """The settings to look at, the one as it is first.

    Args:
        now: the setting as it is.
        given: arguments of a DataLoader, for each setting; what it does not name stays as it is.
        whole: those that are looked at where none are given.

    Raises:
        ArgumentError: something else, or an argument that is no setting.
    """
    if given is None:
        return list(whole)
    return list(dict.fromkeys([now, *_each(now, given)]))


def _each(now: Setting, given: Iterable[Mapping[str, Any]]) -> Iterator[Setting]:
    names = [field.name for field in fields(Setting)]
    if isinstance(given, (str, dict)):
        given = [given]
    for one in given:
        if not isinstance(one, dict) or not one.keys() <= set(names):
            raise ArgumentError(
                f"settings: {one!r:.80} is none: give dictionaries of a DataLoader's arguments, "
                f"of {', '.join(names)}"
            )
        wrong = [name for name, value in one.items() if not _can_be(name, value)]
        if wrong:
            raise ArgumentError(f"settings: {wrong[0]}={one[wrong[0]]!r:.40} is no value for it")
        if "num_workers" not in one or one["num_workers"]:
            yield replace(now, **one).normal()
        else:
            yield replace(now, **{"prefetch_factor": None, **one}).normal()


def _can_be(name: str, value: Any) -> bool:
    if name in ("num_workers", "prefetch_factor", "threads"):
        least = 0 if name == "num_workers" else 1
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return (value is None and name != "num_workers") or (is_whole and value >= least)
    if name == "multiprocessing_context":
        return value is None or value in torch.multiprocessing.get_all_start_methods()
    return isinstance(value, bool)
