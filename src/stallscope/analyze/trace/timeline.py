"""The trace of a run: all of its events, one after the other, and what there is to know of it.

Tables stay tables until their rows are written, so that a long run needs little more memory than
it did before. A slice comes before those inside of it, else in no order: readers sort.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.analyze.trace.counters import READY, ready, used
from stallscope.analyze.trace.flows import flows as flows_of
from stallscope.analyze.trace.loop import slices
from stallscope.analyze.trace.making import making
from stallscope.analyze.trace.phases import BATCH, SAMPLE, WAIT, flow, us, whole
from stallscope.analyze.trace.tracks import MAIN, Tracks
from stallscope.stages import SEND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.analyze.trace.making import Making
    from stallscope.analyze.trace.phases import Event, Track
    from stallscope.run import Run

_ARGS: Final = ("epoch", "batch", "step", "steady", "recorded", "consists_of")
_ABOUT: Final = ("index", "path", "bytes", "width", "height")
_BUFFER: Final = 1 << 14
"""Rows that are turned into Python's values at once."""


def events(run: Run) -> Iterator[Event]:
    """All events of the trace of a run and of its other loaders.

    The process that trains holds the steps: each with its wait, around that the stall if it is
    one, and what the loop did with the batch. Each worker holds its batches, in them the samples,
    in those the stages; sending and pinning are threads. An arrow leads from each batch that a
    worker made, by its sending, to its first use in a step. Counters say how many lay ready, and
    what the machine did meanwhile.

    Args:
        run: what was measured.

    Yields:
        Events of the Trace Event Format (see `phases`), names of processes and threads last.
    """
    runs = (run, *run.others)
    tracks, made, outer = Tracks(runs), [], []
    arrows_so_far = 0
    for loader, one in enumerate(runs):
        name = one.settings.name or "another loader"
        thread = f"loader {loader + 1}: {name}" if loader else MAIN
        arrows = flows_of(one, first=arrows_so_far + 1)
        arrows_so_far += arrows.height
        made.append(making(one, arrows, thread))
        both = [slices(one, arrows, thread), made[-1].batches]
        outer.append(pl.concat(both, how="diagonal_relaxed").with_columns(loader=pl.lit(loader)))
        yield from ready(arrows, tracks, f"{READY}, {thread}" if loader else READY)
    yield from used(run.resources(steady=False), tracks)
    held: dict[tuple[int, int], Track] = {}
    yield from _outer(pl.concat(outer, how="diagonal_relaxed"), tracks, held)
    for loader, inside in enumerate(made):
        yield from _samples(inside, loader, held)
        yield from _stages(inside, loader, held)
    yield from tracks.names()


def about(run: Run) -> dict[str, Any]:
    """What a reader of the trace has to know: where and how it was measured, and what it lacks."""
    said = list(run.notes)
    if run.settings.simulated_step_s is not None:
        said.append(f"the step is simulated: a timer of {run.settings.simulated_step_s} s")
    if run.all_steps["rank"].n_unique() > 1:
        said.append("the times of each rank count from its own start")
    told = {"settings": vars(run.settings), "machine": run.machine, "notes": said}
    # What others wrote may hold what JSON has no word for
    plain: dict[str, Any] = json.loads(json.dumps(told), parse_constant=str)
    return plain


def _outer(
    rows: pl.DataFrame, tracks: Tracks, held: dict[tuple[int, int], Track]
) -> Iterator[Event]:
    """Everything but samples and their stages; `held` gets the track of each recorded batch."""
    longer = -pl.col("end_ns")
    ordered = rows.sort("start_ns", longer, "depth", "rank", "worker", "batch", maintain_order=True)
    for row in ordered.iter_rows(named=True, buffer_size=_BUFFER):
        start_ns, end_ns = row["start_ns"], row["end_ns"]
        pid = tracks.pid(row["rank"], row["worker"], row["pid"])
        track = tracks.place(pid, row["thread"], start_ns, end_ns)
        if row["stretch"] is not None:
            held[row["loader"], row["stretch"]] = track
        args = {name: row[name] for name in _ARGS if row[name] is not None}
        yield whole(track, row["name"], row["cat"], (start_ns, end_ns), args)
        for number in row["arrows"] or ():
            yield _point(track, row["cat"], number, start_ns, end_ns)


def _point(track: Track, cat: str, number: int, start_ns: int, end_ns: int) -> Event:
    """Where an arrow begins, leads through or ends: a slice must be there, so not at its end."""
    if cat == SEND.kind:
        return flow("t", track, number, start_ns)
    if cat in (BATCH, WAIT):
        return flow("s" if cat == BATCH else "f", track, number, max(start_ns, end_ns - 1))
    return flow("f", track, number, start_ns)


def _samples(made: Making, loader: int, held: dict[tuple[int, int], Track]) -> Iterator[Event]:
    for stretch, epoch, batch, sample, start_ns, end_ns, *known in made.samples.iter_rows(
        buffer_size=_BUFFER
    ):
        args = {"epoch": epoch, "batch": batch, "sample": sample}
        args |= {
            name: value for name, value in zip(_ABOUT, known, strict=True) if value is not None
        }
        yield whole(held[loader, stretch], f"sample {sample}", SAMPLE, (start_ns, end_ns), args)


def _stages(made: Making, loader: int, held: dict[tuple[int, int], Track]) -> Iterator[Event]:
    for (
        stretch,
        epoch,
        batch,
        sample,
        stage,
        kind,
        start_ns,
        end_ns,
        cpu_ns,
    ) in made.spans.iter_rows(buffer_size=_BUFFER):
        args = {"epoch": epoch, "batch": batch}
        if sample is not None:
            args["sample"] = sample
        if cpu_ns is not None:
            args["cpu_us"] = us(cpu_ns)
        yield whole(held[loader, stretch], stage, kind, (start_ns, end_ns), args)
