"""Visible libraries that read and decode: the table in docs/what_is_seen.md, by trying.

    python tests/seen_table.py                   # print it, of the libraries that are installed
    python tests/seen_table.py PyAV SimpleITK    # these alone
    python tests/seen_table.py --write           # put it into the page

Each row is one small pipeline (`support/library_readers.py`), run by itself first, with a stopwatch
around the library, then recorded in two workers, then asked for its verdict.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from support.libraries import same
from support.library_readers import FILES, READERS, OneLibrary, own_work
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.units import share

PAGE = Path(__file__).parents[1] / "docs" / "what_is_seen.md"
BEGIN, END = "<!-- seen: python tests/seen_table.py --write -->", "<!-- /seen -->"
HEAD = "| library | what is read | batches | named | by hand | as | verdict |\n|" + " --- |" * 7
WORKERS, BATCH, PASSES = 2, 4, 3
BUDGET_S = 15.0


class Seen(NamedTuple):
    """Findings of one library's pipeline."""

    identical: bool
    """True: the recorded batches are those of the plain loader, to the last bit."""
    named: float
    """Share (0 to 1) of the samples' time that is not `getitem`."""
    by_hand: float
    """The same by a stopwatch around the library, in one process without us."""
    kinds: tuple[str, ...]
    """Kinds of the stages that were seen, the longest first."""
    verdict: str
    """Code of the verdict; empty where none was asked for."""


def loader(library: str, folder: Path) -> DataLoader:
    """Two workers that read; they live on, as an epoch is too short to start them for."""
    dataset = OneLibrary(library, folder)
    return DataLoader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True)


def by_hand(library: str, folder: Path) -> tuple[float, float]:
    """Seconds that a sample takes in the library, and in all; of the quickest pass."""
    read, passes = READERS[library].read, []
    for _ in range(PASSES):
        inside_s = whole_s = 0.0
        for number in range(FILES):
            began = time.perf_counter()
            values = read(folder, number)
            inside_s += time.perf_counter() - began
            own_work(values)
            whole_s += time.perf_counter() - began
        passes.append((whole_s / FILES, inside_s / FILES))
    whole_s, inside_s = min(passes)
    return inside_s, whole_s


def seen(library: str, folder: Path, *, verdict: bool = True) -> Seen:
    reader = READERS[library]
    reader.write(folder)
    inside_s, whole_s = by_hand(library, folder)
    plain = list(loader(library, folder))
    with ss.instrumented() as watch:
        recorded = list(loader(library, folder))
    spans = watch.run.spans(steady=False).drop_nulls("sample")
    own_ns, by_kind = 0, Counter[str]()
    for stage, kind, begin_ns, end_ns in spans.select(
        "stage", "kind", "start_ns", "end_ns"
    ).iter_rows():
        if stage == "getitem":
            own_ns += end_ns - begin_ns
        else:
            by_kind[kind] += end_ns - begin_ns
    code = ""
    if verdict:
        step = ss.simulated_step(max(whole_s * BATCH / WORKERS / 4, 0.0005))
        code = ss.diagnose(
            loader(library, folder), step, budget_s=BUDGET_S, prove=False
        ).verdict.code
    return Seen(
        identical=len(plain) == len(recorded) and all(map(same, plain, recorded)),
        named=1 - own_ns / (own_ns + by_kind.total()),
        by_hand=inside_s / whole_s,
        kinds=tuple(kind for kind, _ in by_kind.most_common()),
        verdict=code,
    )


def version_of(library: str) -> str:
    """Return the version of the library that is installed here."""
    top = READERS[library].module.partition(".")[0]
    for package in (READERS[library].package, *packages_distributions().get(top, ())):
        with suppress(PackageNotFoundError):
            return version(package or top)
    return ""


def why_absent(library: str) -> str:
    """Return the reason why a library cannot be run here; empty where it can."""
    try:
        importlib.import_module(READERS[library].module)
    except (ImportError, RuntimeError, OSError) as error:
        return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
    return ""


def row(library: str) -> str:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    reads = READERS[library].reads
    if why := why_absent(library):
        return f"| {library} | {reads} | not run: {why} | | | | |"
    with tempfile.TemporaryDirectory() as folder:
        result = seen(library, Path(folder))
    same_ = "identical" if result.identical else "**differ**"
    figures = f"{share(result.named)} | {share(result.by_hand)} | {', '.join(result.kinds)}"
    return f"| {library} {version_of(library)} | {reads} | {same_} | {figures} | {result.verdict} |"


def rows(libraries: list[str]) -> list[str]:
    """Return the rows, each from a process of its own: libraries start threads."""
    collected = []
    for library in libraries:
        command = [sys.executable, __file__, "--row", library]
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
        lines = re.findall(r"^\| .*\|$", process.stdout, re.MULTILINE)
        collected += lines or [
            f"| {library} | | failed: {process.stderr.strip()[-200:]!r} | | | | |"
        ]
        print(collected[-1], flush=True)
    return collected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", nargs="*", help="these alone", default=list(READERS))
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="put it into the page")
    asked = parser.parse_args()
    if asked.row:
        print(row(asked.row))
        return
    table = "\n".join([HEAD, *rows(asked.library)])
    if asked.write:
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        tail = rest.partition(END)[2]
        PAGE.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
