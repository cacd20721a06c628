"""From the logs of a recording to a run: decode, find the steady state, say what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from stallscope.analyze import spans as logs
from stallscope.eventlog import LogPages, read_log
from stallscope.measure.distributed import rank
from stallscope.measure.files import sizes
from stallscope.measure.machine import machine
from stallscope.run import STARTUP, STEPS, Run, Settings
from stallscope.units import count

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from stallscope.analyze.interrupted import Interrupted
    from stallscope.analyze.spans import Decoded
    from stallscope.measure.replay import Replay
    from stallscope.probe.install import LogPlace


@dataclass(frozen=True)
class About:
    """What a run says of itself."""

    name: str = ""
    """What the user pointed at."""
    warmup: int = 0
    """Batches at the start that are not part of the steady state."""
    notes: tuple[str, ...] = ()
    """Sentences that the run is to carry."""


@dataclass(frozen=True)
class Recording:
    """What a recording leaves behind before it is a run."""

    run: Run
    inside: tuple[Interrupted, ...]
    """Where each process was when its log ended, if that was inside of a batch."""
    raised: tuple[Interrupted, ...]
    """Where the last exception of each process came from."""


def collect(place: LogPlace, seen: Replay, loader: DataLoader[Any], about: About) -> Recording:
    """Read all logs of a recording.

    Args:
        place: where the logs are.
        seen: what the loop saw.
        loader: the loader that was measured.
        about: what the run is to be called and to say.
    """
    pages = [read_log(path) for path in place.logs()]
    pages.sort(key=lambda page: (page.born_ns, page.worker))
    decoded = [logs.decode(page, origin_ns=seen.began_ns, rank=rank()) for page in pages]
    used = _used(seen)
    made = _stack([d.batches for d in decoded], logs.BATCHES)
    batches = _mark_steady(made, used, about.warmup)
    said = [
        *about.notes,
        *_about_loop(seen, loader),
        *_about_logs(pages, decoded, loader),
        *_about_steady(batches),
    ]
    run = Run(
        all_spans=_stack([d.spans for d in decoded], logs.SPANS),
        all_samples=_with_sizes(_stack([d.samples for d in decoded], logs.SAMPLES)),
        batches=batches.drop("first"),
        all_steps=_steps(used, batches),
        startup=_startup(pages, decoded, seen),
        settings=_settings(loader, about),
        first_batch_s=(seen.first_batch_ns - seen.began_ns) / 1e9 if seen.first_batch_ns else None,
        machine=machine(),
        notes=tuple(dict.fromkeys(said)),
    )
    inside = tuple(d.inside for d in decoded if d.inside)
    return Recording(run, inside, tuple(d.raised for d in decoded if d.raised))


def _stack(frames: list[pl.DataFrame], schema: dict[str, Any]) -> pl.DataFrame:
    return pl.concat(frames, how="vertical") if frames else pl.DataFrame(schema=schema)


def _mark_steady(batches: pl.DataFrame, used: pl.DataFrame, warmup: int) -> pl.DataFrame:
    """Add `first` (of its process) and `steady`: used, after the warm-up, not a first one.

    What was made ahead and never used is left out, so that the same call gives the same count. A
    recording too short to leave out its start keeps what there is, and `_about_steady` says so.
    """
    order = pl.struct("epoch", "batch").rank("dense") - 1
    marked = batches.with_columns(
        first=pl.struct("epoch", "batch").rank("ordinal").over("rank", "pid") == 1,
        late=order >= warmup,
    )
    if not used.is_empty():
        wanted = used.select("epoch", "batch", used=pl.lit(value=True))
        marked = marked.join(wanted, on=["epoch", "batch"], how="left", maintain_order="left")
    else:  # somebody else's loop: it uses what it gets
        marked = marked.with_columns(used=pl.lit(value=True))
    for steady in (pl.col("late") & ~pl.col("first"), ~pl.col("first"), pl.lit(value=True)):
        kept = pl.col("complete") & pl.col("used").fill_null(value=False) & steady
        chosen = marked.with_columns(steady=kept)
        if chosen["steady"].any():
            break
    return chosen.drop("late", "used")


def _about_steady(batches: pl.DataFrame) -> list[str]:
    steady = batches.filter("steady")
    if steady.is_empty():
        return ["no batch was recorded from beginning to end: there is nothing to show"]
    if steady["first"].any():
        return ["the recording is so short that start-up could not be kept apart"]
    return []


def _about_loop(seen: Replay, loader: DataLoader[Any]) -> list[str]:
    said = []
    if seen.out_of_time:
        said.append(f"the budget ended the recording after {count(len(seen.steps), 'batch', 'es')}")
    if seen.exhausted:
        said.append(f"the loader gave no more than {count(len(seen.steps), 'batch', 'es')}")
    elif len(seen.epoch_began_ns) > 1:
        said.append(
            f"the loader is short: the recording went through {len(seen.epoch_began_ns)} epochs"
        )
    if loader.batch_size is None and loader.batch_sampler is None:
        said.append("batch_size=None: a row is one item of the dataset, which may hold a batch")
    return said


def _about_logs(
    pages: list[LogPages], decoded: list[Decoded], loader: DataLoader[Any]
) -> list[str]:
    said = [note for page in pages for note in page.notes]
    every = max((page.every for page in pages), default=1)
    if every > 1:
        kept = f"1 batch in {every} was recorded after the first ones"
        said.append(f"{kept}, to hold the cost of recording down")
    dropped = sum(page.dropped for page in pages)
    if dropped:
        said.append(f"the logs were full: the oldest {dropped:,} events were overwritten")
    others = sum(page.other_threads for page in pages)
    if others:
        said.append(f"{others:,} calls in other threads of the workers were not recorded")
    missing = loader.num_workers - len({page.worker for page in pages if page.worker >= 0})
    if missing > 0 and any(d.batches.height for d in decoded):
        said.append(f"{count(missing, 'worker')} left no log (no room in the temporary folder?)")
    return said


def _with_sizes(samples: pl.DataFrame) -> pl.DataFrame:
    paths = samples["path"].drop_nulls().unique(maintain_order=True)
    known = sizes(paths)
    size = pl.col("path").replace_strict(known, default=None, return_dtype=pl.Int64)
    return samples.with_columns(bytes=size) if known else samples


def _used(seen: Replay) -> pl.DataFrame:
    """`step, epoch, batch` of what the loop used."""
    rows = [(i, epoch, batch) for i, (epoch, batch) in enumerate(seen.steps)]
    names = ("step", "epoch", "batch")
    return pl.DataFrame(rows, schema={name: STEPS[name] for name in names}, orient="row")


def _steps(used: pl.DataFrame, batches: pl.DataFrame) -> pl.DataFrame:
    makers = batches.select("epoch", "batch", "worker").unique(["epoch", "batch"])
    joined = used.join(makers, on=["epoch", "batch"], how="left", maintain_order="left")
    return joined.with_columns(
        pl.lit(None, dtype=kind).alias(name)
        for name, kind in STEPS.items()
        if name not in joined.columns
    ).select(*STEPS)


def _startup(pages: list[LogPages], decoded: list[Decoded], seen: Replay) -> pl.DataFrame:
    rows = []
    for page, one in zip(pages, decoded, strict=True):
        samples = (
            one.spans.filter(pl.col("sample").is_not_null())
            .group_by("epoch", "batch", "sample", maintain_order=True)
            .agg((pl.col("end_ns") - pl.col("start_ns")).sum() / 1e9)
            .get_column("end_ns")
        )
        epoch = int(one.batches["epoch"][0]) if one.batches.height else 0
        began_ns = seen.epoch_began_ns[epoch] if epoch < len(seen.epoch_began_ns) else 0
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
    return pl.DataFrame(rows, schema=STARTUP, orient="row")


def _settings(loader: DataLoader[Any], about: About) -> Settings:
    return Settings(
        name=about.name or type(loader.dataset).__name__,
        num_workers=loader.num_workers,
        batch_size=loader.batch_size,
        warmup=about.warmup,
    )
