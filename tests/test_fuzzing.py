"""Damaged and forged results: each opens or is refused in one sentence, without side effects.

The number of a mutation is its seed, so that one that failed can be made again.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest
from support.loaders import Noise
from surface.built import built
from torch.utils.data import DataLoader

from stallscope.hooks.recording_folder import LogPlace
from stallscope.run import script

MANY = int(os.environ.get("STALLSCOPE_MUTATIONS", "40"))
SOURCES = ("run", "log", "flame", "diagnosis")
LARGEST = 1 << 24
"""Larger ones a mutation has made, and no other takes them in hand."""
MOST_S = 5.0
"""Seconds after which a load counts as hanging."""
MOST_CPU_S = 1.0
"""CPU seconds that a load may take, in this process and its children."""
MOST_BYTES = 100_000_000
"""Bytes that a load may add, in the process or in a child."""

ODD = (
    *(None, True, -1, 0, 2**31, 2**63, 10**400, 1.5, float("nan")),
    *("", "\x1b[2J", [], {}, [[]], "x" * 9999),
)
VALUES = (None, -1, 2**31, 2**62, float("inf"), "\x1b]52;c;eA==\x07", [1], {"a": 1}, b"x")


def any_file(folder, chance, suffix=""):
    files = sorted(
        path
        for path in folder.rglob(f"*{suffix}")
        if path.is_file() and path.lstat().st_size < LARGEST
    )
    return chance.choice(files) if files or not suffix else any_file(folder, chance)


def bytes_changed(folder, chance):
    file = any_file(folder, chance)
    data = bytearray(file.read_bytes())
    for _ in range(chance.randint(1, 8)):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
    file.write_bytes(data)


def cut(folder, chance):
    file = any_file(folder, chance)
    data = file.read_bytes()
    file.write_bytes(data[: chance.randint(0, len(data))])


def larger(folder, chance):
    file = any_file(folder, chance)
    if chance.random() < 0.5:
        file.write_bytes(file.read_bytes() * 2)
    else:
        os.truncate(file, chance.choice([1 << 20, 1 << 30, 1 << 36]))


def words_changed(folder, chance):
    """Change integers of a log instead of single bytes."""
    file = any_file(folder, chance, ".events")
    data = file.read_bytes()
    words = np.frombuffer(data, np.int64, len(data) // 8).copy()
    for _ in range(chance.randint(1, 6)):
        if words.size:
            words[chance.randrange(min(words.size, 600))] = chance.choice(
                [0, 1, -1, 2**62, -(2**63), chance.getrandbits(63), chance.randrange(1 << 20)]
            )
    file.write_bytes(words.tobytes())


def field_changed(folder, chance):
    file = any_file(folder, chance, chance.choice([".json", ".names", ".paths", ".resources"]))
    lines = file.read_text(errors="replace").splitlines()
    if file.suffix == ".json":
        lines = ["\n".join(lines)]
    if not lines:
        return
    at = chance.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except ValueError:
        return
    whole = {"value": value}
    holder, key = whole, "value"
    for _ in range(chance.randint(1, 4)):
        here = holder[key]
        if not isinstance(here, dict | list) or not here:
            break
        keys = list(here) if isinstance(here, dict) else range(len(here))
        holder, key = here, chance.choice(keys)
    if holder is not whole and chance.random() < 0.2:
        del holder[key]
    else:
        holder[key] = chance.choice(ODD)
    lines[at] = json.dumps(whole.get("value"))
    file.write_text("\n".join(lines) + "\n")


def column_changed(folder, chance):
    file = any_file(folder, chance, ".arrow")
    try:
        table = pl.read_ipc(file)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return
    name = chance.choice(table.columns)
    rows = chance.choice([table.height, table.height, 3_000_000])
    value = pl.Series([chance.choice(VALUES)], strict=False)
    if rows != table.height:
        table = pl.select(**{column: pl.repeat(0, rows, dtype=pl.Int8) for column in table.columns})
    table.with_columns(value.new_from_index(0, rows).alias(name)).write_ipc(file)


def replaced(folder, chance):
    """Put a link, a pipe, a folder or nothing in the place of a file or a folder."""
    paths = sorted(folder.rglob("*"))
    path = chance.choice(paths)
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    match chance.randrange(6):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to("/dev/zero")
        case 2:
            path.symlink_to(folder)
        case 3:
            path.mkdir()
        case 4:
            path.symlink_to(path.name)


MUTATIONS = (
    bytes_changed, cut, larger, words_changed, field_changed, column_changed, replaced,
)  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return a folder of each kind."""
    place = tmp_path_factory.mktemp("sources")
    for name in ("run", "flame", "diagnosis"):
        built(name).save(place / name)
    a_log(place / "log")
    return place


def a_log(folder):
    """Return the logs of a recording whose process was killed."""
    loader = DataLoader(Noise(64), 4, num_workers=1)
    logs = folder / "logs"
    saved = folder.with_name("kept")
    watch = script.watching(folder, name="train.py", warmup=1, done=lambda _: None)
    with watch:
        for _ in loader:
            pass
        shutil.copytree(logs, saved)
    shutil.rmtree(folder)
    folder.mkdir()
    saved.rename(logs)
    assert LogPlace(logs, 0).logs()


class Opened(NamedTuple):
    number: int
    mutations: list[str]
    refusal: str
    """Reason of the refusal; empty: it was opened."""
    seconds: float
    cpu_s: float
    used_bytes: int


OPEN = """
import json, resource, sys, time, traceback
import stallscope as ss
from stallscope.errors import RunFormatError
CONTROLS = {chr(code) for code in [*range(9), *range(11, 32), *range(127, 160)]}
ss.load(sys.argv[1])  # what is loaded once
WHO = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
def both(): return [resource.getrusage(one) for one in WHO]
def used(): return max(one.ru_maxrss for one in both()) * 1024
def cpu(): return sum(one.ru_utime + one.ru_stime for one in both())
for line in sys.stdin:
    began, before, cpu_s = time.monotonic(), used(), cpu()
    try:
        found = ss.load(line.strip())
        cpu_s = cpu() - cpu_s
        said, text = "", str(found)
        assert not set(text) & CONTROLS, repr(text)
    except RunFormatError as error:
        cpu_s, said = cpu() - cpu_s, str(error)
    except BaseException as error:
        said = "TRACEBACK " + "".join(traceback.format_exception(error))[-3000:]
    print(json.dumps([said, time.monotonic() - began, cpu_s, used() - before]), flush=True)
"""


def opened(sources, tmp_path, numbers):
    """Mutate a result for each number, and open it in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", OPEN, str(sources / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as reader:
        for number in numbers:
            chance = random.Random(number)
            folder = tmp_path / str(number)
            shutil.copytree(sources / chance.choice(SOURCES), folder)
            names = []
            for _ in range(chance.randint(1, 3)):
                mutate = chance.choice(MUTATIONS)
                with suppress(IndexError):  # no file is left
                    mutate(folder, chance)
                    names.append(mutate.__name__)
            reader.stdin.write(f"{folder}\n")
            reader.stdin.flush()
            yield Opened(number, names, *json.loads(reader.stdout.readline()))
            shutil.rmtree(folder)
        reader.stdin.close()


def is_bad(opened):
    text = (
        opened.refusal.startswith("TRACEBACK") or "\n" in opened.refusal or "\x1b" in opened.refusal
    )
    slow = opened.seconds > MOST_S or opened.cpu_s > MOST_CPU_S
    return text or slow or opened.used_bytes > MOST_BYTES


@pytest.mark.slow
def test_mutations(sources, tmp_path):
    """No mutation leads to a traceback, a control character, a hang or gigabytes."""
    seen = list(opened(sources, tmp_path, range(MANY)))

    assert [] == list(filter(is_bad, seen))
    assert MANY / 4 < sum(bool(opened.refusal) for opened in seen) < MANY
