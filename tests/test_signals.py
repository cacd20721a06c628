"""Signals at random moments, over all commands: how they end, what they keep, what they leave.

    STALLSCOPE_SIGNALS=200 pytest -m thorough tests/test_signals.py

Each number is one case, always the same but for the machine's speed; STALLSCOPE_SIGNALS_FROM is the
first one, so that many can be run in parts. The reader that goes away stands for SIGPIPE, which
Python ignores.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
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
    """One command, and the result of a signal to it."""

    number: int
    verb: str
    name: str
    """Of the signal."""
    whom: str
    """'main', 'worker', or 'group' for all, as a terminal does."""
    at_s: float
    status: int | None = None
    printed: str = ""
    sent: bool = False
    had_batches: bool = False
    """Whether there were twenty batches when the signal came."""
    wrong: list[str] = field(default_factory=list)


class Command:
    """A command in a session of its own."""

    def __init__(self, verb, where, marked, pid):
        arguments = [str(pid) if one == "PID" else one for one in COMMANDS[verb]]
        out, self.err = where / "stdout", where / "stderr"
        os.mkfifo(out)
        self.reading = os.open(out, os.O_RDONLY | os.O_NONBLOCK)
        environment = {
            MARK: marked,
            "TMPDIR": str(where.parent / "tmp"),
            "TQDM_DISABLE": "1",
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
        }
        with out.open("wb") as to_out, self.err.open("wb") as to_err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stallscope", verb, *arguments],
                cwd=where,
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        self.pid = self.process.pid

    @property
    def status(self):
        """A shell's status; None while it runs."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def go_away(self):
        """Read no more."""
        if self.reading is not None:
            os.close(self.reading)
            self.reading = None

    def wait(self, most_s):
        """Read its output until its end; return whether that came."""
        until_s = time.monotonic() + most_s
        while self.status is None and time.monotonic() < until_s:
            with suppress(BlockingIOError):
                while self.reading is not None and os.read(self.reading, 1 << 16):
                    pass
            time.sleep(0.02)
        return self.status is not None


def family(marked, session):
    """Return processes of a command that still live: of its session, or called by it."""
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
    takes_s: dict[str, float]
    """Time of each command that nothing disturbs."""


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

        def undisturbed_s(verb):
            where, began_s = furnished(folder / f"undisturbed-{verb}"), time.monotonic()
            command = Command(verb, where, f"{folder}/{verb}", training.pid)
            if verb == "lab":
                command.wait(10)
                os.kill(command.pid, signal.SIGTERM)
            assert command.wait(MOST_S), verb
            command.go_away()
            assert command.status in ENDS.get(verb, {0}), (verb, command.err.read_text())
            return time.monotonic() - began_s

        takes_s = {"record": undisturbed_s("record")}
        shutil.move(folder / "undisturbed-record" / "out", folder / "saved")
        others = [verb for verb in COMMANDS if verb != "record"]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            takes_s.update(zip(others, pool.map(undisturbed_s, others), strict=True))
        yield Ground(folder, training, takes_s)
        assert training.poll() is None, "flame ended the training"
        training.kill()
        training.wait()


def furnished(where):
    """Make a new current folder with a target and a script."""
    where.mkdir()
    (where / "mine.py").write_text(TARGET)
    (where / "train.py").write_text(SCRIPT)
    return where


def tried(number, ground):
    """Run one case."""
    chance = random.Random(number)
    verb = chance.choice([*COMMANDS, *OFTEN])
    whom = chance.choice(["main", "main", "main", "group", "worker"])
    at_s = chance.uniform(0.05, 0.6 * ground.takes_s[verb])
    case = Case(number, verb, chance.choice(SIGNALS), whom, at_s)
    where, marked = furnished(ground.folder / f"case{number}"), f"{ground.folder}/{number}"
    command = Command(verb, where, marked, ground.training.pid)
    command.wait(case.at_s)
    pids = send(case, command)
    case.had_batches = case.sent and (where / "made").exists()
    if verb == "lab" and (case.name == "PIPE" or case.whom == "worker" or not case.sent):
        command.wait(2)
        with suppress(ProcessLookupError):
            os.kill(command.pid, signal.SIGTERM)
    if not command.wait(MOST_S):
        case.wrong.append(f"did not end within {MOST_S} s")
        os.kill(command.pid, signal.SIGKILL)
        command.wait(MOST_S)
    command.go_away()
    case.status, case.printed = command.status, command.err.read_text(errors="replace")
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
    """Send the signal, or go away as a reader; return the processes that there were, as texts."""
    pids = {str(command.pid)}
    with suppress(psutil.Error, ProcessLookupError):
        children = psutil.Process(command.pid).children(recursive=True)
        pids |= {str(one.pid) for one in children}
        number = getattr(signal, f"SIG{case.name}")
        case.sent = command.status is None and (case.whom != "worker" or bool(children))
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
    if case.verb != "run" and is_quiet and "Traceback" in case.printed and "torch" in case.printed:
        case.wrong.append("a traceback")
    was_asked = case.verb in ("record", "run") and case.had_batches and case.status == number
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
    with ThreadPoolExecutor(AT_ONCE) as pool:
        cases = list(pool.map(partial(tried, ground=ground), range(FIRST, FIRST + NUMBER)))
    for case in cases:
        came = f"after {case.at_s:.1f} s" if case.sent else "too late"
        what = f"{case.number}: {case.verb}, SIG{case.name} to {case.whom} {came}"
        print(f"{what}: {case.status} {case.wrong or ''}", flush=True)

    wrong = [one for one in cases if one.wrong]
    assert [] == wrong, "\n\n".join(f"{one}\n{one.printed[-2000:]}" for one in wrong)
