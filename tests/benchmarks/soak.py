"""A long `stallscope run`: memory, disk and cost per step while it goes on, and after a kill.

A script iterates a DataLoader whose samples cost nothing, with a step of a fraction of a
millisecond, with persistent workers and with workers that are started again for each epoch. It runs
bare and under `stallscope run`, whose limit of all logs is lowered so that it is met, both in turn.
Every few thousand steps it says what it needed since; the first such piece, with the start in it,
is left out of the ratios. The recorded runs are opened at the end: what a saved one kept, and what
is left of one that was killed with SIGKILL half way.

The clock is the CPU time of the thread of the loop. The ratio is the time bare over the time
recorded, piece by piece.

    python tests/benchmarks/soak.py
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from benchkit.command import Option, arguments, table
from benchkit.pairing import ratio
from tqdm import tqdm

import stallscope as ss

SCRIPT = """
import json, sys, time
from torch.utils.data import DataLoader

steps, piece, epoch, persistent = map(int, sys.argv[1:])
loader = DataLoader(range(2 * epoch), 2, num_workers=2, persistent_workers=bool(persistent))
done, began = 0, time.thread_time_ns()
while done < steps:
    for batch in loader:
        time.sleep(0.0003)
        done += 1
        if done % piece == 0:
            print(json.dumps([done, (time.thread_time_ns() - began) / piece / 1e3]), flush=True)
            sys.stdin.readline()  # until the sizes are read
            began = time.thread_time_ns()
"""
LAUNCHER = """
import functools, sys
from stallscope.cli.main import main
from stallscope.hooks import recording_folder

most_bytes, stretch_ns = int(sys.argv.pop(1)), int(sys.argv.pop(1))
recording_folder.LogPlace = functools.partial(
    recording_folder.LogPlace, most_bytes=most_bytes, stretch_ns=stretch_ns
)
sys.exit(main())
"""
HEAD = ("workers", "steps", "RSS, MB", "workers' RSS, MB", "logs, MB", "us a step", "bare", "ratio")

Piece = dict[str, float]


def main() -> None:
    options = arguments(
        __doc__,
        steps=Option(100_000, 60, "of each run"),
        piece=Option(5_000, 20, "steps between two looks"),
        epoch=Option(2_000, 30, "steps of an epoch"),
        most_mb=Option(24, 24, "all logs together, MB"),
        stretch_s=Option(1.0, 1.0, "length of a stretch, see `hooks/recording_folder.py`"),
        workers=Option(["persistent", "respawned"], ["respawned"], "these"),
    )
    rows, sentences = [], []
    with tempfile.TemporaryDirectory(prefix="benchmark-soak-") as name:
        folder = Path(name)
        (folder / "soak.py").write_text(SCRIPT, encoding="utf-8")
        for kind in options.workers:
            # In turn: a process waits after each piece until its sizes are read
            both = zip(
                _pieces(options, folder, kind, None),
                _pieces(options, folder, kind, folder / kind),
                strict=True,
            )
            bare, recorded = map(list, zip(*both, strict=True))
            rows += _rows(kind, bare, recorded)
            sentences += _ratio(kind, bare, recorded)
            sentences += _opened(kind, folder / kind)
        killed = _pieces(
            options, folder, "respawned", folder / "killed", kill_at=options.steps // 2
        )
        assert list(killed)
        sentences += _opened("killed", folder / "killed")
    print("\n".join([table(HEAD, rows), "", *sentences]))


def _pieces(
    options: Namespace, folder: Path, kind: str, out: Path | None, kill_at: int | None = None
) -> Iterator[Piece]:
    """Run the script once; return its needs piece by piece."""
    numbers = (options.steps, options.piece, options.epoch, int(kind == "persistent"))
    script = [str(folder / "soak.py"), *map(str, numbers)]
    limits = [str(options.most_mb * 1_000_000), str(int(options.stretch_s * 1e9))]
    launched = ["-c", LAUNCHER, *limits, "run", "--out", str(out), *script]
    process = subprocess.Popen(
        [sys.executable, *(launched if out else script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    name = f"{kind}, {'recorded' if out else 'bare'}"
    with process, tqdm(total=options.steps, desc=name, unit="step", leave=False) as bar:
        for line in process.stdout:
            if not line.startswith("["):
                continue
            done, step_us = json.loads(line)
            bar.update(done - bar.n)
            yield {"steps": done, "us": step_us, **_sizes(process.pid, out)}
            if kill_at is not None and done >= kill_at:
                os.killpg(process.pid, signal.SIGKILL)
                break
            process.stdin.write("\n")
            process.stdin.flush()


def _sizes(pid: int, out: Path | None) -> Piece:
    """Return memory of the processes and size of the logs, MB."""
    process = psutil.Process(pid)
    workers = [child.memory_info().rss for child in process.children()]
    logs = [path.stat().st_size for path in (out / "logs").iterdir()] if out else []
    return {
        "rss": process.memory_info().rss / 1e6,
        "workers": max(workers, default=0) / 1e6,
        "logs": sum(logs) / 1e6,
    }


def _rows(kind: str, bare: list[Piece], recorded: list[Piece]) -> list[tuple[str, ...]]:
    return [
        (
            kind,
            f"{watched['steps']:,}",
            *(f"{watched[name]:.1f}" for name in ("rss", "workers", "logs", "us")),
            f"{plain['us']:.1f}",
            f"{plain['us'] / watched['us']:.3f}",
        )
        for plain, watched in zip(bare, recorded, strict=True)
    ]


def _ratio(kind: str, bare: list[Piece], recorded: list[Piece]) -> list[str]:
    """Return the cost over all pieces but the first, and whether it grows."""
    without, with_us = (np.array([piece["us"] for piece in run[1:]]) for run in (bare, recorded))
    half = without.size // 2
    parts = {"all": slice(None), "first half": slice(half), "second half": slice(half, None)}
    sentences = []
    for name, part in parts.items():
        if without[part].size > 1:
            slowdown = ratio(without[part], with_us[part])
            added = float(np.median(with_us[part] - without[part]))
            between = slowdown.interval(".3f")
            sentences.append(
                f"{kind}, {name}: {slowdown.centre:.3f} {between}, {added:+.0f} us a step"
            )
    return sentences


def _opened(kind: str, folder: Path) -> list[str]:
    """Return the summary of the run when it is opened."""
    run: Any = ss.load(folder)
    starts_s = run.all_steps["start_ns"].sort() / 1e9
    length_s = starts_s[-1] - starts_s[0]
    at = ", ".join(f"{(starts_s - starts_s[0]).quantile(q) or 0:.0f}" for q in (0, 0.25, 0.5, 0.75))
    notes = [note for note in run.notes if "kept" in note or "ended before" in note]
    head = f"{kind}: {run.all_steps.height:,} steps of {length_s:.0f} s, quartiles at {at} s"
    return list(itertools.chain([head], notes))


if __name__ == "__main__":
    main()
