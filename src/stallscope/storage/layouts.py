"""`ss.layouts`: the user's own samples in other layouts, read in turn, their decode behind them.

The files of some samples are kept as the dataset opens them, written into a temporary folder in
each layout, and read back by its library, one sample after the other in a worker process. What the
dataset makes of them is timed apart, from bytes in memory (see `storage.serving`): that takes as
long whichever container they came from, so layouts are told from each other by what differs.
"""

from __future__ import annotations

import os
import pickle
import random
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from PIL import Image

from stallscope.apart import apart
from stallscope.bench.comparison import of_samples
from stallscope.bench.measurement import Measurement
from stallscope.errors import StallscopeError, UnsupportedError
from stallscope.files import workspace
from stallscope.hooks.find_ops import own_attributes
from stallscope.isolation import isolated
from stallscope.loops.cached_loaders import check_plain, is_stream
from stallscope.loops.devices import device_of
from stallscope.loops.timed_loop import TimedLoop, started
from stallscope.loops.training_loop import check_whole
from stallscope.machine import (
    machine,
    memory_available_bytes,
    require_single_rank,
    usable_cores,
)
from stallscope.storage.containers import (
    KINDS,
    Container,
    PlainFiles,
    WebTar,
    missing,
    shuffle_share,
)
from stallscope.storage.layout_result import (
    IN_ORDER,
    MAKES,
    READS,
    SHUFFLED,
    WRITTEN,
    LayoutConditions,
    Layouts,
)
from stallscope.storage.page_cache import REALLY_COLD, drop, opened, resident_share
from stallscope.storage.reads import COLD, WARM
from stallscope.storage.serving import (
    QUALITY,
    SHUFFLE_BUFFER,
    KeptFiles,
    MakeTimes,
    RawSample,
    ReadTimes,
    as_pickle,
    loader_over,
    smaller,
)
from stallscope.storage.storage import asked, record_briefly
from stallscope.targets import target as targets
from stallscope.targets.object_graph import children, walk
from stallscope.units import BUDGET_S, count, said_by, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.targets.target import Target


_MEMORY_SHARE: Final = 0.2
"""Of the memory that is left, for the files of the samples."""
_ROOM_SHARE: Final = 0.5
"""Of the disk that is free, for all layouts."""
_CAPTURE_SHARE: Final = 0.05
"""Of the budget, at most, for keeping the files: writing them takes three times as long. Not before
there are enough for ..."""
_FEWEST_ROUNDS: Final = 3
"""... so many rounds of the workers."""
_MAKE_SHARE: Final = 0.3
"""Of the time left, at most, for making samples ..."""
_READ_SHARE: Final = 0.6
"""... and for reading all layouts in one order and state."""
_NARROW: Final = 0.03
"""A gain of smaller images whose interval reaches no farther is measured well enough, ..."""
_ENOUGH: Final = 64
"""... from so many samples on."""
_SENT: Final = 8
"""Times of samples that a worker sends at once."""
_WAYS: Final = ((SHUFFLED, COLD), (SHUFFLED, WARM), (IN_ORDER, COLD), (IN_ORDER, WARM))
"""The answer is made of the first one that can be read; of the others something is known."""
_FEWEST: Final = 16
"""Samples below which nothing is compared."""
_COMPARED: Final = 16
"""Files whose smaller images are compared with the original ones."""
_WHITE: Final = 255
_PIECE_BYTES: Final = 1 << 20
_SIZED: Final = re.compile(r"resize|crop|rescale", re.IGNORECASE)


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

    Keeps the files of some samples as the dataset opens them, writes them in every layout whose
    library is installed into a temporary folder, and times reading each sample in a worker process,
    in order and shuffled, cold and warm, and the dataset's own decode and transforms of it. The
    folder is gone afterwards; the user's files are only read. The attribute `layouts` of what ends
    it before its time, Ctrl-C too, holds what was measured before.

    Args:
        target: a DataLoader over a dataset with an index whose samples open files of their own, a
            `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default. Without one nobody knows what a loop needs.
        device: where batches are moved before `step`; the target's by default.
        samples: of the dataset, at most, that are written.
        budget_s: it is over after this time, seconds, and the batch that is under way then. It
            stops earlier where nothing is open any more.
        folder: where the temporary folder is made, such as the disk that the data lies on; by
            default among the system's temporary ones.

    Raises:
        ArgumentError: `samples` or `budget_s` is no number that can be used.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: there is not one DataLoader with an index in it that torch's own code
            iterates, or no sample opens a file of its own; more than one rank.
        WorkspaceError: no temporary folder can be made there.
        StallscopeError: there is no room for the layouts.
        NoBatchError: a batch did not come within the budget and a grace.
    """
    measurement = Measurement("layouts", budget_s)
    check_whole("samples", samples, _FEWEST)
    require_single_rank()
    found = targets.target(target, step=step, device=device)
    check_plain(found, "its samples cannot be made from other files")
    loader = found.loaders[0]
    if is_stream(loader):
        raise UnsupportedError(
            f"a {type(loader.dataset).__name__} is a stream, which cannot be asked for a sample: "
            "ss.layouts needs a dataset with an index over files; ss.storage measures any"
        )
    search = LayoutSearch(replace(found, loader=loader), samples, measurement)
    with (
        workspace(None if folder is None else Path(folder)) as place,
        measurement.of(found.name),
    ):
        measurement.result = search.known
        search.run(place)
        return search.result()


@dataclass(frozen=True)
class _Layout:
    """One layout of the samples."""

    container: Container
    resized: bool
    bytes: int
    convert_s: float


class LayoutSearch:
    """One comparison of layouts.

    Args:
        target: what the user points at, its loader a plain one with an index.
        samples: to write, at most.
        measurement: whose budget it is.
    """

    def __init__(self, target: Target, samples: int, measurement: Measurement) -> None:
        self._target, self._measurement = target, measurement
        self._most = samples
        self._dataset_samples = len(target.loader.dataset)  # type: ignore[attr-defined]  # a plain DataLoader
        self._workers = max(target.num_workers, 1)
        self._batch_size = target.batch_size or 1
        self._raws: list[RawSample] = []
        self._wanted_per_s: float | None = None
        self._notes: list[str] = []
        self._makes: list[tuple[int, float, float | None]] = []
        self._reads: list[tuple[str, str, int, int, float]] = []
        self._shrunk: list[list[bytes]] | None = None
        self._layouts: list[_Layout] = []
        self._why_not: list[tuple[str, str]] = []
        self._pixels: int | None = None
        self._difference: float | None = None
        self._stayed = 0.0

    def run(self, place: Path) -> None:
        """Keep the files, write them, read them."""
        run = record_briefly(self._target, self._measurement.left_s / 2)
        told = apart(lambda: asked(run))
        self._wanted_per_s = told["wanted_per_s"]
        with isolated(replace(self._target, step=None)) as target:
            loader = target.loader
            self._raws = self._captured(loader)
            self._write_all(loader, place, self._raws)
            self._measure_all(loader)
        if self._stayed:
            self._notes.append(
                "what was written could not be taken out of the page cache (a temporary folder in "
                "memory?), so nothing was read cold: give another folder"
            )

    # ---- the files of the samples -----------------------------------------------------------

    def _captured(self, loader: Any) -> list[RawSample]:
        """The files of some samples, in the order of the dataset.

        Raises:
            UnsupportedError: no sample opens a file of its own.
        """
        rng = random.Random(0)  # noqa: S311 - which samples are compared is no secret
        many = min(self._most, self._dataset_samples)
        wanted = sorted(rng.sample(range(self._dataset_samples), many))
        batches = [wanted[at : at + 8] for at in range(0, many, 8)]
        rng.shuffle(batches)  # where time or room is over, what is kept is still from everywhere
        made = loader_over(
            loader, KeptFiles(loader.dataset), batch_sampler=batches, collate_fn=as_pickle
        )
        room = _MEMORY_SHARE * memory_available_bytes()
        until_s = time.perf_counter() + _CAPTURE_SHARE * self._measurement.budget_s
        fewest = max(_FEWEST_ROUNDS * self._workers * self._batch_size, _FEWEST)
        kept: list[RawSample] = []
        with started(TimedLoop.of(replace(self._target, loader=made, step=None))) as found:
            for part in found:
                raws: list[RawSample] = pickle.loads(part)  # noqa: S301 - our own worker wrote it
                kept += raws
                room -= sum(len(blob) for raw in raws for blob in raw.blobs)
                if room < 0 or (time.perf_counter() > until_s and len(kept) >= fewest):
                    break
        if not any(raw.paths for raw in kept):
            raise UnsupportedError(
                f"no sample of this {type(loader.dataset).__name__} opens a file of its own: its "
                "bytes cannot be separated (they are made, mapped, or rows of a file that stays "
                "open). ss.storage measures what reading them takes"
            )
        if any(raw.is_same is False for raw in kept):
            self._notes.append(
                "a sample that is made twice is not the same (it draws from a generator that the "
                "kit does not know, say), so it was not checked that layouts give the same samples"
            )
        return sorted((raw for raw in kept if raw.paths), key=lambda raw: raw.index)

    # ---- writing ----------------------------------------------------------------------------

    def _write_all(self, loader: Any, place: Path, raws: list[RawSample]) -> None:
        blobs = [list(raw.blobs) for raw in raws]
        self._check_room(place, sum(len(blob) for parts in blobs for blob in parts))
        suffixes = tuple(Path(path).suffix for path in raws[0].paths)
        self._write(KINDS, place, blobs, suffixes)
        pixels = _size_used(loader.dataset)
        began_s = time.perf_counter()
        shrunk = pixels and [[smaller(blob, pixels) for blob in parts] for parts in blobs]
        if shrunk and any(one != other for one, other in zip(shrunk, blobs, strict=True)):
            self._pixels, self._shrunk = pixels, shrunk
            took_s = time.perf_counter() - began_s
            self._write((PlainFiles, WebTar), place, shrunk, suffixes, took_s)
            pairs = list(zip(chain(*blobs), chain(*shrunk), strict=True))[:_COMPARED]
            found = [one for pair in pairs if (one := _difference(*pair)) is not None]
            self._difference = sum(found) / len(found) if found else None

    def _check_room(self, place: Path, raw_bytes: int) -> None:
        """Make sure that there is room for everything before anything is written.

        Raises:
            StallscopeError: there is not.
        """
        needs = int(1.3 * raw_bytes * (len(KINDS) + 2)) + (32 << 20)
        free = shutil.disk_usage(place).free
        if needs > _ROOM_SHARE * free:
            raise StallscopeError(
                f"the layouts of {count(self._most, 'sample')} need about {size(needs)} in "
                f"{place.parent}, where {size(free)} is free, half of which may be used: ask for "
                "fewer samples, or give another folder"
            )

    def _write(
        self,
        kinds: tuple[type[Container], ...],
        place: Path,
        blobs: list[list[bytes]],
        suffixes: tuple[str, ...],
        before_s: float | None = None,
    ) -> None:
        scale = self._dataset_samples / len(blobs)
        for kind in kinds:
            why = missing(kind)
            if why:
                self._why_not += [(kind.name, why)] if before_s is None else []
                continue
            container = kind(tempfile.mkdtemp(dir=place), suffixes)
            try:
                took_s = container.write(blobs) + (before_s or 0.0)
            except Exception as error:  # noqa: BLE001 - of a library
                self._why_not.append((kind.name, f"{type(error).__name__}: {said_by(error):.160}"))
                continue
            much = sum(path.stat().st_size for path in container.files())
            resized = before_s is not None
            self._layouts.append(_Layout(container, resized, much, took_s * scale))

    # ---- measuring --------------------------------------------------------------------------

    def _measure_all(self, loader: Any) -> None:
        """Make samples of bytes in memory; then read each layout, first as a training would."""
        many = len(self._raws)
        shuffled = random.Random(0).sample(range(many), many)  # noqa: S311 - no secret
        self._measurement.now("making samples")
        samples = [
            (at, self._raws[at], self._shrunk[at] if self._shrunk else None) for at in shuffled
        ]
        for row in self._rows(loader, MakeTimes(loader.dataset, samples), _MAKE_SHARE):
            self._makes.append(row)
            if len(self._makes) % _FEWEST == 0 and self._is_clear():
                break
        parts = [len(raw.paths) for raw in self._raws]
        for way in _WAYS:
            order, state = way
            numbers = shuffled if order == SHUFFLED else range(many)
            if not all(self._prepared(state, one.container) for one in self._layouts):
                continue  # some read cold and others not would not be alike
            for at, one in enumerate(self._layouts):
                self._measurement.now(f"{_name(one)}, {order}, {state}")
                reading = ReadTimes(one.container, parts, numbers, shuffled=order == SHUFFLED)
                share = _READ_SHARE / (len(self._layouts) - at)
                rows = [(*way, at, *row) for row in self._rows(loader, reading, share)]
                # The first samples of a stream pay for those in its shuffle buffer
                if len(rows) >= (min(_FEWEST, many) if one.container.is_random else many // 2):
                    self._reads += rows

    def _rows(self, loader: Any, timing: Any, share: float) -> Iterator[Any]:
        """What a worker of its own times, for a share of the time that is left."""
        until_s = self._measurement.used_s + share * self._measurement.left_s
        made = loader_over(loader, timing, batch_size=_SENT, collate_fn=list, num_workers=1)
        with started(TimedLoop.of(replace(self._target, loader=made, step=None))) as batches:
            for rows in batches:
                yield from rows
                if self._measurement.used_s > until_s:
                    return

    def _is_clear(self) -> bool:
        """Whether it is known well enough what smaller images give."""
        whole = [full_s for _, full_s, _ in self._makes]
        less = [small_s for _, _, small_s in self._makes if small_s is not None]
        if len(whole) < _ENOUGH:
            return False
        return not less or of_samples(whole, less).half_width <= _NARROW

    def _prepared(self, state: str, container: Container) -> bool:
        """Put a layout into the page cache, or out of it; whether it lies there as is meant."""
        left = []
        for path in container.files():
            with opened(str(path)) as descriptor:
                if state == COLD:
                    drop(descriptor)
                else:
                    while os.read(descriptor, _PIECE_BYTES):
                        pass
            left.append(resident_share(str(path)) or 0.0)
        if state == COLD and max(left) > REALLY_COLD:
            self._stayed = max(left)
            return False
        return True

    # ---- what is known ----------------------------------------------------------------------

    def known(self) -> Layouts | None:
        """What is known when it ends before its time; None: nothing."""
        return self.result() if self._reads else None

    def result(self) -> Layouts:
        """What is known by now."""
        several = len(self._raws)
        makes = [
            (resized, number, took_s)
            for number, *both in self._makes
            for resized, took_s in zip((False, True), both, strict=True)
            if took_s is not None
        ]
        rows: list[tuple[Any, ...]] = [
            (
                *(number, one.container.name, one.resized, one.bytes, one.convert_s),
                one.container.is_random,
                shuffle_share(type(one.container), self._dataset_samples, SHUFFLE_BUFFER),
                "",
            )
            for number, one in enumerate(self._layouts)
        ]
        known = len(rows)
        for at, (name, why) in enumerate(dict(self._why_not).items()):
            rows.append((known + at, name, False, None, None, None, None, why))
        much = sum(len(blob) for raw in self._raws for blob in raw.blobs)
        return Layouts(
            pl.DataFrame(self._reads, READS, orient="row"),
            pl.DataFrame(makes, MAKES, orient="row"),
            pl.DataFrame(rows, WRITTEN, orient="row"),
            LayoutConditions(
                name=self._target.name,
                num_workers=self._target.num_workers,
                makers=min(max(self._target.num_workers, 1), usable_cores()),
                machine=machine(),
                device=device_of(self._target).name,
                simulated_step_s=self._target.simulated_step_s,
                has_step=self._target.step is not None,
                samples=several,
                dataset_samples=self._dataset_samples,
                sample_bytes=much / max(several, 1),
                wanted_per_s=self._wanted_per_s,
                image_pixels=self._pixels,
                image_quality=QUALITY if self._pixels else 0,
                pixel_difference=self._difference,
                budget_s=self._measurement.budget_s,
                took_s=self._measurement.used_s,
            ),
            (*self._target.told(), *self._measurement.notes, *self._notes),
        )


def _name(layout: _Layout) -> str:
    return f"{layout.container.name}{', smaller' * layout.resized}"


def _size_used(dataset: Any) -> int | None:
    """The size of the first resize or crop among the transforms, pixels; None: there is none."""
    for thing in walk(dataset, children):
        if _SIZED.search(type(thing).__name__):
            held = own_attributes(thing)
            found = held.get("size") or (held.get("height"), held.get("width"))
            sides = [found] if isinstance(found, int) else list(found or ())
            if sides and all(isinstance(side, int) and side > 0 for side in sides):
                return max(sides)
    return None


def _difference(blob: bytes, smaller: bytes) -> float | None:
    """Mean difference of an image's pixels to those of a smaller one; None where it is the same."""
    if blob == smaller:
        return None
    with Image.open(BytesIO(blob)) as one, Image.open(BytesIO(smaller)) as other:
        exact = one.convert("RGB").resize(other.size, Image.Resampling.LANCZOS)
        pair = [np.asarray(image, np.float32) for image in (exact, other.convert("RGB"))]
    return float(np.abs(pair[0] - pair[1]).mean() / _WHITE)
