"""`ss.load`: from the folder of a recording to its runs, one for each loader.

The folder holds a saved result, the ranks of a training, or the logs of a process that was killed
or still runs. If the user's code failed during a recording, the exception keeps its type and text.
It gets a note on its origin, and the recording as its attribute `run`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl
import psutil

from stallscope import store
from stallscope.apart import computed_apart
from stallscope.errors import RunFormatError, TargetError, add_notes
from stallscope.files import copy_objects, is_address, listing, names_at, sizes, workspace
from stallscope.hooks.event_log import MAIN, LogPages, read_log
from stallscope.hooks.recording_folder import (
    OUTER,
    LogPlace,
    ProcessNames,
    RecordingInfo,
    epoch_key,
    loader_and_epoch,
    read_lines,
)
from stallscope.model.reasons import ordinal
from stallscope.run import decode
from stallscope.run import steps as loops
from stallscope.run.loop_events import events
from stallscope.run.result import DEVICE, LOGS, STARTUP, Run, Settings
from stallscope.run.stacks import STACKS, read_stacks
from stallscope.run.steps import loaders, mark_steady
from stallscope.units import MOST_NAMED, count, printable, seconds, without_controls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stallscope.run.decode import Decoded, LostSamples

_MOST_RANKS: Final = 16
"""Ranks that are held in memory at once."""
_HEADS: Final = tuple(f"{kind}.json" for kind in store.KINDS)
_RANK: Final = re.compile(r"rank\d+")
_EVERY_S: Final = 2.0
_TIMES: Final = 5.0
"""Pause before the next load, in units of the last load's time."""
_FIRST_S: Final = 60.0
"""Time for a script until it imports torch."""


def load(path: str | Path) -> Any:
    """Read a saved result, a run whose process was killed, or all ranks of a training.

    Runs no code from the folder.

    Args:
        path: the folder that `save` wrote, or the parent of `rank0`, `rank1` and so on. It may be
            an address that fsspec can read (`s3://bucket/runs/train`), which is copied into a
            temporary folder.

    Returns:
        The saved `Run`, `Diagnosis` or other result. Orders are saved without the pipeline itself:
        they can be shown, not applied.

    Raises:
        RunFormatError: no result, a damaged result, another schema version, or a server error.
    """
    if is_address(str(path)):
        with workspace() as folder:
            try:
                _copy(str(path), folder)
                return _load(folder)
            except RunFormatError as error:  # the user does not know the copy
                raise RunFormatError(str(error).replace(str(folder), str(path))) from error
    result = _load(Path(path))
    if isinstance(result, Run):
        vars(result)["_folder"] = Path(path)
    return result


def _load(folder: Path) -> Any:
    ranks = _ranks_in(folder) if store.kind_in(folder) is None else []
    return _all_ranks(ranks) if ranks else _read(folder)


def _ranks_in(folder: Path) -> list[Path]:
    """Return the folders of ranks, `rank0` first, without similar names."""
    ranks = [path for path in folder.glob("rank*") if _RANK.fullmatch(path.name)]
    return sorted(ranks, key=lambda rank: (len(rank.name), rank.name))


def _copy(address: str, folder: Path) -> None:
    try:
        root, paths = listing(address)
        names = {path: PurePosixPath(path.removeprefix(root).lstrip("/")) for path in paths}
        inside = {path: its for path, its in names.items() if its.parts and ".." not in its.parts}
        if not _hold_result(its.parts[0] for its in inside.values()):
            raise RunFormatError(
                f"{printable(address)} is not a saved result: it has no {', '.join(_HEADS)}"
            )
        copy_objects(address, {path: folder / its for path, its in inside.items()})
    except TargetError as error:
        raise RunFormatError(str(error)) from error


def follow(path: str | Path) -> Iterator[Any]:
    """Yield a run again and again while a process records it, and a last time after the end.

    Raises:
        RunFormatError: as for `load`, after the end of the recording.
    """
    if is_address(str(path)):
        yield load(path)  # a copy does not change
        return
    folder, until_s = Path(path), time.monotonic() + _FIRST_S
    while True:
        begun_s = time.monotonic()
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
        is_new = names <= {LOGS} and not is_result(folder)
        goes_on = is_going_on(folder) or (is_new and begun_s < until_s)
        try:
            yield load(folder)
        except RunFormatError:
            if not goes_on:
                raise
        if not goes_on:
            return
        # A load keeps a core busy
        time.sleep(max(_EVERY_S, _TIMES * (time.monotonic() - begun_s)))


def is_going_on(folder: Path) -> bool:
    """Return whether a process of this machine still records into a folder or a rank's folder."""
    places = (folder, *_ranks_in(folder))
    return any(store.kind_in(place) is None and _has_writer(place / LOGS) for place in places)


def _has_writer(logs: Path) -> bool:
    """Return whether the writer of the logs lives; a later process may have its id."""
    for path in logs.glob(f"*-{MAIN}-*.events"):
        with suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int(path.name.partition("-")[0]))
            is_its = process.create_time() <= path.stat().st_mtime + 1
            if is_its and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def is_result(path: str | Path) -> bool:
    """Return whether `load` can read the path: a result, logs, or the ranks of a training."""
    if is_address(str(path)):
        return _hold_result(names_at(str(path)))
    folder = Path(path)
    places = (folder, *_ranks_in(folder))
    return any(store.kind_in(place) or any((place / LOGS).glob("*.events")) for place in places)


def _hold_result(names: Iterable[str]) -> bool:
    return any(name in (*_HEADS, LOGS) or _RANK.fullmatch(name) for name in names)


def _all_ranks(folders: list[Path]) -> Run:
    """Return the ranks of a training as one run; of many ranks, evenly chosen ones."""
    chosen = folders[:: -(-len(folders) // _MOST_RANKS)]
    try:
        for folder in chosen:
            store.check_is_folder(folder)
    except (OSError, ValueError) as error:
        raise RunFormatError(f"{error}: give a folder of existing runs") from error
    runs: list[Run] = [_read(folder) for folder in chosen]
    tables: dict[str, Any] = {
        field: pl.concat([getattr(run, field) for run in runs])
        for field in store.contents_of(Run).tables
    }
    notes = [f"{count(len(runs), 'rank')}; times of each count from its own start"]
    if len(chosen) < len(folders):
        notes.insert(0, f"{len(folders):,} ranks, of which these are read:")
    notes += [note for run in runs for note in run.notes]
    return replace(runs[0], **tables, notes=tuple(dict.fromkeys(notes)), others=())


def _read(folder: Path) -> Any:
    logs = LogPlace(folder / LOGS, 0)
    is_log = not logs.folder.is_symlink() and logs.logs()
    if store.kind_in(folder) or not is_log:
        return store.load(folder)
    try:
        run = collect(logs).run
        for field, table in store.contents_of(Run).tables.items():
            table.schema.checked(getattr(run, field))
    except (Exception, pl.exceptions.PanicException) as error:  # a killed process leaves anything
        why = without_controls(str(error).partition("\n")[0])
        raise RunFormatError(
            f"the logs in {logs.folder} cannot be read ({why}): copy the folder once more, or "
            "record again"
        ) from error
    note = "the process ended before it could save the run; this was read from its logs"
    if _has_writer(logs.folder):
        note = "the process still runs: this is its recording so far"
    return replace(run, notes=(*run.notes, note))


# ---- logs ----------------------------------------------------------------------------------------


class Recording(NamedTuple):
    """Run of a recording, and where its processes were when it ended."""

    run: Run
    places: list[str]
    """A sentence for each stage that an exception left, or that was open when a log ended."""


class _Logs:
    """Content of all logs of a recording, for all its loaders."""

    def __init__(self, place: LogPlace, about: RecordingInfo | None) -> None:
        names_of: dict[str, ProcessNames] = {}
        pages: list[LogPages] = []
        for path in place.logs():
            # A process that was killed while it made the file has no log
            with place.failures.within("the log of a process"), suppress(RunFormatError):
                pages.append(read_log(path, names_of))
        pages.sort(key=lambda page: (page.born_ns, page.worker))
        main = next((page for page in pages if page.worker < 0), None)
        self.main = main.names if main else ProcessNames()
        """Facts from the training process."""
        if about is None:
            fields = {"unix_offset_ns": None, **self.main.about}
            about = RecordingInfo(**{**fields, "notes": tuple(fields.get("notes", ()))})
        self._about = about
        self._origin_ns = pages[0].born_ns if pages else 0
        """Start of the run, from which times in tables count."""
        times: Any = {"rank": about.rank, "origin_ns": self._origin_ns}
        self.decoded: list[Decoded] = []
        for page in pages:
            with place.failures.within("the log of a process"), _no_panic():
                self.decoded.append(decode.decode(page, **times))
        sampled: list[dict[str, Any]] = []
        self._used, self._stacks = (
            pl.DataFrame(schema=schema) for schema in (decode.RESOURCES, STACKS)
        )
        with place.failures.within("the samples of resources"), _no_panic():
            sampled = list(read_lines(place.resources()))
            self._used = decode.table(sampled, **times)
        with place.failures.within("the stacks"), _no_panic():
            workers = {page.pid: page.worker if page.worker >= 0 else None for page in pages}
            self._stacks = read_stacks(place.folder, workers, **times)
        self._sampler_notes = [str(entry["note"]) for entry in sampled if "note" in entry]
        self._sampler_notes += place.failures.sentences()
        self.events = events(pages, **times)
        name = next(iter(self.events.devices), None)
        work = [(about.rank, name, *part) for part in self.events.device_work]
        self._device_work = pl.DataFrame(work, DEVICE, orient="row")

    def run(self, number: int) -> Run:
        """Return the run of one loader, by its number."""
        about, facts = self._about, self.main.loaders.get(number, {})
        loop = loops.loop(self.events, number)
        # The main process, and the workers of this loader, which may also work for others
        files = [file for file in self.decoded if file.log.worker < 0 or number in file.loaders]
        all_batches = _stack([file.batches for file in files], decode.BATCHES, number)
        samples = _stack([file.samples for file in files], decode.SAMPLES, number)
        known_sizes = sizes(samples["path"].drop_nulls().unique(maintain_order=True))
        size = pl.col("path").replace_strict(known_sizes, default=None, return_dtype=pl.Int64)
        batches, steps = mark_steady(all_batches, loop, about.warmup)
        offset_ns = about.unix_offset_ns
        settings = Settings(
            name=about.name or facts.get("dataset", ""),
            warmup=about.warmup,
            simulated_step_s=about.simulated_step_s,
            has_step=about.has_step,
            began_unix_ns=None if offset_ns is None else offset_ns + self._origin_ns,
            **{name: facts[name] for name in Settings.__dataclass_fields__.keys() & facts.keys()},
        )
        came = loop.deliveries["arrived_ns"].count() > 0
        notes, steady = [*self._notes(facts, files, came=came)], batches.filter("steady")
        if steady.is_empty():
            notes.append("no batch was recorded completely: there is nothing to show")
        elif steady["first"].any():
            notes.append("the recording is too short to leave out start-up")
        return Run(
            all_spans=_stack([file.spans for file in files], decode.SPANS, number),
            all_samples=samples.with_columns(bytes=size) if known_sizes else samples,
            batches=batches.drop("first"),
            all_steps=steps,
            waits=loop.waits,
            deliveries=loop.deliveries,
            side_spans=loop.side_spans,
            startup=self._startup(number, files),
            settings=settings,
            all_resources=self._used,
            device_work=self._device_work,
            all_stacks=self._stacks.filter(pl.col("pid").is_in([file.log.pid for file in files])),
            first_batch_s=self._first_batch_s(number),
            machine=about.machine,
            notes=tuple(dict.fromkeys(notes)),
        )

    def _notes(self, facts: dict[str, Any], files: list[Decoded], *, came: bool) -> Iterator[str]:
        """Yield what is missing in a run of these files; `came`: a batch was seen to arrive."""
        logs = [file.log for file in files]
        yield from self._about.notes
        yield from self.main.notes
        tracks = self.events.tracks
        thread, pieces = next(
            iter(Counter(track.thread for track in tracks).most_common(1)), (0, 0)
        )
        if pieces > 1:
            its = [track for track in tracks if track.thread == thread]
            kept_s = sum(track.last_ns - track.begin_ns for track in its) / 1e9
            total_s = (max(t.last_ns for t in its) - min(t.begin_ns for t in its)) / 1e9
            yield (
                f"{pieces} parts of the recording were kept, {seconds(kept_s)} of "
                f"{seconds(total_s)}, to limit the size of its logs"
            )
        if any(log.is_full for log in logs):
            yield "the logs were full: later events are missing"
        yield from self._sampler_notes
        if facts.get("whole"):
            yield "batch_size=None: a row is one item of the dataset, which may hold a batch"
        yield from (note for log in logs for note in log.names.notes)
        every = max((every for log in logs for every in log.names.every), default=1)
        if every > 1:
            yield f"About every {ordinal(every)} batch was recorded, to limit overhead"
        others = sum(log.other_threads for log in logs)
        if others:
            yield f"{others:,} calls in other threads of the workers were not recorded"
        yield from _about_lost([file.lost for file in files])
        missing = facts.get("num_workers", 0) - len({log.worker for log in logs if log.worker >= 0})
        if missing > 0 and came and not facts.get("lived"):
            yield f"{count(missing, 'worker')} left no log (no disk space, or a thread)"

    def _began_ns(self, number: int) -> dict[int, int]:
        """Return for each epoch of a loader the time when the loop asked for its iterator."""
        pairs = ((loader_and_epoch(key), start) for start, _, key in self.events.iterators)
        return {epoch: start for (loader, epoch), start in pairs if loader == number}

    def _first_batch_s(self, number: int) -> float | None:
        of, waits = self.events.owner, self.events.waits
        began_ns = (self._began_ns(OUTER) or self._began_ns(number)).values()
        arrived = [w.end_ns for w in waits if w.number is not None and of(w.key) == number]
        return (min(arrived) - min(began_ns)) / 1e9 if arrived and began_ns else None

    def _startup(self, number: int, files: list[Decoded]) -> pl.DataFrame:
        began, rows = self._began_ns(number), []
        for file in files:
            batches = _stack([file.batches], decode.BATCHES, number)
            is_idle = batches.is_empty() and file.ready_ns is None
            if file.log.turn or is_idle:  # a later turn: it began in another file
                continue
            spans = _stack([file.spans], decode.SPANS, number).drop_nulls("sample")
            sample_s = (pl.col("end_ns") - pl.col("start_ns")).sum() / 1e9
            each = spans.group_by("epoch", "batch", "sample", maintain_order=True).agg(s=sample_s)[
                "s"
            ]
            epoch = int(batches["epoch"][0]) if batches.height else 0
            began_ns, ready_s = began.get(epoch), None
            if file.ready_ns is not None and began_ns is not None:
                ready_s = (file.ready_ns - began_ns) / 1e9
            worker = file.log.worker if file.log.worker >= 0 else None
            times = ready_s, next(iter(each), None), each[1:].median()
            rows.append((worker, file.log.pid, epoch, *times))
        return pl.DataFrame(rows, STARTUP, orient="row")


@computed_apart
def collect(place: LogPlace, about: RecordingInfo | None = None) -> Recording:
    """Read the logs of a recording; `about` it is by default what stands beside the logs."""
    logs = _Logs(place, about)
    order = loaders(logs.events)
    numbers = [*order, *sorted(logs.main.loaders.keys() - set(order))] or [0]
    runs = [logs.run(number) for number in numbers]
    # The last of the files of a process
    raised = {file.log.pid: file.raised for file in logs.decoded if file.raised}
    inside = {file.log.pid: file.inside for file in logs.decoded if file.inside}
    places = [f"{stage} when the exception left it" for stage in raised.values()]
    places += [f"{stage} when its log ended" for stage in inside.values()]
    return Recording(replace(runs[0], others=tuple(runs[1:])), places)


def readable(place: LogPlace) -> Run:
    """Return the run; after an error an empty run with a note: the user's program goes on."""
    try:
        return collect(place).run
    except Exception as error:  # noqa: BLE001 - the logs may be damaged in any way
        notes = (f"the recording cannot be read ({error!r})", *place.failures.sentences())
    return Run(notes=notes)


@contextmanager
def _no_panic() -> Iterator[None]:
    """Turn a panic of polars, which is no `Exception`, into one."""
    try:
        yield
    except pl.exceptions.PanicException as error:
        raise RunFormatError(str(error)) from error


def _stack(frames: list[pl.DataFrame], schema: dict[str, Any], number: int) -> pl.DataFrame:
    """Return the rows of a loader; their epochs no longer carry its number."""
    rows = pl.concat([pl.DataFrame(schema=schema), *frames])
    first, after = epoch_key(number, 0), epoch_key(number + 1, 0)
    mine = rows.filter(pl.col("epoch").is_between(first, after, closed="left"))
    return mine.with_columns(epoch=pl.col("epoch") - first)


def _about_lost(lost: list[LostSamples]) -> Iterator[str]:
    """Yield how many samples had an exception that the dataset caught, and how many are None."""
    whole, nothing = sum(each.all for each in lost), sum(each.none for each in lost)
    caught: Counter[str] = sum((each.caught for each in lost), Counter())
    for what, samples in caught.most_common(MOST_NAMED):
        yield f"{what} in {samples:,} of {whole:,} samples, which the dataset caught"
    if nothing:
        yield f"{nothing:,} of {whole:,} samples are None: batches are smaller without them"


def salvaged(
    error: BaseException, place: LogPlace, about: RecordingInfo | None = None
) -> Recording | None:
    """Return the recording before an exception; if unreadable, None and a note on the exception."""
    try:
        return collect(place, about)
    except Exception as failed:  # noqa: BLE001 - a killed process may have left anything
        add_notes(
            error, [f"stallscope: the recording before this exception cannot be read ({failed!r})"]
        )
        return None


def is_of_workers(error: BaseException) -> bool:
    """Return whether this is torch's error of a dead worker; any code of the user can raise it."""
    return type(error) is RuntimeError and str(error).startswith("DataLoader worker")


def explain(error: BaseException, recording: Recording) -> None:
    """Add to an exception its origin and the recording before it."""
    vars(error)["run"] = recording.run  # past any __setattr__, such as a frozen dataclass's
    batch_count = count(recording.run.all_steps.height, "batch")
    last = f"attribute `run` of this exception holds the recording ({batch_count})"
    add_notes(error, [f"stallscope: {line}" for line in (*recording.places, last)])
