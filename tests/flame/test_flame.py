"""Real workers, looked into by the real py-spy; and what happens where it may not look."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from contextlib import contextmanager

import polars as pl
import psutil
import pytest
import torch
from support import busy_loaders
from support.busy_loaders import DiesSoon, Planted, PlantedStream, Raises, ShortAtFirst
from support.loaders import Noise
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope import pyspy_calls
from stallscope.errors import RunFormatError
from stallscope.flame.flame import loop_flame
from stallscope.flame.result import IN_PROCESS, PY_SPY, SAMPLES
from stallscope.targets.target import target

OURS = re.compile(
    r"stallscope/((hooks|targets|loops|run|flame|ladder)/|isolation)|passed over by warnings"
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attaching needs root there")


@pytest.fixture
def loader():
    """Two workers that are busy."""
    return DataLoader(Planted(), 2, num_workers=2)


@contextmanager
def started(workers):
    """A training in a process of its own, until the end: its process, the ids of its workers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.busy_loaders", "--train", str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield process, [int(pid) for pid in process.stdout.readline().split()]
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="class")
def training():
    """Two workers, for all who only look."""
    with started(2) as running:
        yield running


def no_py_spy(monkeypatch):
    """As where it is not installed."""
    monkeypatch.setattr(pyspy_calls, "executable", lambda: None)


def compute(_batch):
    """A step that keeps a core busy."""
    sum(range(1_000_000))


def stages(flame):
    """Every stage in which something was seen."""
    return set(flame.samples["stage"].drop_nulls())


def notes(flame):
    """What it says, in one text."""
    return "\n".join(flame.notes)


@pytest.fixture(scope="class")
def recorded():
    """What was seen in the workers of a real loader; the generators are where they were."""
    before = torch.get_rng_state()
    flame = ss.flame(DataLoader(Planted(), 2, num_workers=2), seconds=0.7)
    assert torch.equal(before, torch.get_rng_state())
    return flame


def test_names_code_that_lies_elsewhere(tmp_path, monkeypatch):
    """A notebook imports the user's module from a folder that is neither its own nor a project."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "elsewhere.py").write_text(
        "class Slow:\n"
        "    def __len__(self):\n"
        "        return 100_000\n"
        "    def __getitem__(self, index):\n"
        "        return sum(n * n for n in range(20_000))\n"
    )
    monkeypatch.chdir(tmp_path / "lab")
    monkeypatch.syspath_prepend(str(tmp_path))
    dataset = importlib.import_module("elsewhere").Slow()

    stacks = ss.flame(DataLoader(dataset, 2, num_workers=1), seconds=0.7).samples["stack"]

    assert stacks.str.contains(f"Slow.__getitem__ ({tmp_path}/elsewhere.py:5", literal=True).any()


class TestOfALoader:
    def test_sees_every_worker(self, recorded):
        """Each worker of the loader is in it, by its number and its process."""
        circumstances, samples = recorded.circumstances, recorded.samples

        assert (PY_SPY, 2) == (circumstances.how, circumstances.num_workers)
        assert [0, 1] == samples["worker"].unique().sort().to_list()
        assert 2 == samples["pid"].n_unique()
        assert SAMPLES == dict(samples.schema)

    def test_knows_the_stage(self, recorded):
        """A sample inside of a transform is one of the stage that has the transform's name."""
        inside = recorded.samples.filter(pl.col("stack").str.contains(".sixty (", literal=True))

        assert {"Sixty"} == set(inside["stage"])
        assert {"Sixty", "TwentyFive", "getitem"} <= stages(recorded)

    def test_shows_no_frame_of_ours(self, recorded):
        """The stacks begin at the worker's loop and hold what the user would see without us."""
        stacks = recorded.stacks()["stack"].to_list()

        assert not [stack for stack in stacks if OURS.search(stack)]
        assert any(stack.startswith("_worker_loop (torch/utils/data/_utils/") for stack in stacks)
        assert not [stack for stack in stacks if "<module>" in stack]

    def test_goes_through_a_file(self, recorded, tmp_path):
        """What was saved is loaded."""
        loaded = ss.Flame.load(recorded.save(tmp_path / "flame"))

        assert recorded.samples.equals(loaded.samples)
        assert (recorded.circumstances, recorded.notes) == (loaded.circumstances, loaded.notes)

    @pytest.mark.slow
    def test_counts_windows(self, loader):
        """Consecutive samples of a process share a window, of half a second."""
        windows = ss.flame(loader, seconds=1.2, rate_hz=100).samples["window"]

        assert windows.max() in range(1, 4)
        assert 0 == windows.min()

    @pytest.mark.slow
    def test_without_workers(self):
        """The main process is sampled, and it says so."""
        flame = ss.flame(DataLoader(Planted(), 2), seconds=0.5)

        assert "the main process was sampled" in notes(flame)
        assert {os.getpid()} == set(flame.samples["pid"])
        assert [None] == flame.samples["worker"].unique().to_list()
        assert "Sixty" in stages(flame), flame.notes

    @pytest.mark.slow
    def test_the_process_that_trains_beside_its_workers(self, loader):
        """Its step, from the loop on: the test that calls it is no part of it."""
        seen = loop_flame(target(loader, step=compute), 1.0)

        step = seen.samples.filter(pl.col("stage") == "step")["stack"]
        assert step.len(), seen.notes
        assert step.str.starts_with("compute (").all()
        assert {os.getpid()} == set(seen.samples["pid"])

    @pytest.mark.slow
    def test_waiting_threads_are_shown_when_asked_for(self):
        """A worker that waits for tasks is seen with `idle` alone."""
        loader = DataLoader(Noise(), 4, num_workers=1)

        flame = ss.flame(loader, ss.simulated_step(0.05), seconds=0.5, idle=True)

        assert flame.samples["stack"].str.contains("_worker_loop").any()

    @pytest.mark.slow
    def test_compiled_code_is_shown_when_asked_for(self, loader):
        """At a rate that a process can bear, and with a warning."""
        flame = ss.flame(loader, seconds=0.5, native=True)

        assert "each sample paused its process" in notes(flame)
        assert 29 == flame.circumstances.rate_hz

    def test_a_folder_that_holds_none(self, tmp_path):
        """One sentence."""
        with pytest.raises(RunFormatError, match=r"is not a flame: it has no flame\.json"):
            ss.Flame.load(tmp_path)

    @pytest.mark.slow
    def test_its_own_process(self):
        """The workers of a loader that this process iterates itself."""
        batches = iter(DataLoader(Planted(), 2, num_workers=1))
        next(batches)
        try:
            # On a crowded machine py-spy takes long to begin, and writes nothing if it is told to
            # end before that
            flame = ss.flame(pid=os.getpid(), seconds=2.0)
        finally:
            batches._shutdown_workers()  # a failure's traceback keeps them, for the next try to see

        assert 1 == flame.circumstances.num_workers


class TestShortLoaders:
    @pytest.mark.slow
    def test_begins_again(self):
        """A stream that ends before the time does is started again, and that is said."""
        flame = ss.flame(DataLoader(ShortAtFirst(), 2, num_workers=1), seconds=0.8)

        assert re.search(r"the loader is short: stallscope started it [2-9] times", notes(flame))
        assert flame.samples.height

    @pytest.mark.slow
    def test_shorter_than_its_warm_up(self):
        """Its start is in it, and that is said."""
        flame = ss.flame(DataLoader(PlantedStream(2), 2, num_workers=2), seconds=0.5)

        assert "too short for a steady state" in notes(flame)

    def test_that_gives_nothing(self):
        """One sentence."""
        with pytest.raises(ss.StallscopeError, match="yielded no batch"):
            ss.flame(DataLoader(PlantedStream(0), 2, num_workers=1), seconds=0.3)


class TestRefused:
    @pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
    def test_py_spy_is_missing(self, monkeypatch, workers):
        """The processes sample themselves; it says so and how to get py-spy."""
        no_py_spy(monkeypatch)

        flame = ss.flame(DataLoader(Planted(), 2, num_workers=workers), seconds=0.7)

        assert IN_PROCESS == flame.circumstances.how
        assert "pip install py-spy" in notes(flame)
        assert {"Sixty", "TwentyFive"} <= stages(flame)
        assert not any(map(OURS.search, flame.samples["stack"]))

    @pytest.mark.slow
    def test_the_kernel_refuses(self, monkeypatch, tmp_path):
        """An undumpable worker, and a py-spy without the right to look into those."""
        program = busy_loaders.plain_py_spy(tmp_path)
        monkeypatch.setattr(pyspy_calls, "executable", lambda: program)
        loader = DataLoader(Planted(), 2, num_workers=2, worker_init_fn=busy_loaders.undumpable)

        flame = ss.flame(loader, seconds=0.7)

        assert IN_PROCESS == flame.circumstances.how
        assert "py-spy may not attach" in notes(flame)
        assert "ptrace" in notes(flame).lower()
        assert "Sixty" in stages(flame), flame.notes

    @pytest.mark.slow
    def test_py_spy_hangs(self, monkeypatch, tmp_path):
        """It is ended after its time, and the processes sample themselves."""
        program = busy_loaders.script(tmp_path, "#!/bin/sh\nexec sleep 600\n")
        monkeypatch.setattr(pyspy_calls, "executable", lambda: program)
        monkeypatch.setattr(pyspy_calls, "DUMP_S", 0.3)

        flame = ss.flame(DataLoader(Planted(), 2, num_workers=1), seconds=0.5)

        assert "got no answer" in notes(flame)
        assert "Sixty" in stages(flame), flame.notes

    def test_py_spy_does_not_know_this_python(self, monkeypatch, tmp_path):
        """It says that a newer one may."""
        text = "#!/bin/sh\necho 'Error: Unsupported version of Python: 3.99.0' >&2\nexit 1\n"
        program = busy_loaders.script(tmp_path, text)
        monkeypatch.setattr(pyspy_calls, "executable", lambda: program)

        flame = ss.flame(DataLoader(Planted(), 2, num_workers=1), seconds=0.5)

        assert "Unsupported version of Python: 3.99.0" in notes(flame)
        assert "pip install --upgrade py-spy" in notes(flame)

    @pytest.mark.slow
    def test_what_is_not_there_is_said(self, monkeypatch):
        """The sampler in the process has no native frames, and no eye for the lock."""
        no_py_spy(monkeypatch)

        flame = ss.flame(DataLoader(Planted(), 2, num_workers=1), seconds=0.3, gil=True)

        assert f"the {IN_PROCESS} has no gil" in notes(flame)
        assert not flame.circumstances.gil


class TestOfATrainingThatRuns:
    @pytest.mark.slow
    def test_its_workers(self, training):
        """They are found below it, each with its own number, and it goes on."""
        process, workers = training

        flame = ss.flame(pid=process.pid, seconds=0.7)

        seen = dict(flame.samples.select("worker", "pid").unique().iter_rows())
        assert dict(enumerate(workers)) == seen
        assert "2 workers found" in notes(flame)
        assert process.poll() is None
        assert process.stdout.readline()

    @pytest.mark.slow
    def test_one_of_its_workers(self, training):
        """It is sampled alone."""
        _, workers = training

        flame = ss.flame(pid=workers[1], seconds=0.5)

        assert {(1, workers[1])} == set(flame.samples.select("worker", "pid").iter_rows())

    @pytest.mark.slow
    def test_a_training_that_may_not_be_looked_into(self, monkeypatch, tmp_path, training):
        """One sentence with the setting."""
        text = "#!/bin/sh\necho 'Permission Denied: Try running again with elevated' >&2\nexit 1\n"
        process, _ = training
        program = busy_loaders.script(tmp_path, text)
        monkeypatch.setattr(pyspy_calls, "executable", lambda: program)
        monkeypatch.setattr(pyspy_calls, "_ptrace_scope", lambda: 1)

        with pytest.raises(ss.StallscopeError, match=r"sysctl kernel\.yama\.ptrace_scope=0"):
            ss.flame(pid=process.pid, seconds=0.3)

    def test_that_is_gone(self):
        """One sentence."""
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()

        with pytest.raises(ss.StallscopeError, match=f"no process with pid {ended.pid}"):
            ss.flame(pid=ended.pid)

    def test_that_has_ended_and_nobody_has_noticed(self):
        """A zombie is gone, too."""
        ended = subprocess.Popen([sys.executable, "-c", ""])
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)

        with pytest.raises(ss.StallscopeError, match=f"no process with pid {ended.pid}"):
            ss.flame(pid=ended.pid)
        ended.wait()

    def test_that_is_not_python(self):
        """One sentence that names it."""
        with subprocess.Popen(["sleep", "60"]) as other:
            with pytest.raises(ss.StallscopeError, match=r"\(sleep\) as a Python process"):
                ss.flame(pid=other.pid)
            other.kill()

    @pytest.mark.slow
    def test_that_is_not_ours(self, monkeypatch, training):
        """One sentence that says as whom to run."""
        process, _ = training
        monkeypatch.setattr(os, "geteuid", lambda: 4711)

        with pytest.raises(ss.StallscopeError, match="belongs to another user"):
            ss.flame(pid=process.pid)

    @pytest.mark.slow
    def test_py_spy_is_missing(self, monkeypatch, training):
        """One sentence with what to install."""
        process, _ = training
        no_py_spy(monkeypatch)

        with pytest.raises(ss.StallscopeError, match="pip install py-spy"):
            ss.flame(pid=process.pid)


class TestFaults:
    @pytest.mark.slow
    def test_a_worker_is_killed(self):
        """Torch's own error, with what was seen before, or why nothing was on a busy machine."""
        with pytest.raises(RuntimeError, match="DataLoader worker") as caught:
            ss.flame(DataLoader(DiesSoon(), 2, num_workers=2), seconds=30)

        assert isinstance(caught.value.flame, ss.Flame)
        assert caught.value.flame.samples.height or "no stack" in notes(caught.value.flame)

    def test_a_dataset_that_raises(self):
        """Its own exception, with what was seen before."""
        with pytest.raises(LookupError, match="no sixty here") as caught:
            ss.flame(DataLoader(Raises(), 2, num_workers=1), seconds=30)

        assert any("attribute `flame`" in note for note in caught.value.__notes__)

    @pytest.mark.slow
    def test_an_interrupt_of_the_step(self, loader):
        """It comes out as it is."""
        steps = []

        def step(_):
            steps.append(1)
            if len(steps) == 60:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as caught:
            ss.flame(loader, step, seconds=30)

        assert caught.value.flame.samples.height or "no stack" in notes(caught.value.flame)


class TestBadInput:
    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "long", None, True])
    def test_no_time(self, loader, seconds):
        """One sentence that names it."""
        with pytest.raises(ss.StallscopeError, match="seconds="):
            ss.flame(loader, seconds=seconds)

    @pytest.mark.parametrize("rate_hz", [0, 0.5, 1001, float("nan"), "fast", None])
    def test_no_rate(self, loader, rate_hz):
        """One sentence that names it."""
        with pytest.raises(ss.StallscopeError, match="rate_hz="):
            ss.flame(loader, rate_hz=rate_hz)

    @pytest.mark.parametrize("pid", [0, -1, 1.5, "4711", True])
    def test_no_process_id(self, pid):
        """One sentence that names it."""
        with pytest.raises(ss.StallscopeError, match="pid="):
            ss.flame(pid=pid)

    def test_nothing_at_all(self):
        """It asks what to sample."""
        with pytest.raises(ss.StallscopeError, match="what to sample"):
            ss.flame()

    def test_both(self, loader):
        """One of the two."""
        with pytest.raises(ss.StallscopeError, match="cannot be combined"):
            ss.flame(loader, pid=os.getpid())

    def test_more_than_one_rank(self, loader, monkeypatch):
        """The others would wait."""
        monkeypatch.setenv("WORLD_SIZE", "2")

        with pytest.raises(ss.StallscopeError, match="one of 2 ranks"):
            ss.flame(loader)
