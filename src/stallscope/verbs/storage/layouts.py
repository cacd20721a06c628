"""`ss.layouts`: the user's own samples in other layouts, with their own decode and transforms.

The files of some samples are read as the dataset opens them, written into a temporary folder in
each layout, and read back by its library, one sample after the other in a worker process. The time
that the dataset takes to make a sample from bytes in memory is measured once: it is the same
whichever container the bytes came from.
"""

from __future__ import annotations

import pickle
import random
import re
import shutil
import tempfile
import time
from dataclasses import replace
from itertools import count, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.apart import apart
from stallscope.bench.comparison import of_samples
from stallscope.bench.measurement import Measurement, memory_limit
from stallscope.errors import UnsupportedError
from stallscope.files import workspace
from stallscope.hooks.find_ops import own_attributes
from stallscope.isolation import isolated
from stallscope.loops.cached_loaders import check_plain, is_stream, packed
from stallscope.loops.devices import device_of
from stallscope.loops.training_loop import TimedLoop, check_whole, started
from stallscope.machine import require_single_rank, usable_cores
from stallscope.targets import target as targets
from stallscope.targets.object_graph import children, walk
from stallscope.units import BUDGET_S, said_by
from stallscope.verbs.storage import containers
from stallscope.verbs.storage.containers import KINDS, Container, PlainFiles, WebDatasetShards
from stallscope.verbs.storage.layout_result import MAKES, READS, WRITTEN, LayoutConditions, Layouts
from stallscope.verbs.storage.reads import COLD, REALLY_COLD, WARM, drop, resident_share
from stallscope.verbs.storage.storage import demand_of, record_briefly

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from stallscope.targets.target import Target
    from stallscope.verbs.storage.containers import RawSample


_DISK_SHARE: Final = 0.05
"""Share of the free disk for the files of the samples: nine layouts of them are written."""
_CAPTURE_SHARE: Final = 0.05
"""Share of the budget for reading the files of more than `_ENOUGH` samples: writing them takes
three times as long."""
_MAKE_SHARE: Final = 0.2
"""Share of the time left for making samples."""
_ENOUGH: Final = 64
"""Samples that suffice where reading their files takes long."""
_STARTS: Final = 8
"""Worker processes among which the samples are divided, at least: large images cost one up to twice
what they cost another."""
_NARROW: Final = 0.06
"""Half-width of the effect of smaller images that is narrow enough."""
_SENT: Final = 8
"""Samples whose times a worker sends at once."""
_FEWEST: Final = 16
"""Samples below which nothing is compared."""
_RESIZES: Final = re.compile(r"resize|crop|rescale", re.IGNORECASE)


def layouts(  # noqa: PLR0913 - the public signature
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    samples: int = 256,
    budget_s: float = BUDGET_S,
    folder: str | os.PathLike[str] | None = None,
) -> Layouts:
    """Compare the data as files, as tar shards, LMDB and HDF5, and with images made smaller.

    Reads the files of some samples as the dataset opens them, writes them into a temporary folder
    in every layout whose library is installed, and times reading each sample in a worker process,
    shuffled and cold, and the dataset's own decode and transforms. The folder is deleted
    afterwards; the user's files are only read. If an exception or Ctrl-C ends the call, its
    attribute `layouts` holds what was measured before.

    Args:
        target: a DataLoader over a dataset with an index whose samples open files of their own, a
            `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default. Without one, the demand is unknown.
        device: where batches are moved before `step`; the target's by default.
        samples: number of samples that are written, at most.
        budget_s: time limit, seconds; the batch that is under way then is finished. The call ends
            earlier where no answer is open any more.
        folder: where the temporary folder is made, such as the data's disk; by default the system's
            folder for temporary files.

    Raises:
        ArgumentError: `samples` or `budget_s` is not a usable number.
        TargetError: the target cannot be iterated.
        UnsupportedError: the target is not one DataLoader with an index that torch's own code
            iterates, no sample opens a file of its own, or this process is one of several ranks.
        WorkspaceError: the temporary folder cannot be made.
        NoBatchError: a batch did not come in time.
    """
    measurement = Measurement("layouts", budget_s)
    check_whole("samples", samples, _FEWEST)
    require_single_rank()
    resolved = targets.target(target, step=step, device=device)
    check_plain(resolved, "its samples cannot be made from other files")
    loader = resolved.loaders[0]
    if is_stream(loader):
        raise UnsupportedError(
            f"a {type(loader.dataset).__name__} is a stream, which cannot be asked for a sample: "
            "ss.layouts needs a dataset with an index over files; ss.storage measures any"
        )
    search = LayoutSearch(replace(resolved, loader=loader), samples, measurement)
    with (
        workspace(None if folder is None else Path(folder)) as place,
        measurement.of(resolved.name),
    ):
        measurement.result = lambda: search.result() if search.reads else None
        search.run(place)
        return search.result()


class LayoutSearch:
    """One comparison of layouts; the target's loader is a plain one with an index."""

    def __init__(self, target: Target, samples: int, measurement: Measurement) -> None:
        self._target, self._measurement = target, measurement
        self._most = samples
        self._dataset_samples = len(target.loader.dataset)  # type: ignore[attr-defined]  # a plain DataLoader
        self._raws: list[RawSample] = []
        self._shrunk: list[list[bytes]] | None = None
        self._containers: dict[int, Container] = {}
        """Containers that were written, by the number of their layout."""
        self._written: list[dict[str, Any]] = []
        """Rows of `WRITTEN`."""
        self._makes: list[tuple[bool, int, float, int]] = []
        """Rows of `MAKES`."""
        self.reads: list[tuple[str, int, int, float]] = []
        """Rows of `READS`."""
        self._wanted_per_s: float | None = None
        self._pixels: int | None = None

    def run(self, place: Path) -> None:
        """Read the files, write them into `place` in each layout, and time reading them."""
        run = record_briefly(self._target, self._measurement.left_s / 2)
        self._wanted_per_s = apart(lambda: demand_of(run))["wanted_per_s"]
        with isolated(replace(self._target, step=None)) as target:
            loader = target.loader
            self._raws = self._captured(loader, place)
            self._write_all(loader, place)
            self._time_makes(loader)
            self._time_reads(loader)

    # ---- the files of the samples -----------------------------------------------------------

    def _captured(self, loader: Any, place: Path) -> list[RawSample]:
        """Return the files of some samples, sorted by index; `UnsupportedError`: there are none."""
        rng = random.Random(0)  # noqa: S311 - which samples are compared is no secret
        number = min(self._most, self._dataset_samples)
        indices = sorted(rng.sample(range(self._dataset_samples), number))
        batches = [indices[first : first + 8] for first in range(0, number, 8)]
        rng.shuffle(batches)  # if time or memory ends early, the samples are still from everywhere
        dataset = containers.RawSamples(loader.dataset)
        capturing = containers.loader_over(
            loader, dataset, batch_sampler=batches, collate_fn=packed
        )
        disk = _DISK_SHARE * shutil.disk_usage(place).free
        room = min(memory_limit(), disk)
        until_s = time.perf_counter() + _CAPTURE_SHARE * self._measurement.budget_s
        raws: list[RawSample] = []
        with self._started(capturing) as packs:
            for pack in packs:
                batch: list[RawSample] = pickle.loads(pack)  # noqa: S301 - our own worker wrote it
                raws += batch
                room -= sum(len(blob) for raw in batch for blob in raw.blobs)
                if room < 0 or (time.perf_counter() > until_s and len(raws) >= _ENOUGH):
                    break
        if not any(raw.paths for raw in raws):
            raise UnsupportedError(
                f"no sample of this {type(loader.dataset).__name__} opens a file of its own: its "
                "bytes cannot be separated (they are made, mapped, or rows of a file that stays "
                "open). ss.storage measures reading them"
            )
        return sorted((raw for raw in raws if raw.paths), key=lambda raw: raw.index)

    def _started(self, loader: Any) -> Any:
        return started(TimedLoop.of(replace(self._target, loader=loader, step=None)))

    # ---- writing ----------------------------------------------------------------------------

    def _write_all(self, loader: Any, place: Path) -> None:
        blobs = [list(raw.blobs) for raw in self._raws]
        self._write(KINDS, place, blobs)
        pixels, began_s = _image_size(loader.dataset), time.perf_counter()
        if pixels is None:
            return
        shrunk = [[containers.smaller(blob, pixels) for blob in parts] for parts in blobs]
        if shrunk != blobs:
            self._pixels, self._shrunk = pixels, shrunk
            shrink_s = time.perf_counter() - began_s
            self._write((PlainFiles, WebDatasetShards), place, shrunk, shrink_s)

    def _write(
        self,
        kinds: Sequence[type[Container]],
        place: Path,
        blobs: list[list[bytes]],
        shrink_s: float | None = None,
    ) -> None:
        """Write layouts; `shrink_s`: seconds that making images smaller took."""
        suffixes = tuple(Path(path).suffix for path in self._raws[0].paths)
        for kind in kinds:
            container = kind(Path(tempfile.mkdtemp(dir=place)), suffixes)
            number, why = len(self._written), containers.missing(kind)
            try:
                write_s = 0.0 if why else container.write(blobs)
            except Exception as error:  # noqa: BLE001 - of a library
                why = f"{type(error).__name__}: {said_by(error):.160}"
            if why and any(row["kind"] == kind.name and row["why_not"] for row in self._written):
                continue
            resized = shrink_s is not None
            row = {"layout": number, "kind": kind.name, "resized": resized, "why_not": why}
            if not why:
                self._containers[number] = container
                row |= {
                    "bytes": sum(path.stat().st_size for path in container.files()),
                    "convert_s": (write_s + (shrink_s or 0.0)) * self._dataset_samples / len(blobs),
                    "random_access": kind.is_random,
                    "shuffle_share": containers.shuffle_share(kind, self._dataset_samples),
                }
            self._written.append(row)

    # ---- timing -----------------------------------------------------------------------------

    def _time_makes(self, loader: Any) -> None:
        """Time making samples from bytes in memory, until the effect of smaller images is known."""
        self._measurement.now("making samples")
        order, each = cycle(self._shuffled()), max(len(self._raws) // _STARTS, _SENT)
        until_s = self._measurement.used_s + _MAKE_SHARE * self._measurement.left_s
        for start in count():
            samples = [
                (number, self._raws[number], self._shrunk[number] if self._shrunk else None)
                for number in islice(order, each)
            ]
            timing = containers.MakeTimes(loader.dataset, samples)
            self._makes += [(*row, start) for row in self._rows(loader, timing, until_s)]
            if self._measurement.used_s > until_s or (start + 1 >= _STARTS and self._is_clear()):
                return

    def _is_clear(self) -> bool:
        _, _, whole_s, starts = zip(*(row for row in self._makes if not row[0]), strict=True)
        small_s = [made_s for resized, _, made_s, _ in self._makes if resized]
        return not small_s or of_samples(whole_s, small_s, starts).half_width <= _NARROW

    def _shuffled(self) -> list[int]:
        number = len(self._raws)
        return random.Random(0).sample(range(number), number)  # noqa: S311 - no secret

    def _time_reads(self, loader: Any) -> None:
        """Time reading each layout as a first epoch would: cold, where nothing stays in memory."""
        parts = [len(raw.paths) for raw in self._raws]
        # Cold reads of some layouts cannot be compared with warm ones of others
        state = COLD if all(map(_is_dropped, self._containers.values())) else WARM
        if state == WARM:
            self._measurement.note(
                "what was written stayed in the page cache (a temporary folder in memory?), so no "
                "read was cold: give another folder"
            )
        for place, (number, container) in enumerate(self._containers.items()):
            smaller = ", smaller" * self._written[number]["resized"]
            self._measurement.now(f"{container.name}{smaller}, {state}")
            timing = containers.ReadTimes(container, parts, self._shuffled())
            used_s, left_s = self._measurement.used_s, self._measurement.left_s
            until_s = used_s + left_s / (len(self._containers) - place)
            # The first samples of a stream pay for those in its shuffle buffer
            least = min(_FEWEST, len(parts)) if container.is_random else len(parts) // 2
            rows = [(state, number, *row) for row in self._rows(loader, timing, until_s, least)]
            if len(rows) >= least:
                self.reads += rows

    def _rows(self, loader: Any, timing: Any, until_s: float, least: int = 0) -> Iterator[Any]:
        """Yield the timings of a new worker until a time of the call, seconds; `least` anyway."""
        timed = containers.loader_over(
            loader, timing, batch_size=_SENT, collate_fn=list, num_workers=1
        )
        with self._started(timed) as batches:
            for number, rows in enumerate(batches, 1):
                yield from rows
                if self._measurement.used_s > until_s and number * _SENT >= least:
                    return

    # ---- the result -------------------------------------------------------------------------

    def result(self) -> Layouts:
        """Return what has been measured so far."""
        raw_bytes = sum(len(blob) for raw in self._raws for blob in raw.blobs)
        return Layouts(
            pl.DataFrame(self.reads, READS, orient="row"),
            pl.DataFrame(self._makes, MAKES, orient="row"),
            pl.DataFrame(self._written, WRITTEN),
            LayoutConditions.of(
                self._target,
                device=device_of(self._target).name,
                budget_s=self._measurement.budget_s,
                took_s=self._measurement.used_s,
                wanted_per_s=self._wanted_per_s,
                makers=min(max(self._target.num_workers, 1), usable_cores()),
                samples=len(self._raws),
                dataset_samples=self._dataset_samples,
                sample_bytes=raw_bytes / max(len(self._raws), 1),
                image_pixels=self._pixels,
            ),
            (*self._target.notes, *self._measurement.notes),
        )


def _is_dropped(container: Container) -> bool:
    """Drop a layout from the page cache; returns whether it is gone from there."""
    for path in container.files():
        with path.open("rb") as file:
            drop(file.fileno())
        if (resident_share(str(path)) or 0.0) > REALLY_COLD:
            return False
    return True


def _image_size(dataset: Any) -> int | None:
    """Return the size in pixels of the first resize or crop among the transforms; None: none."""
    for holder in walk(dataset, children):
        if _RESIZES.search(type(holder).__name__):
            held = own_attributes(holder)
            size = held.get("size") or (held.get("height"), held.get("width"))
            sides = [size] if isinstance(size, int) else list(size or ())
            if sides and all(isinstance(side, int) and side > 0 for side in sides):
                return max(sides)
    return None
