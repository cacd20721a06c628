"""Real workers sampled by the real py-spy, and without it where it may not attach."""

import math
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
from support.busy_loaders import Planted, Raises
from support.loaders import NoiseStream
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope import pyspy_calls
from stallscope.targets.target import target
from stallscope.verbs.flame.flame import loop_flame
from stallscope.verbs.flame.result import IN_PROCESS, PY_SPY, SAMPLES

OURS = re.compile(
    r"stallscope/((hooks|targets|loops|run|bench|verbs)/|isolation)|passed over by warnings"
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attaching needs root there")


@pytest.fixture
def loader():
    return DataLoader(Planted(), 2, num_workers=2)


@contextmanager
def started(workers):
    """Run a training in a process of its own; yield that process and its workers' ids."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.busy_loaders", str(workers)],
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
    """Run a training with two workers for tests that leave it unchanged."""
    with started(2) as running:
        yield running


def no_py_spy(monkeypatch):
    monkeypatch.setattr(pyspy_calls, "executable", lambda: None)


def compute(_batch):
    sum(range(1_000_000))


def stages(flame):
    return set(flame.samples["stage"].drop_nulls())


def notes(flame):
    return "\n".join(flame.notes)


@pytest.fixture(scope="class")
def recorded():
    """Return a flame of a real loader's workers; the generators stay as they were."""
    before = torch.get_rng_state()
    flame = ss.flame(DataLoader(Planted(), 2, num_workers=2), seconds=0.7)
    assert torch.equal(before, torch.get_rng_state())
    return flame


class TestOfALoader:
    def test_sees_every_worker(self, recorded):
        circumstances, samples = recorded.circumstances, recorded.samples

        assert (PY_SPY, 2) == (circumstances.how, circumstances.num_workers)
        assert [0, 1] == samples["worker"].unique().sort().to_list()
        assert 2 == samples["pid"].n_unique()
        assert SAMPLES == dict(samples.schema)

    def test_knows_the_stage(self, recorded):
        inside = recorded.samples.filter(pl.col("stack").str.contains(".sixty (", literal=True))

        assert {"Sixty"} == set(inside["stage"])
        assert {"Sixty", "TwentyFive", "getitem"} <= stages(recorded)

    def test_shows_no_frame_of_ours(self, recorded):
        """The stacks begin at the worker's loop and hold what the user would see without us."""
        stacks = recorded.stacks()["stack"].to_list()

        assert not [stack for stack in stacks if OURS.search(stack)]
        assert any(stack.startswith("_worker_loop (torch/utils/data/_utils/") for stack in stacks)
        assert not [stack for stack in stacks if "<module>" in stack]

    @pytest.mark.slow
    def test_the_process_that_trains_is_sampled_beside_its_workers(self, loader):
        """Stacks of the step begin at the loop, without the calling test."""
        seen = loop_flame(target(loader, step=compute), 1.0)

        step = seen.samples.filter(pl.col("stage") == "step")["stack"]
        assert step.len(), seen.notes
        assert step.str.starts_with("compute (").all()
        assert {os.getpid()} == set(seen.samples["pid"])


def test_loader_without_a_batch_is_refused():
    with pytest.raises(ss.StallscopeError, match="yielded no batch"):
        ss.flame(DataLoader(NoiseStream(0), 2, num_workers=1), seconds=0.3)


class TestRefused:
    @pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
    def test_py_spy_is_missing(self, monkeypatch, workers):
        """The processes sample themselves; a note says so and how to get py-spy."""
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


class TestOfATrainingThatRuns:
    @pytest.mark.slow
    def test_its_workers(self, training):
        process, workers = training

        flame = ss.flame(pid=process.pid, seconds=0.7)

        seen = dict(flame.samples.select("worker", "pid").unique().iter_rows())
        assert dict(enumerate(workers)) == seen
        assert "2 workers found" in notes(flame)
        assert process.poll() is None
        assert process.stdout.readline()

    def test_that_is_gone(self):
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()

        with pytest.raises(ss.StallscopeError, match=f"no process with pid {ended.pid}"):
            ss.flame(pid=ended.pid)

    @pytest.mark.slow
    def test_py_spy_is_missing(self, monkeypatch, training):
        process, _ = training
        no_py_spy(monkeypatch)

        with pytest.raises(ss.StallscopeError, match="pip install py-spy"):
            ss.flame(pid=process.pid)


def test_exception_of_the_dataset_has_the_flame():
    with pytest.raises(LookupError, match="no sixty here") as caught:
        ss.flame(DataLoader(Raises(), 2, num_workers=1), seconds=30)

    assert any("attribute `flame`" in note for note in caught.value.__notes__)


class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(
                ("seconds", value)
                for value in (0, -1, float("nan"), float("inf"), "long", None, True)
            ),
            *(("rate_hz", value) for value in (0, 0.5, 1001, math.nan, "fast", None)),
            *(("pid", value) for value in (0, -1, 1.5, "4711", True)),
        ],
    )
    def test_a_wrong_number_is_named(self, loader, name, value):
        with pytest.raises(ss.StallscopeError, match=f"{name}="):
            ss.flame(None if name == "pid" else loader, **{name: value})

    def test_nothing_at_all_and_both_are_refused(self, loader):
        with pytest.raises(ss.StallscopeError, match="what to sample"):
            ss.flame()
        with pytest.raises(ss.StallscopeError, match="cannot be combined"):
            ss.flame(loader, pid=os.getpid())
