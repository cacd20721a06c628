"""Time and memory of the tables of a long recording: 1 and 10 million spans.

Logs of four workers are made up (`benchkit/synthetic.py`), read and decoded, put together as a run,
saved, loaded again, and summarised by `Run.stages()` and `Run.samples()`. Each job runs in a fresh
process, so that its peak memory (`resource.getrusage`) is its own: what it was given included,
the interpreter and polars too. The last column shows how a job grows with ten times the spans:
up to 10 it is linear.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchkit.command import Option, arguments, met, table
from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.run.result import Run

TARGET_S, TARGET_GB = 2.0, 1.5
WARM_UP_BATCHES = 4

Figures = dict[str, float]


def main() -> None:
    """Run every job on every size and print the table, or run one job."""
    given = arguments(
        __doc__,
        sizes=Option([1_000_000, 10_000_000], [10_000, 30_000], "spans; two sizes"),
        job=Option("", "", "for the fresh processes, as the next two; none"),
        folder=Option("", "", "of the logs"),
        spans=Option(0, 0, "in them"),
    )
    if given.job:
        print(json.dumps(JOBS[given.job](Path(given.folder), given.spans)))
        return
    figures: dict[str, list[Figures]] = {}
    bar = tqdm([(spans, job) for spans in given.sizes for job in JOBS], unit="job", leave=False)
    with tempfile.TemporaryDirectory(prefix="benchmark-tables-") as folder:
        for spans, job in bar:
            bar.set_description(f"{job}, {spans:,} spans")
            for name, seen in _in_a_fresh_process(job, f"{folder}/{spans}", spans).items():
                figures.setdefault(name, []).append(seen)
    print(_report(figures, given.sizes))


def _in_a_fresh_process(job: str, folder: str, spans: int) -> dict[str, Figures]:
    command = [sys.executable, __file__, "--job", job, "--folder", folder, "--spans", str(spans)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


# --- the jobs, each in its own process ---------------------------------------------------------


def _write(folder: Path, spans: int) -> dict[str, Figures]:
    from benchkit.synthetic import write_logs

    folder.mkdir()
    write_logs(folder, spans)
    return {}


def _decode_and_save(folder: Path, _: int) -> dict[str, Figures]:
    import stallscope.run.decode  # noqa: F401 - imported before the clock runs

    run, decoding = _timed(lambda: _decoded(folder))
    _, saving = _timed(lambda: run.save(folder / "run"))
    return {"read and decode the logs": decoding, "Run.save (after decoding)": saving}


def _load(folder: Path, _: int) -> dict[str, Figures]:
    import stallscope as ss

    return {"load": _timed(lambda: ss.load(folder / "run"))[1]}


def _tables(folder: Path, _: int) -> dict[str, Figures]:
    import stallscope as ss
    import stallscope.run.summary

    run = ss.load(folder / "run")
    given = {"s": 0.0, "gb": _peak_gb()}
    _, stages = _timed(run.stages)
    _, samples = _timed(run.samples)
    both = {"s": stages["s"] + samples["s"], "gb": samples["gb"]}
    return {
        "the run itself, loaded": given,
        "Run.stages()": stages,
        "Run.samples(), after stages()": samples,
        "both tables": both,
    }


JOBS: dict[str, Callable[[Path, int], dict[str, Figures]]] = {
    "write": _write,
    "decode": _decode_and_save,
    "load": _load,
    "tables": _tables,
}


def _decoded(folder: Path) -> Run:
    """A run out of the logs, as `experiments.collect` puts one together."""
    import polars as pl

    from stallscope.hooks.stage_log import read_log
    from stallscope.run.decode import SPANS, decode
    from stallscope.run.result import DELIVERIES, STARTUP, STEPS, WAITS, Run

    parts = [decode(read_log(log), origin_ns=0) for log in sorted(folder.glob("*.events"))]
    late = pl.col("batch") >= WARM_UP_BATCHES
    return Run(
        all_spans=pl.concat([part.spans for part in parts]),
        all_samples=pl.concat([part.samples for part in parts]),
        batches=pl.concat([part.batches for part in parts]).with_columns(steady=late),
        all_steps=pl.DataFrame(schema=STEPS),
        waits=pl.DataFrame(schema=WAITS),
        deliveries=pl.DataFrame(schema=DELIVERIES),
        side_spans=pl.DataFrame(schema=SPANS),
        startup=pl.DataFrame(schema=STARTUP),
    )


def _timed(job: Callable[[], Any]) -> tuple[Any, Figures]:
    began = perf_counter()
    result = job()
    return result, {"s": perf_counter() - began, "gb": _peak_gb()}


def _peak_gb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return getrusage(RUSAGE_SELF).ru_maxrss * unit / 1e9


# --- the table ---------------------------------------------------------------------------------


def _report(figures: dict[str, list[Figures]], sizes: list[int]) -> str:
    head = ("job", *(f"{size:,} spans" for size in sizes), "time, times", "peak, times")
    rows = [_row(name, *pair) for name, pair in figures.items()]
    tables = figures["both tables"][-1]
    is_met = tables["s"] <= TARGET_S and tables["gb"] <= TARGET_GB
    return (
        f"{table(head, rows)}\n\n"
        f"target for both tables of the larger run: {TARGET_S} s and {TARGET_GB} GB -> "
        f"{met(is_met)} ({tables['s']:.2f} s, {tables['gb']:.2f} GB)"
    )


def _row(name: str, small: Figures, large: Figures) -> tuple[str, ...]:
    cells = [f"{_seconds(one)}, {one['gb']:.2f} GB" for one in (small, large)]
    grown = f"{large['s'] / small['s']:.1f}" if small["s"] else ""
    return name, *cells, grown, f"{large['gb'] / small['gb']:.1f}"


def _seconds(one: Figures) -> str:
    return f"{one['s']:.2f} s" if one["s"] else "-"


if __name__ == "__main__":
    main()
