"""Results for the tests: built from planted numbers, or saved by earlier versions.

Nothing here reads a clock or draws without a seed, so that two looks at one of them are the same.
"""

import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
from support.build_diagnosis import COPY, DECODE, HEALTHY, LOCK, UNKNOWN, a_diagnosis
from support.build_experiments import some_experiments
from support.build_flame import CONV, JPEG, a_flame
from support.build_ladder import RUNGS, a_ladder
from support.build_lines import some_lines
from support.build_orders import PlannedBench, some_orders
from support.build_run import a_run, resources_of, steps_of
from support.build_storage import a_storage, no_layouts, no_storage, some_layouts, warm_storage
from support.build_tuning import HERE, NOW, a_full_tuning, a_tuning
from support.virtual_loop import a_loop, together

import stallscope as ss

SAVED = Path(__file__).parent / "saved"
LOOP = {"fetch": 5.0, "decode": 40.0, "Mask": 70.0, "collate": 5.0}
USE = {"forward": 11.0, "logging": 1.0}
CPU_RUNGS = (RUNGS[0], *RUNGS[2:5])
PICKED = {CONV: 0.2, JPEG: 0.5}
"""Shares of another flame: less of the op, more decoding."""


def _starving() -> ss.Run:
    return a_loop(LOOP, using=USE, h2d=1.0, batches=60, workers=2)


def _with_resources() -> ss.Run:
    use = {
        **{("core_busy_share", str(core)): 0.97 for core in range(2)},
        **{("worker_cpu_share", str(pid)): 0.9 for pid in (100, 101)},
        **{("queued_for_core_share", str(pid)): 0.1 for pid in (100, 101)},
        ("loop_cpu_share", "1"): 0.1,
        ("memory_bytes", "machine"): (6e9, 8e9),
        ("shm_bytes", "/dev/shm"): (1e6, 4e9),
        ("disk_read_bytes_per_s", "sda"): 12e6,
    }
    return replace(_starving(), all_resources=resources_of(use, 4))


def _recurring() -> ss.Run:
    """Every seventh step waits, each epoch starts slowly, and one worker is late."""
    return a_loop(
        lambda step, worker: {"fetch": 2.0, "Blur": 90.0 if step % 7 == 0 else 30.0 + 40 * worker},
        batches=80,
        epochs=2,
        workers=2,
        restart=400.0,
        using={"forward": 30.0},
    )


def _scattered() -> ss.Run:
    """Samples of 1 to 9 ms from files of many sizes; no loop was timed."""
    samples = [{"fetch": 1.0 + at % 3, "decode": 2.0 + at % 7, "Crop": 0.5} for at in range(160)]
    return a_run(
        samples,
        workers=2,
        collate_ms=2.0,
        warmup=2,
        cpu_share={"fetch": 0.25, "decode": 1.0},
        paths=[f"/data/{number}.jpg" for number in range(11)],
        pixels=[(100 * number, 80 * number) for number in range(1, 8)],
        rest_ms=1.0,
        notes=("stallscope's default pipeline, not yours",),
    )


def _changed() -> Any:
    return a_flame(PICKED, seed=3).diff(a_flame())


BUILT: dict[str, Callable[[], Any]] = {
    "run": _starving,
    "run_with_resources": _with_resources,
    "run_in_main_process": lambda: a_loop(LOOP, using=USE, batches=40, workers=0),
    "run_of_patterns": _recurring,
    "run_of_two_ranks": lambda: together(
        a_loop(LOOP, using=USE, batches=30, workers=2),
        a_loop(LOOP, using={"forward": 50.0}, batches=30, workers=2, rank=1),
    ),
    "run_for_a_trace": lambda: a_loop(LOOP, using=USE, batches=8, epochs=2, workers=2, warmup=2),
    "run_that_keeps_up": lambda: a_loop({"decode": 9.0}, using={"forward": 40.0}),
    "run_of_samples": _scattered,
    "run_by_batch": lambda: a_run([{"fetch": 3.0, "decode": 8.0}] * 40, per_batch=True),
    "run_of_waits": lambda: a_run([], steps=steps_of([0.02, 0.0, 0.2, 0.0, 0.03] * 8)),
    "run_of_nothing": lambda: a_run([], notes=("no batch was recorded",)),
    "ladder": lambda: a_ladder(
        dict(zip(CPU_RUNGS, (0.4, 0.2, 0.15, 0.1), strict=True)),
        noise=0.2,
        start_noise=0.05,
        simulated_step_s=0.05,
        notes=("fewer laps than wanted",),
    ),
    "ladder_on_gpu": lambda: a_ladder(
        {rung: 0.5 - 0.06 * place for place, rung in enumerate(RUNGS)},
        noise=0.1,
        busy={rung: 0.2 + 0.1 * place for place, rung in enumerate(RUNGS)},
        device="NVIDIA H200",
    ),
    "ladder_of_one": lambda: a_ladder({RUNGS[0]: 0.4}, starts=1, blocks=1, has_step=False),
    "flame": a_flame,
    "flame_of_nothing": lambda: a_flame(windows=0),
    "difference": _changed,
    "orders": lambda: some_orders(bench=PlannedBench()),
    "orders_not_measured": lambda: some_orders(measured=()),
    "orders_without_gain": lambda: some_orders(others=(), orders=((0, 1, 2, 3, 4),), measured=(0,)),
    "tuning": a_full_tuning,
    "tuning_as_it_is": lambda: a_tuning({NOW: [200, 201, 199], HERE: [90, 91, 89]}),
    "tuning_not_measured": a_tuning,
    "storage": a_storage,
    "storage_warm": warm_storage,
    "storage_of_nothing": no_storage,
    "layouts": some_layouts,
    "layouts_of_nothing": no_layouts,
    "lines": some_lines,
    "lines_without_source": lambda: some_lines(why_not="it is written in C"),
    "experiments": lambda: some_experiments(notes=("restored after the measurement: ResNet",)),
    "experiments_on_cpu": lambda: some_experiments({}, on_device=False),
    "experiments_of_nothing": lambda: some_experiments({}, step_s=None, on_device=False),
    "diagnosis": lambda: a_diagnosis(DECODE, LOCK, COPY, notes=("a note",)),
    "diagnosis_healthy": lambda: a_diagnosis(HEALTHY, simulated_step_s=0.05),
    "diagnosis_inconclusive": lambda: a_diagnosis(UNKNOWN, parts=False, has_step=False, spent=()),
}
"""Builder of each result."""

EACH_KIND = [name for name in BUILT if "_" not in name]
"""Names, one of each class."""


@cache
def built(name: str) -> Any:
    return BUILT[name]()


def rows(table: pl.DataFrame) -> list[list[Any]]:
    """The names of the columns, then the rows of a table."""
    return [table.columns, *map(list, table.iter_rows())]


VERSIONS = sorted(folder.name for folder in SAVED.iterdir() if folder.is_dir())
RUNS = ("run", "in_main_process", "ranks", "killed")
SAVED_RUNS = [f"{version}/{name}" for version in VERSIONS for name in RUNS]
SAVED_FLAMES = [f"{version}/flame" for version in VERSIONS]


@cache
def saved_run(name: str) -> ss.Run:
    """A run that was saved, or the logs of one that was killed."""
    archive = SAVED / f"{name}.tar.xz"
    if not archive.exists():
        return ss.load(SAVED / name)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        return ss.load(Path(folder) / Path(name).name)


@cache
def saved_flame(name: str) -> ss.Flame:
    return ss.Flame.load(SAVED / name)
