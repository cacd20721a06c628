"""From the logs of a recording to runs: one for each loader.

Also when the user's code failed meanwhile: the exception keeps its type and its text, and gets a
note on where it came from, and the recording as its `run`.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from stallscope.apart import computed_apart
from stallscope.errors import RunFormatError
from stallscope.files import sizes
from stallscope.hooks.event_log import RecordingInfo
from stallscope.hooks.log_place import epoch_key, loader_and_epoch
from stallscope.hooks.log_reader import LogPages, ProcessNames, read_lines, read_log
from stallscope.model.reasons import ordinal
from stallscope.run import decode
from stallscope.run import steps as loops
from stallscope.run.loop_events import Events, LoaderChain, events, join_chained
from stallscope.run.result import DEVICE, STARTUP, Run, Settings
from stallscope.run.steps import Owners, loaders, mark_steady
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.hooks.log_place import LogPlace
    from stallscope.run.decode import Decoded, Interrupted


@dataclass(frozen=True)
class Recording:
    """What a recording leaves behind before it is a run."""

    run: Run
    inside: tuple[Interrupted, ...]
    """Where each process was when its log ended, if that was inside of a batch."""
    raised: tuple[Interrupted, ...]
    """Where the last exception of each process came from."""


@dataclass(frozen=True)
class _Written:
    """Everything that was written; of all loaders of the recording."""

    about: RecordingInfo
    events: Events
    main: ProcessNames
    """What the process that trains said."""
    decoded: list[Decoded]
    who: loops.Who
    resources: pl.DataFrame
    device: pl.DataFrame
    """Columns of `run.result.DEVICE`."""
    notes: list[str]
    """Of the sampler of the resources, and on what failed in stallscope itself."""

    def began_ns(self, number: int) -> dict[int, int]:
        """Return when the loop asked for the iterator of each epoch of a loader."""
        pairs = ((loader_and_epoch(key), start) for start, _, key, _ in self.events.iterators)
        return {epoch: start for (loader, epoch), start in pairs if loader == number}


@computed_apart
def collect(place: LogPlace, about: RecordingInfo | None = None) -> Recording:
    """Read the logs of a recording.

    Args:
        place: where the logs are.
        about: description of the run; by default the one that lies with the logs.
    """
    written = _read(place, about)
    order = loaders(written.events)
    known = written.main.loaders.keys() - written.events.joined
    numbers = [*order, *sorted(known - set(order))] or [0]
    runs = [_run(written, number) for number in numbers]
    inside = {one.inside.pid: one.inside for one in written.decoded if one.inside}
    raised = {one.raised.pid: one.raised for one in written.decoded if one.raised}
    run = replace(runs[0], others=tuple(runs[1:]))
    return Recording(run, tuple(inside.values()), tuple(raised.values()))


def readable(place: LogPlace) -> Run:
    """Return the run, or an empty one that says why there is none: the user's program goes on."""
    try:
        return collect(place).run
    except Exception as error:  # noqa: BLE001 - whatever the logs have become
        notes = (f"the recording cannot be read ({error!r})", *place.failures.sentences())
    about, who = RecordingInfo(notes=notes), loops.Who(0, 0, 0)
    used, device = decode.table([], origin_ns=0, rank=0), pl.DataFrame(schema=DEVICE)
    return _run(_Written(about, events([]), ProcessNames(), [], who, used, device, []), 0)


def _read(place: LogPlace, about: RecordingInfo | None) -> _Written:
    known: dict[str, ProcessNames] = {}
    pages: list[LogPages] = []
    for path in place.logs():
        # no log: the process was killed while it made the file
        with place.failures.within("the log of a process"), suppress(RunFormatError):
            pages.append(read_log(path, known))
    pages.sort(key=lambda page: (page.born_ns, page.worker))
    main = next((page for page in pages if page.worker < 0), None)
    names = main.names if main else ProcessNames()
    if about is None:
        fields = {"unix_offset_ns": None, **names.about}
        about = RecordingInfo(**{**fields, "notes": tuple(fields.get("notes", ()))})
    origin_ns = pages[0].born_ns if pages else 0
    who = loops.Who(about.rank, main.pid if main else 0, origin_ns)
    decoded: list[Decoded] = []
    for page in pages:
        with place.failures.within("the log of a process"), _no_panic():
            decoded.append(decode.decode(page, origin_ns=origin_ns, rank=who.rank))
    sampled: list[dict[str, Any]] = []
    used = decode.table([], origin_ns=0, rank=0)
    with place.failures.within("the samples of resources"), _no_panic():
        sampled = list(read_lines(place.resources()))
        used = decode.table(sampled, origin_ns=origin_ns, rank=who.rank)
    notes = [str(entry["note"]) for entry in sampled if "note" in entry]
    notes += place.failures.sentences()
    found = events(pages)
    if chain := join_chained(found):
        decoded = [_chained(one, chain) for one in decoded]
    return _Written(about, found, names, decoded, who, used, _device(found, who), notes)


def _chained(one: Decoded, chain: LoaderChain) -> Decoded:
    """Give the tables of a log the epochs that its batches have become."""
    frames = {name: getattr(one, name) for name in ("spans", "batches", "samples")}
    had = {int(key) for frame in frames.values() for key in frame["epoch"].unique()}
    epoch = pl.col("epoch").replace({key: chain.key(key) for key in sorted(had)})
    renamed = {name: frame.with_columns(epoch) for name, frame in frames.items()}
    joined = {chain.main} if one.loaders & chain.loaders else set()
    return replace(one, loaders=one.loaders - chain.loaders | joined, **renamed)


def _device(found: Events, who: loops.Who) -> pl.DataFrame:
    """Return when the device had work."""
    name = next(iter(found.devices), None)
    rows = [
        (who.rank, name, kind, start_ns - who.origin_ns, end_ns - who.origin_ns)
        for kind, start_ns, end_ns in found.device_work()
    ]
    return pl.DataFrame(rows, DEVICE, orient="row")


@contextmanager
def _no_panic() -> Iterator[None]:
    """Make a panic of polars', which is no `Exception`, one."""
    try:
        yield
    except pl.exceptions.PanicException as error:
        raise RunFormatError(str(error)) from error


def _run(written: _Written, number: int) -> Run:
    """Make the run of one loader."""
    about, known = written.about, written.main.loaders.get(number, {})
    loop = loops.loop(written.events, number, written.who)
    # The main process, and the workers that worked for this loader, maybe among others
    mine = [one for one in written.decoded if one.log.worker < 0 or number in one.loaders]
    made = _stack([one.batches for one in mine], decode.BATCHES, number)
    samples = _stack([one.samples for one in mine], decode.SAMPLES, number)
    known_sizes = sizes(samples["path"].drop_nulls().unique(maintain_order=True))
    size = pl.col("path").replace_strict(known_sizes, default=None, return_dtype=pl.Int64)
    batches, steps = mark_steady(made, loop, about.warmup)
    began_unix_ns = about.unix_offset_ns
    settings = Settings(
        name=about.name or known.get("dataset", ""),
        num_workers=known.get("num_workers", 0),
        batch_size=known.get("batch_size"),
        warmup=about.warmup,
        simulated_step_s=about.simulated_step_s,
        has_step=about.has_step,
        prefetch_factor=known.get("prefetch_factor"),
        persistent_workers=known.get("persistent_workers", False),
        streams=known.get("streams", False),
        began_unix_ns=None if began_unix_ns is None else began_unix_ns + written.who.origin_ns,
    )
    notes = [*_notes(written, known, number, mine), *_about_steady(batches)]
    return Run(
        all_spans=_stack([one.spans for one in mine], decode.SPANS, number),
        all_samples=samples.with_columns(bytes=size) if known_sizes else samples,
        batches=batches.drop("first"),
        all_steps=steps,
        waits=loop.waits,
        deliveries=loop.deliveries,
        side_spans=loop.side_spans,
        startup=_startup(written, number, mine),
        settings=settings,
        all_resources=written.resources,
        device_work=written.device,
        first_batch_s=_first_batch_s(written, number),
        machine=about.machine,
        notes=tuple(dict.fromkeys(notes)),
    )


def _stack(frames: list[pl.DataFrame], schema: dict[str, Any], number: int) -> pl.DataFrame:
    """Return the rows of a loader, whose epochs carry its number until here."""
    if not frames:
        return pl.DataFrame(schema=schema)
    rows = pl.concat(frames, how="vertical")
    first, after = epoch_key(number, 0), epoch_key(number + 1, 0)
    mine = rows.filter(pl.col("epoch").is_between(first, after, closed="left"))
    return mine.with_columns(epoch=pl.col("epoch") - first)


def _notes(
    written: _Written, known: dict[str, Any], number: int, mine: list[Decoded]
) -> Iterator[str]:
    logs = [one.log for one in mine]
    yield from written.about.notes
    yield from written.main.notes
    yield from _about_gaps(max(written.events.pieces.values(), key=len, default=[]))
    if any(log.is_full for log in logs):
        yield "the logs were full: later events are missing"
    yield from written.notes
    if known.get("whole"):
        yield "batch_size=None: a row is one item of the dataset, which may hold a batch"
    yield from (note for log in logs for note in log.names.notes)
    every = max((every for log in logs for every in log.names.every), default=1)
    if every > 1:
        yield f"About every {ordinal(every)} batch was recorded, to limit overhead"
    others = sum(log.other_threads for log in logs)
    if others:
        yield f"{others:,} calls in other threads of the workers were not recorded"
    missing = known.get("num_workers", 0) - len({log.worker for log in logs if log.worker >= 0})
    came = (b.loader == number and way.arrived_ns for b, way in written.events.deliveries.items())
    if missing > 0 and any(came) and not known.get("lived"):
        yield f"{count(missing, 'worker')} left no log (no room for it, or a thread)"


def _about_gaps(pieces: list[tuple[int, int]]) -> Iterator[str]:
    if len(pieces) > 1:
        kept_s = sum(end - begin for begin, end in pieces) / 1e9
        total_s = (pieces[-1][1] - pieces[0][0]) / 1e9
        yield (
            f"{len(pieces)} pieces of the recording were kept, from its beginning to its end, "
            f"{seconds(kept_s)} of {seconds(total_s)}, so that its logs stay small"
        )


def _about_steady(batches: pl.DataFrame) -> Iterator[str]:
    steady = batches.filter("steady")
    if steady.is_empty():
        yield "no batch was recorded from beginning to end: there is nothing to show"
    elif steady["first"].any():
        yield "the recording is so short that start-up could not be kept apart"


def _first_batch_s(written: _Written, number: int) -> float | None:
    owners = Owners(written.events)
    arrived = [
        wait.end_ns
        for wait in written.events.waits
        if wait.number is not None and owners.of(wait.key) == number
    ]
    began = min(written.began_ns(number).values(), default=None)
    began = min(written.began_ns(0).values(), default=began)
    return (min(arrived) - began) / 1e9 if arrived and began else None


def _startup(written: _Written, number: int, mine: list[Decoded]) -> pl.DataFrame:
    began, rows = written.began_ns(number), []
    for one in mine:
        batches = _stack([one.batches], decode.BATCHES, number)
        if one.log.turn or not (batches.height or one.ready_ns):  # it began in another file, or not
            continue
        spans = _stack([one.spans], decode.SPANS, number)
        samples = (
            spans.filter(pl.col("sample").is_not_null())
            .group_by("epoch", "batch", "sample", maintain_order=True)
            .agg((pl.col("end_ns") - pl.col("start_ns")).sum() / 1e9)
            .get_column("end_ns")
        )
        epoch = int(batches["epoch"][0]) if batches.height else 0
        began_ns = began.get(epoch)
        rows.append(
            (
                one.log.worker if one.log.worker >= 0 else None,
                one.log.pid,
                epoch,
                (one.ready_ns - began_ns) / 1e9 if one.ready_ns and began_ns else None,
                samples[0] if samples.len() else None,
                samples[1:].median() if samples.len() > 1 else None,
            )
        )
    return pl.DataFrame(rows, STARTUP, orient="row")


def salvaged(
    error: BaseException, place: LogPlace, about: RecordingInfo | None = None
) -> Recording | None:
    """What was recorded before an exception, which gets a note where nothing can be read."""
    try:
        return collect(place, about)
    except Exception as failed:  # noqa: BLE001 - a killed process may have left anything
        note(error, [f"stallscope: what was recorded before cannot be read ({failed!r})"])
        return None


def is_of_workers(error: BaseException) -> bool:
    """Whether torch says that a worker has died; it may say so anywhere in the user's code."""
    return type(error) is RuntimeError and str(error).startswith("DataLoader worker")


def explain(error: BaseException, recording: Recording) -> None:
    """Add to an exception where it came from and what was recorded before it."""
    vars(error)["run"] = recording.run  # past any __setattr__, such as a frozen dataclass's
    kept = count(recording.run.all_steps.height, "batch")
    lines = [
        *(f"stallscope: {_where(place)} when the exception left it" for place in recording.raised),
        *(f"stallscope: {_where(place)} when its log ended" for place in recording.inside),
        f"stallscope: what was recorded before ({kept}) is this exception's attribute `run`",
    ]
    note(error, lines)


def note(error: BaseException, lines: list[str]) -> None:
    """Add notes, where Python keeps them from 3.11 on; an exception may refuse them."""
    with suppress(Exception):
        vars(error)["__notes__"] = [*getattr(error, "__notes__", []), *lines]


def _where(place: Interrupted) -> str:
    process = "the main process" if place.worker is None else f"worker {place.worker}"
    sample = "" if place.sample is None else f", sample {place.sample} of the batch"
    index = "" if place.index is None else f" (index {place.index} of the dataset)"
    return (
        f"{process} (pid {place.pid}) was in '{place.stage}' of batch {place.batch}{sample}{index}"
    )
