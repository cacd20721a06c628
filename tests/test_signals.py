"""Signals at random moments, over all commands: how they end, what they keep, what they leave.

    STALLSCOPE_SIGNALS=200 pytest -m thorough tests/test_signals.py

Each number is one case, always the same but for the machine's speed; STALLSCOPE_SIGNALS_FROM is the
first one, so that many can be run in parts. The reader that goes away stands for SIGPIPE, which
Python ignores.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pytest

import stallscope as ss
from stallscope.files import sweep

NUMBER = int(os.environ.get("STALLSCOPE_SIGNALS", "20"))
FIRST = int(os.environ.get("STALLSCOPE_SIGNALS_FROM", "0"))
MOST_S = 90.0
"""So long a command may go on after a signal: a worker that is killed may hold what others need,
and then the watchdog ends it, after its grace."""
GONE_S = 30.0
"""So long processes may take to be gone: those of a killed one look for it every few seconds."""
LATE = 0.15
"""Share of the cases that begin with Python's own start, ..."""
START_S = 5.0
"""... which takes about so long."""
AT_ONCE = int(os.environ.get("STALLSCOPE_SIGNALS_AT_ONCE", "2"))
MARK = "STALLSCOPE_TESTED"
TARGET = """
import os, time, torch
from pathlib import Path
from torch.utils.data import DataLoader

class Slow:
    def __call__(self, value):
        time.sleep(0.004)
        return value + 1

class Compose:
    def __init__(self, transforms): self.transforms = transforms
    def __call__(self, value):
        for one in self.transforms:
            value = one(value)
        return value

class Numbers:
    def __init__(self): self.transform = Compose([Slow(), Slow(), torch.sin])
    def __len__(self): return 4000
    def __getitem__(self, index):
        if index == 40:
            Path("made").touch()
        return self.transform(torch.full((300, 300), float(index)))

def loader(): return DataLoader(Numbers(), batch_size=2, num_workers=2)
"""
SCRIPT = """
import mine
if __name__ == "__main__":
    for number, _ in enumerate(mine.loader()):
        if number == 150:
            break
"""
TRAINING = """
import mine, time
while True:
    for _ in mine.loader():
        time.sleep(0.05)
"""
COMMANDS = {
    "record": ["mine:loader", "--out", "out", "--batches", "150", "--budget", "5"],
    "diagnose": ["mine:loader", "--html", "report.html", "--budget", "4", "--step", "0.005"],
    "orders": ["mine:loader", "--samples", "4", "--budget", "4"],
    "lines": ["mine:loader", "--samples", "64"],
    "tune": ["mine:loader", "--budget", "6", "--step", "0.005"],
    "flame": ["PID", "--out", "flame.html", "--seconds", "2"],
    "run": ["--out", "out", "train.py"],
    "lab": ["--dir", "books", "--no-browser"],
    "notebooks": ["books"],
    "show": ["../saved"],
    "trace": ["../saved", "trace.json"],
}
OFTEN = ["record", "diagnose", "orders", "lines", "tune", "flame", "run"]
ENDS = {"diagnose": {0, 3, 4}, "lab": {143}}
"""Statuses of a command that nothing disturbs; of the others, 0."""
SIGNALS = ["INT", "TERM", "HUP", "PIPE", "KILL"]


@dataclass
class Case:
    """One command, and what became of it."""

    number: int
    verb: str
    name: str
    """Of the signal."""
    whom: str
    """'main', 'worker', or 'group' for all, as a terminal does."""
    at_s: float
    status: int | None = None
    said: str = ""
    sent: bool = False
    had_made: bool = False
    """Whether there were twenty batches when the signal came."""
    wrong: list[str] = field(default_factory=list)


class Command:
    """A command in a session of its own; it begins at once, or where its imports are made."""

    def __init__(self, verb, where, marked, pid, early=None):
        self.arguments = [verb, *(str(pid) if one == "PID" else one for one in COMMANDS[verb])]
        self.where, self.early = where, early
        self.status = None
        self.env = {
            MARK: marked,
            "TMPDIR": str(where.parent / "tmp"),
            "TQDM_DISABLE": "1",
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
        }
        out, self.err = where / "stdout", where / "stderr"
        os.mkfifo(out)
        self.reading = os.open(out, os.O_RDONLY | os.O_NONBLOCK)
        if early is not None:
            order = {"argv": self.arguments, "cwd": str(where), "env": self.env}
            self.pid = early.asked(**order, out=str(out), err=str(self.err))
            return
        with out.open("wb") as to_out, self.err.open("wb") as to_err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stallscope", *self.arguments],
                cwd=where,
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                start_new_session=True,
                env={**os.environ, **self.env},
            )
        self.pid = self.process.pid

    def is_over(self):
        """Whether it has ended; then its status is a shell's."""
        if self.status is None:
            code = self._code()
            self.status = 128 - code if code is not None and code < 0 else code
        return self.status is not None

    def _code(self):
        if self.early is None:
            return self.process.poll()
        status = self.early.asked(pid=self.pid)
        return None if status is None else os.waitstatus_to_exitcode(status)

    def read(self):
        """Take what it has printed by now."""
        with suppress(BlockingIOError):
            while self.reading is not None and os.read(self.reading, 1 << 16):
                pass

    def go_away(self):
        """Read no more."""
        if self.reading is not None:
            os.close(self.reading)
            self.reading = None

    def wait(self, most_s):
        """Read it until its end; returns whether that came."""
        until_s = time.monotonic() + most_s
        while not self.is_over() and time.monotonic() < until_s:
            self.read()
            time.sleep(0.02)
        return self.is_over()

    def said(self):
        """What it has written to stderr."""
        return self.err.read_text(errors="replace") if self.err.exists() else ""


class Early:
    """The process that starts commands early; several threads ask it."""

    def __init__(self):
        self.turn = threading.Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.early_start"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def asked(self, **order):
        """Its answer."""
        with self.turn:
            print(json.dumps(order), file=self.process.stdin, flush=True)
            return json.loads(self.process.stdout.readline())


def family(marked, session):
    """Processes of a command that still live: of its session, or called by it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            is_dead = process.status() == psutil.STATUS_ZOMBIE
            is_of_it = os.getsid(process.pid) == session or process.environ().get(MARK) == marked
            if is_of_it and not is_dead:
                found.append(process)
    return found


@dataclass
class Ground:
    """Where the cases happen."""

    folder: Path
    """With a saved run."""
    training: subprocess.Popen
    """Goes on all the time."""
    early: Early
    takes_s: dict[str, float]
    """How long each command takes, begun early."""


@pytest.fixture(scope="module")
def ground():
    """A folder with a saved run, a training that goes on, and how long each command takes."""
    with tempfile.TemporaryDirectory(prefix="signals-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        training = subprocess.Popen(
            [sys.executable, "-c", TRAINING],
            cwd=furnished(folder / "training"),
            stderr=subprocess.DEVNULL,
        )
        early = Early()

        def undisturbed_s(verb):
            where, began_s = furnished(folder / f"undisturbed-{verb}"), time.monotonic()
            command = Command(verb, where, f"{folder}/{verb}", training.pid, early)
            if verb == "lab":
                command.wait(5)
                os.kill(command.pid, signal.SIGTERM)
            assert command.wait(MOST_S), verb
            command.go_away()
            assert command.status in ENDS.get(verb, {0}), (verb, command.said())
            return time.monotonic() - began_s

        takes_s = {"record": undisturbed_s("record")}
        shutil.move(folder / "undisturbed-record" / "out", folder / "saved")
        others = [verb for verb in COMMANDS if verb != "record"]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            takes_s.update(zip(others, pool.map(undisturbed_s, others), strict=True))
        yield Ground(folder, training, early, takes_s)
        assert training.poll() is None, "flame ended the training"
        training.kill()
        training.wait()
        early.process.stdin.close()
        early.process.wait()


def furnished(where):
    """A new current folder with a target and a script."""
    where.mkdir()
    (where / "mine.py").write_text(TARGET)
    (where / "train.py").write_text(SCRIPT)
    return where


def tried(number, ground):
    """Run one case."""
    chance = random.Random(number)
    verb = chance.choice([*COMMANDS, *OFTEN])
    whom = chance.choice(["main", "main", "main", "group", "worker"])
    starts_late = chance.random() < LATE
    most_s = ground.takes_s[verb] + (START_S if starts_late else 0.0)
    case = Case(number, verb, chance.choice(SIGNALS), whom, chance.uniform(0.05, 0.6 * most_s))
    where, marked = furnished(ground.folder / f"case{number}"), f"{ground.folder}/{number}"
    early = None if starts_late else ground.early
    command = Command(verb, where, marked, ground.training.pid, early)
    command.wait(case.at_s)
    pids = send(case, command)
    case.had_made = case.sent and (where / "made").exists()
    if verb == "lab" and (case.name == "PIPE" or case.whom == "worker" or not case.sent):
        command.wait(2)
        with suppress(ProcessLookupError):
            os.kill(command.pid, signal.SIGTERM)
    if not command.wait(MOST_S):
        case.wrong.append(f"did not end within {MOST_S} s")
        os.kill(command.pid, signal.SIGKILL)
        command.wait(MOST_S)
    command.go_away()
    case.status, case.said = command.status, command.said()
    until_s = time.monotonic() + GONE_S
    while (left := family(marked, command.pid)) and time.monotonic() < until_s:
        time.sleep(0.1)
    for one in left:
        with suppress(psutil.Error):
            case.wrong.append(f"process left: {one.cmdline()}")
            one.kill()
    temporary = ground.folder / "tmp"
    sweep(temporary)  # as the next start does
    if case.name != "KILL" and case.whom == "main":  # else torch's own stay, as without us
        mine = [path for path in temporary.iterdir() if str(command.pid) in path.name]
        case.wrong += [f"temporary folder left: {path.name}" for path in mine]
    mine = [path.name for path in temporary.glob("stallscope-*") if path.name.split("-")[1] in pids]
    case.wrong += [f"not swept: {name}" for name in mine]
    shared = [path.name for path in Path("/dev/shm").glob("*_*")]
    case.wrong += [f"shared memory left: {name}" for name in shared if name.split("_")[1] in pids]
    judge(case, where)
    shutil.rmtree(where)
    return case


def send(case, command):
    """Send the signal, or go away as a reader; returns the processes that there were, as texts."""
    pids = {str(command.pid)}
    with suppress(psutil.Error, ProcessLookupError):
        children = psutil.Process(command.pid).children(recursive=True)
        pids |= {str(one.pid) for one in children}
        number = getattr(signal, f"SIG{case.name}")
        case.sent = not command.is_over() and (case.whom != "worker" or bool(children))
        if not case.sent:
            return pids
        if case.whom == "worker":
            random.Random(case.number).choice(children).send_signal(number)
        elif case.name == "PIPE":
            command.go_away()
        elif case.whom == "group":
            os.killpg(command.pid, number)
        else:
            os.kill(command.pid, number)
    return pids


def judge(case, where):
    """Add what is wrong."""
    usual = ENDS.get(case.verb, {0})
    number = 128 + getattr(signal, f"SIG{case.name}")
    allowed = {*usual, number} if case.sent else usual
    if case.sent and case.whom != "main":  # torch says that a worker has died
        allowed = {*allowed, *range(3)}
    if case.status not in allowed:
        case.wrong.append(f"status {case.status}, not one of {sorted(allowed)}")
    is_quiet = case.name in ("INT", "TERM", "HUP", "PIPE") and case.whom == "main"
    if case.verb != "run" and is_quiet and "Traceback" in case.said and "torch" in case.said:
        case.wrong.append("a traceback")
    for run in ("out", "lab"):
        if (where / run / "run.json").exists():
            ss.load(where / run)
    was_asked = case.verb in ("record", "run") and case.had_made and case.status == number
    if was_asked and (case.name in ("INT", "TERM", "HUP") or case.verb == "run"):
        try:
            steps = ss.load(where / "out").all_steps.height
        except Exception as error:  # noqa: BLE001 - whatever it is
            case.wrong.append(f"the run is lost: {error}")
        else:
            case.wrong += [] if steps > 5 else [f"only {steps} steps were kept"]


@pytest.mark.thorough
@pytest.mark.timeout(7200)
def test_at_random_moments(ground):
    """A shell's status, the result so far where it was asked for, and nothing left."""
    cases = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for case in pool.map(partial(tried, ground=ground), range(FIRST, FIRST + NUMBER)):
            cases.append(case)
            came = f"after {case.at_s:.1f} s" if case.sent else "too late"
            told = f"{case.number}: {case.verb}, SIG{case.name} to {case.whom} {came}"
            print(f"{told}: {case.status} {case.wrong or ''}", flush=True)

    ended = Counter(f"{one.name} {one.status}" for one in cases if one.sent)
    print(f"{ended.total()} of {len(cases)} came in time; signals and statuses: {dict(ended)}")
    wrong = [one for one in cases if one.wrong]
    assert [] == wrong, "\n\n".join(f"{one}\n{one.said[-2000:]}" for one in wrong)
