"""From what the processes of a recording wrote to runs: one for each loader.

Also when the user's code failed meanwhile: the exception keeps its type and its text, and gets a
note on where it came from, and the recording as its `run`.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from stallscope.apart import computed_apart
from stallscope.errors import RunFormatError
from stallscope.files import sizes
from stallscope.hooks.loop_log import (
    MarkPages,
    RecordingInfo,
    epoch_key,
    loader_and_epoch,
    read_marks,
)
from stallscope.hooks.stage_log import LogPages, read_lines, read_log
from stallscope.model.reasons import ordinal
from stallscope.run import decode
from stallscope.run import steps as loops
from stallscope.run.loop_events import Events, LoaderChain, events, join_chained
from stallscope.run.result import DEVICE, STARTUP, Run, Settings
from stallscope.run.steps import Owners, loaders, mark_steady
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stallscope.hooks.failures import Failures
    from stallscope.hooks.loop_log import LogPlace
    from stallscope.run.decode import Decoded, Interrupted


_Page = TypeVar("_Page", MarkPages, LogPages)


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
    """All that was written, read."""

    about: RecordingInfo
    events: Events
    marks: list[MarkPages]
    logs: list[LogPages]
    decoded: list[Decoded]
    who: loops.Who
    resources: pl.DataFrame
    """Of all processes of the recording, so the same for each loader."""
    device: pl.DataFrame
    """Columns of `run.result.DEVICE`; the same for each loader, too."""
    said: list[str]
    """What the sampler of the resources had to say, and what failed in stallscope itself."""

    def loader(self, number: int) -> dict[str, Any]:
        """What is known of a loader."""
        known = (page.loaders[number] for page in self.marks if number in page.loaders)
        return next(known, {})


@computed_apart
def collect(place: LogPlace, about: RecordingInfo | None = None) -> Recording:
    """Read all that was written in a recording.

    Args:
        place: where the logs are.
        about: what the run is to say of itself; what lies with the logs by default.
    """
    written = _read(place, about)
    order = loaders(written.events)
    known = {number for page in written.marks for number in page.loaders}
    known -= written.events.joined
    numbers = [*order, *sorted(known - set(order))] or [0]
    runs = [_run(written, number) for number in numbers]
    inside = {d.inside.pid: d.inside for d in written.decoded if d.inside}
    raised = {d.raised.pid: d.raised for d in written.decoded if d.raised}
    run = replace(runs[0], others=tuple(runs[1:]))
    return Recording(run, tuple(inside.values()), tuple(raised.values()))


def readable(place: LogPlace) -> Run:
    """The run, or an empty one that says why there is no other: the user's program goes on."""
    try:
        return collect(place).run
    except Exception as error:  # noqa: BLE001 - whatever the logs have become
        notes = (f"what was recorded cannot be read ({error!r})", *place.failures.sentences())
    about, who = RecordingInfo(notes=notes), loops.Who(0, 0, 0)
    used = decode.table([], origin_ns=0, rank=0)
    device = pl.DataFrame(schema=DEVICE)
    return _run(_Written(about, events([]), [], [], [], who, used, device, []), 0)


def _read(place: LogPlace, about: RecordingInfo | None) -> _Written:
    marks = _whole(read_marks, place.marks(), place.failures)
    pages = _whole(read_log, place.logs(), place.failures)
    pages.sort(key=lambda page: (page.born_ns, page.worker, page.turn))
    main = next((page for page in marks if page.worker < 0), None)
    if about is None:
        said = main.about if main else {}
        told = {"unix_offset_ns": None, **said, "notes": tuple(said.get("notes", ()))}
        about = RecordingInfo(**told)
    began = [page.born_ns for page in [*marks, *pages]]
    who = loops.Who(about.rank, main.pid if main else 0, min(began, default=0))
    logs: list[LogPages] = []
    decoded: list[Decoded] = []
    for page in pages:
        with place.failures.within("the log of a process"), _no_panic():
            decoded.append(decode.decode(page, origin_ns=who.origin_ns, rank=who.rank))
            logs.append(page)
    sampled: list[dict[str, Any]] = []
    used = decode.table([], origin_ns=0, rank=0)
    with place.failures.within("what was used meanwhile"), _no_panic():
        sampled = list(read_lines(place.resources()))
        used = decode.table(sampled, origin_ns=who.origin_ns, rank=who.rank)
    heard = [str(entry["note"]) for entry in sampled if "note" in entry]
    heard += place.failures.sentences()
    found = events(marks)
    if chain := join_chained(found):
        joined = [_chained(*both, chain) for both in zip(logs, decoded, strict=True)]
        logs, decoded = [page for page, _ in joined], [one for _, one in joined]
    return _Written(about, found, marks, logs, decoded, who, used, _device(found, who), heard)


def _chained(page: LogPages, one: Decoded, chain: LoaderChain) -> tuple[LogPages, Decoded]:
    """The log of a process, with the epochs that its batches have become."""
    frames = {name: getattr(one, name) for name in ("spans", "batches", "samples")}
    had = {int(key) for frame in frames.values() for key in frame["epoch"].unique()}
    epoch = pl.col("epoch").replace({key: chain.key(key) for key in sorted(had)})
    renamed = {name: frame.with_columns(epoch) for name, frame in frames.items()}
    loader = chain.main if page.loader in chain.loaders else page.loader
    return replace(page, loader=loader), replace(one, **renamed)


def _device(found: Events, who: loops.Who) -> pl.DataFrame:
    """When the device had work."""
    name = next(iter(found.devices), None)
    rows = [
        (who.rank, name, kind, start_ns - who.origin_ns, end_ns - who.origin_ns)
        for kind, start_ns, end_ns in found.device_work()
    ]
    return pl.DataFrame(rows, DEVICE, orient="row")


def _whole(read: Callable[[Path], _Page], paths: list[Path], failures: Failures) -> list[_Page]:
    """What was in these files, without those whose process was killed while it made them."""
    pages = []
    for path in paths:
        with failures.within("the log of a process"), suppress(RunFormatError):
            pages.append(read(path))
    return pages


@contextmanager
def _no_panic() -> Iterator[None]:
    """Make a panic of polars', which is no `Exception`, one."""
    try:
        yield
    except pl.exceptions.PanicException as error:
        raise RunFormatError(str(error)) from error


def _run(written: _Written, number: int) -> Run:
    """The run of one loader."""
    about, known = written.about, written.loader(number)
    loop = loops.loop(written.events, number, written.who)
    # Of the processes that worked for this loader, also those that worked for several
    pairs = zip(written.logs, written.decoded, strict=True)
    mine = [(page, one) for page, one in pairs if page.loader in (0, number)]
    pages, decoded = [page for page, _ in mine], [one for _, one in mine]
    made = _stack([d.batches for d in decoded], decode.BATCHES, number)
    samples = _stack([d.samples for d in decoded], decode.SAMPLES, number)
    known_sizes = sizes(samples["path"].drop_nulls().unique(maintain_order=True))
    size = pl.col("path").replace_strict(known_sizes, default=None, return_dtype=pl.Int64)
    batches, steps = mark_steady(made, loop, about.warmup)
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
        began_unix_ns=None
        if about.unix_offset_ns is None
        else about.unix_offset_ns + written.who.origin_ns,
    )
    return Run(
        all_spans=_stack([d.spans for d in decoded], decode.SPANS, number),
        all_samples=samples.with_columns(bytes=size) if known_sizes else samples,
        batches=batches.drop("first"),
        all_steps=steps,
        waits=loop.waits,
        deliveries=loop.deliveries,
        side_spans=loop.side_spans,
        startup=_startup(written, number, pages, decoded),
        settings=settings,
        all_resources=written.resources,
        device_work=written.device,
        first_batch_s=_first_batch_s(written, number),
        machine=about.machine,
        notes=tuple(dict.fromkeys(_notes(written, number, pages, batches))),
    )


def _stack(frames: list[pl.DataFrame], schema: dict[str, Any], number: int) -> pl.DataFrame:
    """The rows of a loader, whose epochs carry its number until here."""
    if not frames:
        return pl.DataFrame(schema=schema)
    rows = pl.concat(frames, how="vertical")
    first, after = epoch_key(number, 0), epoch_key(number + 1, 0)
    mine = rows.filter(pl.col("epoch").is_between(first, after, closed="left"))
    return mine.with_columns(epoch=pl.col("epoch") - first)


def _notes(
    written: _Written,
    number: int,
    pages: list[LogPages],
    batches: pl.DataFrame,
) -> Iterator[str]:
    known = written.loader(number)
    yield from written.about.notes
    yield from (note for page in written.marks for note in page.notes)
    yield from _about_gaps(written.events.stretches)
    if any(page.full for page in written.marks):
        yield "the marks of the loop were full: the oldest were overwritten"
    yield from written.said
    if known.get("whole"):
        yield "batch_size=None: a row is one item of the dataset, which may hold a batch"
    yield from (note for page in pages for note in page.notes)
    every = max((page.every for page in pages), default=1)
    if every > 1:
        yield f"About every {ordinal(every)} batch was recorded, to limit overhead"
    dropped = sum(page.dropped for page in pages)
    if dropped:
        yield f"the logs were full: the oldest {dropped:,} events were overwritten"
    others = sum(page.other_threads for page in pages)
    if others:
        yield f"{others:,} calls in other threads of the workers were not recorded"
    there = {page.worker for page in pages if page.worker >= 0}
    missing = known.get("num_workers", 0) - len(there)
    came = (b.loader == number and way.arrived_ns for b, way in written.events.deliveries.items())
    if missing > 0 and any(came) and not known.get("lived"):
        yield f"{count(missing, 'worker')} left no log (no room for it, or a thread)"
    steady = batches.filter("steady")
    if steady.is_empty():
        yield "no batch was recorded from beginning to end: there is nothing to show"
    elif steady["first"].any():
        yield "the recording is so short that start-up could not be kept apart"


def _about_gaps(stretches: list[tuple[int, int]]) -> Iterator[str]:
    if len(stretches) > 1:
        kept_s = sum(end - begin for begin, end in stretches) / 1e9
        total_s = (stretches[-1][1] - stretches[0][0]) / 1e9
        yield (
            f"{len(stretches)} pieces of the recording were kept, from its beginning to its end, "
            f"{seconds(kept_s)} of {seconds(total_s)}, so that its logs stay small"
        )


def _began_ns(written: _Written, number: int) -> dict[int, int]:
    """When the loop asked for the iterator of each epoch."""
    pairs = ((loader_and_epoch(key), start) for start, _, key, _ in written.events.iterators)
    return {epoch: start for (loader, epoch), start in pairs if loader == number}


def _first_batch_s(written: _Written, number: int) -> float | None:
    owners = Owners(written.events)
    arrived = [
        wait.end_ns
        for wait in written.events.waits
        if wait.number is not None and owners.of(wait.key) == number
    ]
    began = min(_began_ns(written, number).values(), default=None)
    began = min(_began_ns(written, 0).values(), default=began)
    return (min(arrived) - began) / 1e9 if arrived and began else None


def _startup(
    written: _Written, number: int, pages: list[LogPages], decoded: list[Decoded]
) -> pl.DataFrame:
    began, of_loader, rows = _began_ns(written, number), partial(_stack, number=number), []
    for page, one in zip(pages, decoded, strict=True):
        if page.turn:  # the process began in another file
            continue
        spans = of_loader([one.spans], decode.SPANS)
        samples = (
            spans.filter(pl.col("sample").is_not_null())
            .group_by("epoch", "batch", "sample", maintain_order=True)
            .agg((pl.col("end_ns") - pl.col("start_ns")).sum() / 1e9)
            .get_column("end_ns")
        )
        epochs = of_loader([one.batches], decode.BATCHES)["epoch"]
        epoch = int(epochs[0]) if epochs.len() else 0
        began_ns = began.get(epoch)
        rows.append(
            (
                page.worker if page.worker >= 0 else None,
                page.pid,
                epoch,
                (page.ready_ns - began_ns) / 1e9 if page.ready_ns and began_ns else None,
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
