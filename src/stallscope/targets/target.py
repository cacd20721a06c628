"""Targets: a loader, a folder or another argument of the user, in a form that can be measured.

Every verb takes a target first, so users make their first mistakes here. Each error is one sentence
that names the argument and the remedy. A loader stays as it is: nothing here builds its dataset
again, iterates it or pickles it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset

from stallscope.errors import ArgumentError, TargetError
from stallscope.files import is_address
from stallscope.hooks.device_time import SimulatedDevice
from stallscope.hooks.find_ops import own_attributes
from stallscope.hooks.loader_access import value_of
from stallscope.targets import images as folder
from stallscope.targets.loaders import count_workers, find_loaders, length_of
from stallscope.targets.sample import sample_loader
from stallscope.units import TARGETS, printable, said_by

Step = Callable[[Any], object]

IN_NOTEBOOKS: Final = "my_target:target"
"""Target of the copied notebooks; results omit this name, which all copies share."""
_FORMS: Final = f"{TARGETS}, 'package.module:factory', or a loader"
_NO_LOADERS: Final = (str, bytes, os.PathLike, Mapping, torch.Tensor, torch.nn.Module, type)
"""Types that may be iterable but do not yield batches."""


_USUAL: Final[dict[str, Any]] = {
    "pinned_bytes_per_s": 24e9,
    "pageable_bytes_per_s": 6e9,
    "memory_bytes": 16 << 30,
}
"""Simulated GPU behind 16 lanes of PCI Express 4; pageable memory is copied twice."""


@dataclass(frozen=True)
class SimulatedStep:
    """Training step that is only a timer, for machines without the device.

    The timer leaves the CPU to the workers, as a GPU would. Every result notes the simulation.
    """

    seconds: float
    """Time of one batch."""
    device: SimulatedDevice | None = None
    """Device that works behind the host; None: the host waits until the batch is used."""
    synchronises: bool = False
    """True if each step ends with a wait for the device, as a step that prints its loss does."""

    def __call__(self, batch: Any) -> None:  # noqa: ARG002 - every step takes a batch
        """Wait, or let the device wait."""
        if self.device is None:
            time.sleep(self.seconds)
            return
        self.device.launch(self.seconds)
        if self.synchronises:
            self.device.synchronize()


def simulated_step(seconds: float, *, runs_behind: bool = False) -> SimulatedStep:
    """Return a step that is only a timer; every result notes the simulation.

    Args:
        seconds: time of one batch.
        runs_behind: run asynchronously, as on a GPU: the step returns at once, and the host waits
            only when four more steps are queued. Such a device has a memory of its own, and batches
            are copied to it at the speed of a usual bus.

    Raises:
        ArgumentError: `seconds` is negative, infinite or not a number.
    """
    if not (isinstance(seconds, Real) and 0 <= seconds < float("inf")):  # false for nan, too
        raise ArgumentError(f"simulated_step({seconds!r}): give a number of seconds, 0 or more")
    return SimulatedStep(float(seconds), SimulatedDevice(**_USUAL) if runs_behind else None)


@dataclass(frozen=True)
class Target:
    """Loader, with the training step and the device, if there are any."""

    loader: Iterable[Any] = field(repr=False)
    """`DataLoader`, or any other iterable of batches."""
    step: Step | None = None
    """Function of a batch, as in the training loop; None: only the loader is measured."""
    device: str | torch.device | None = None
    """Device to which each batch is moved before `step`; None: batches stay where they are."""
    name: str = "loader"
    """Name in titles."""
    notes: tuple[str, ...] = ()
    """Caveats of the results, in sentences."""

    @cached_property
    def loaders(self) -> list[Any]:
        """`DataLoader` itself, or the loaders inside another iterable of batches."""
        return find_loaders(self.loader)

    @cached_property
    def num_workers(self) -> int:
        """Worker processes of all its loaders, including a loader inside its dataset."""
        return count_workers(self.loader)

    @property
    def loads_here(self) -> bool:
        """True if DataLoaders make its batches in this process."""
        return bool(self.loaders) and not self.num_workers

    @property
    def batch_size(self) -> int | None:
        """Samples per batch, of the loader or its sampler; None: unknown."""
        if not self.loaders:
            return None
        loader = self.loaders[0]  # fastai's loader has no such attributes
        samplers = (value_of(loader, name) for name in ("batch_sampler", "sampler"))
        sampler = next((each for each in samplers if each is not None), None)
        size = value_of(loader, "batch_size") or value_of(sampler, "batch_size")
        return size if isinstance(size, int) else None

    @property
    def simulated_step_s(self) -> float | None:
        """Duration of its simulated step, seconds; None: it is not simulated."""
        return self.step.seconds if isinstance(self.step, SimulatedStep) else None


def target(
    spec: object, *, step: Step | None = None, device: str | torch.device | None = None
) -> Target:
    """Return the target for a loader, a path, an address or a name.

    Args:
        spec: "sample" (photographs that come with stallscope), a folder of images, tar shards
            (a name, a range `x-{000..009}.tar`, a glob, a folder of them), an address with images
            below it that fsspec can read (`s3://bucket/photos`, `http://...`),
            "package.module:factory", a `DataLoader`, any other iterable of batches, or a target.
            A factory is called without arguments and may return a loader, a target or a pair
            (loader, step).
        step: function of one batch; replaces the target's own step.
        device: destination of each batch before `step`; replaces the target's own device.

    Raises:
        TargetError: `spec` cannot be measured; the message names the remedy.
    """
    if step is not None:
        _check_step(step)
    if device is not None:
        _check_device(device)
    try:
        loaded = _from_path(os.fspath(spec)) if isinstance(spec, os.PathLike) else _find(spec)
    except PermissionError as error:
        raise TargetError(f"{error.filename!r} cannot be read") from error
    except OSError as error:  # a name that is too long, too many links
        raise TargetError(f"{printable(str(spec))!r}: {error.strerror}: check the path") from error
    return replace(
        loaded,
        step=loaded.step if step is None else step,
        device=loaded.device if device is None else device,
    )


def _check_step(step: Any) -> None:
    if not callable(step):
        raise TargetError(f"step is a {_type(step)}: give a function that uses one batch")
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(kind(part) for kind in kinds for part in (step, step.__call__)):
        raise TargetError(
            f"step is {_type(step)} {getattr(step, '__name__', '')!r} with await or yield, so that "
            "calling it runs nothing: give a plain function that uses one batch"
        )


def _check_device(device: str | torch.device) -> None:
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise TargetError(f"device={device!r} is not a torch device ('cpu', 'cuda:0')") from error
    optional: dict[str, Any] = {"cuda": torch.cuda, "mps": torch.backends.mps}
    if kind in optional and not optional[kind].is_available():
        raise TargetError(
            f"device={device!r}: torch finds no such device: leave it out, or give 'cpu'"
        )


def _find(spec: object) -> Target:
    if not isinstance(spec, str):
        return _from_object(spec, "the target")
    if spec == "sample":
        note = "stallscope's sample data and pipeline, not yours"
        return Target(sample_loader(), name="sample", notes=(note,))
    if names_code(spec):
        with _importable_here():
            value = _named(spec)
            if callable(value) and not _is_loader(value):
                value = _called(value, spec)
        loaded = _from_object(value, f"the value of {spec!r}")
        return loaded if spec == IN_NOTEBOOKS else replace(loaded, name=spec)
    if is_address(spec):
        return _ours(folder.remote_loader(spec), spec)
    return _from_path(spec)


def _from_path(text: str) -> Target:
    path = Path(os.path.expanduser(text)).absolute()  # noqa: PTH111 - pathlib raises for ~ of an unknown user
    if text and path.is_dir():
        return _from_folder(path, text)
    if path.is_file() or (folder.is_shards(text) and not path.exists()):
        return _ours(folder.shards_loader(folder.find_shards(path)), text)
    if set(text) & set("/\\") or path.suffix:
        if path.exists():
            raise TargetError(f"{text!r} is neither a file nor a folder. A target is {_FORMS}")
        raise TargetError(
            f"there is no {text!r} (looked in {str(Path.cwd())!r}): check the path. "
            f"A target is {_FORMS}"
        )
    hint = "; did you mean 'sample'?" * bool(difflib.get_close_matches(text.lower(), ["sample"]))
    raise TargetError(f"{text!r} is not a target{hint or '.'} A target is {_FORMS}")


def _from_folder(path: Path, text: str) -> Target:
    images = folder.find_images(path)
    if images:
        return _ours(
            folder.image_loader(folder.ImageFiles(images, folder.training_pipeline())), text
        )
    shards = (file for file in path.iterdir() if folder.is_shards(file.name))
    archives = sorted(str(file) for file in shards if folder.is_readable(file))
    if not archives:
        raise folder.no_images(path)
    return _ours(folder.shards_loader(archives), text)


def _ours(loader: DataLoader[Any], text: str) -> Target:
    return Target(loader, name=f"{text} ({folder.OURS})", notes=(folder.OURS,))


def _from_object(value: Any, what: str) -> Target:
    """Return a live object as a target; `what` names it in errors."""
    if isinstance(value, Target):
        return value
    if isinstance(value, tuple) and (pair := _pair(value, what)):
        return replace(_from_object(pair[0], what), step=pair[1])
    if _is_dataset(value):
        raise TargetError(
            f"{what} is a dataset ({_type(value)}): give the loader that makes its batches, "
            "DataLoader(dataset, batch_size=...)"
        )
    if not _is_loader(value):
        raise TargetError(f"{what} is a {_type(value)}, which yields no batches: give {_FORMS}")
    _check_filled(value, what)
    once = ("an iterator: its batches can be measured once",) if isinstance(value, Iterator) else ()
    return Target(value, name=_name(value), notes=once)


def _pair(value: tuple[Any, ...], what: str) -> tuple[Any, Step | None] | None:
    """Return the tuple if it is (loader, step); None: it is a tuple of batches."""
    if len(value) == 2 and (callable(value[1]) or value[1] is None):  # noqa: PLR2004 - a pair
        return value
    if any(isinstance(part, DataLoader) or _is_dataset(part) for part in value):
        types = ", ".join(map(_type, value))
        raise TargetError(f"{what} is a tuple ({types}): give one loader, or (loader, step)")
    return None


def _is_loader(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, _NO_LOADERS)


def _is_dataset(value: Any) -> bool:
    """Recognise a dataset of torch or of Hugging Face.

    A dataset that wraps a loader does not count: it yields batches (detectron2's, webdataset's).
    """
    names = {cls.__name__ for cls in type(value).__mro__}
    stages = value_of(value, "pipeline") or ()  # webdataset: the first stage reads
    parts = [*(stages if isinstance(stages, list) else ())]
    if isinstance(value, IterableDataset):
        parts += own_attributes(value).values()
    holds_loader = any(isinstance(part, DataLoader) for part in parts)
    return bool({"Dataset", "IterableDataset"} & names) and not holds_loader


def _check_filled(loader: Any, what: str) -> None:
    dataset = value_of(loader, "dataset") if isinstance(loader, DataLoader) else None
    if dataset is not None and length_of(dataset) == 0:
        raise TargetError(f"the dataset ({_type(dataset)}) of {what} is empty: its length is 0")
    if isinstance(dataset, IterableDataset):
        return  # `len` of such a loader has a side effect: a warning during iteration
    if length_of(loader) == 0:
        raise TargetError(
            f"{what} ({_type(loader)}) has no batch: its length is 0; with drop_last, a dataset "
            "needs at least one whole batch"
        )


def _type(value: Any) -> str:
    return type(value).__name__


def _name(loader: Any) -> str:
    dataset = value_of(loader, "dataset")
    return _type(loader) if dataset is None else f"{_type(loader)} over {_type(dataset)}"


# `package.module:factory`, a loader in the user's own code: the first thing that many users type.
# So each failure has its own sentence, and an error of their code is never a wrong name.


def is_factory(text: str) -> bool:
    r"""Recognise the form `package.module:factory`; `C:\data` and `C:/data` are paths."""
    module, colon, attribute = text.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def names_code(text: str) -> bool:
    """Return True for code to import and call, False for a file with such a name."""
    return is_factory(text) and not Path(text).exists()


def _named(text: str) -> Any:
    """Import the module and return what the attribute path names, without calling it."""
    name, _, path = text.partition(":")
    value: Any = _import(name)
    for attribute in path.split("."):
        if not hasattr(value, attribute):
            matches = difflib.get_close_matches(attribute, dir(value), n=1)
            hint = f"; did you mean {matches[0]!r}?" if matches else ""
            holder = getattr(value, "__name__", None)
            owner = f"{holder!r}" if holder else f"the {_type(value)}"
            raise TargetError(f"{text!r}: {owner} has no {attribute!r}{hint}")
        value = getattr(value, attribute)
    return value


def _called(factory: Any, text: str) -> Any:
    try:
        return factory()
    except (Exception, SystemExit) as error:  # SystemExit: argparse, in a notebook
        raise TargetError(f"{text!r}, called without arguments, raised {_raised(error)}") from error


@contextmanager
def _importable_here() -> Iterator[None]:
    """Make modules of the current folder importable inside the block, as with `python -m`."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    importlib.invalidate_caches()  # a notebook cell may have written the file a second ago
    try:
        yield
    finally:
        with suppress(ValueError):  # entries that the user's module added stay
            sys.path.remove(here)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            hint = f"; write {name[:-3]!r}, without .py" if name.endswith(".py") else ""
            raise TargetError(
                f"no module {error.name!r}: looked in {str(Path.cwd())!r} and in the installed "
                f"packages{hint}. Change to the folder that holds it, or install it"
            ) from error
        raise TargetError(f"importing your module {name!r} raised {_raised(error)}") from error


def _raised(error: BaseException) -> str:
    message = said_by(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    ours = (__file__, importlib.__file__)
    own = [frame for frame in frames if not frame.filename.startswith(("<frozen ", *ours))]
    return f"{text} ({own[-1].filename}, line {own[-1].lineno})" if own else text
