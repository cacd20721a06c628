"""The sampler beside real work: what it reads, what it leaves, and forks in between."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

import polars as pl
import psutil
import pytest
import torch
from support.loaders import Noise
from torch.utils.data import DataLoader, Dataset

import stallscope as ss
from stallscope import stages
from stallscope.hooks.log_place import LogPlace
from stallscope.hooks.log_reader import read_lines
from stallscope.run import resource_sampler, resource_sources
from stallscope.run.resource_process import MOST_SHARE, Samples
from stallscope.run.resource_sampler import Sampler
from stallscope.run.resource_sources import Missing, Recorded, Source, gpus, sources

NEEDS_PROC = pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="no /proc")  # noqa: PTH110


@pytest.fixture
def place(tmp_path):
    """Where the samples go."""
    return LogPlace(tmp_path, 1000)


@pytest.fixture
def recorded(tmp_path):
    """This process, without workers."""
    return Recorded(os.getpid(), tmp_path)


def samples(place):
    return [entry for entry in read_lines(place.resources()) if "read" in entry]


def notes(place):
    return [entry["note"] for entry in read_lines(place.resources()) if "note" in entry]


def wait_for_samples(place, more=2):
    """However slow the machine is, the samples come."""
    there = len(samples(place))
    while len(samples(place)) < there + more:
        time.sleep(0.01)


def ours():
    """The processes that sample for this one."""
    children = psutil.Process().children()
    return [child for child in children if resource_sampler._COMMAND in child.cmdline()]


class TestSamples:
    def test_hold_what_the_kernel_counts(self, place):
        """Cores that may be used, this process, memory; the numbers are psutil's, too."""
        with Sampler(place):
            wait_for_samples(place)

        read = samples(place)[0]["read"]
        assert {str(core) for core in os.sched_getaffinity(0)} == set(read[stages.CORE])
        assert {str(os.getpid())} == set(read[stages.LOOP])
        assert 0 < read[stages.MEMORY]["machine"] < psutil.virtual_memory().total
        used = sum(psutil.Process().cpu_times()[:2])
        assert 0 < read[stages.LOOP][str(os.getpid())] <= used + 0.001
        assert sum(read[stages.CORE].values()) <= sum(
            sum(times) for times in psutil.cpu_times(percpu=True)
        )

    def test_hold_what_they_cost(self, place):
        """CPU seconds of sampling, which only grow."""
        with Sampler(place):
            wait_for_samples(place, 3)

        spent = [sample["read"][stages.SAMPLER][""] for sample in samples(place)]
        assert 0.0 < spent[-1]
        assert sorted(spent) == spent

    def test_of_a_source_that_fails_end_with_a_note(self, place):
        """The others go on, and nothing is raised."""
        sound = Source(lambda: {stages.SHM: {"": 1.0}})
        failing = Source(lambda: {}["no such disk"], resources=(stages.DISK_BUSY, stages.DISK_READ))
        written = Samples(place.resources(), [failing, sound])
        written.take()
        written.take()

        assert [
            "could not be sampled any more: disk busy, disk reads (KeyError('no such disk'))"
        ] == (notes(place))
        assert [stages.SAMPLER, stages.SHM] == list(samples(place)[-1]["read"])

    def test_become_fewer_where_one_costs_much(self, place):
        """The pause follows what the sample before it took."""

        def work():
            began_s = time.process_time()
            while time.process_time() < began_s + 0.02:
                pass
            return {}

        written = Samples(place.resources(), [Source(work)])
        written.take()

        assert written.pause_s() > 0.9 * 0.02 / MOST_SHARE - 0.1

    def test_of_a_system_without_proc_are_none_and_that_is_said_once(
        self, recorded, tmp_path, monkeypatch
    ):
        """Nothing is read in another way; the loop is recorded as ever."""
        monkeypatch.setattr(resource_sources, "PROC", tmp_path / "no such file")

        missing, of_gpu = sources(recorded, has_gpu=False)

        assert missing.why == "the machine's resources were not sampled: this system has no /proc"
        assert Missing((stages.GPU, stages.GPU_MEMORY)) == of_gpu

    @NEEDS_PROC
    def test_count_a_wait_for_a_core(self, place):
        """Of this process, in seconds, as the kernel has it."""
        with Sampler(place):
            wait_for_samples(place)

        waited = samples(place)[-1]["read"][stages.QUEUED][str(os.getpid())]
        assert 0 <= waited <= int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


class TestProcess:
    @pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
    def test_ends_with_the_block(self, place, error):
        """Also when that fails; and all files are given back."""
        files = psutil.Process().num_fds()
        try:
            with Sampler(place):
                assert 1 == len(ours())
                if error:
                    raise error
        except (ValueError, KeyboardInterrupt):
            pass

        assert [] == ours()
        assert files == psutil.Process().num_fds()
        assert [] == notes(place)

    def test_samples_a_block_that_is_over_at_once(self, place):
        """It has said what it can sample before it ends."""
        with Sampler(place):
            pass

        assert samples(place)

    def test_feels_no_interrupt_of_the_terminal(self, place):
        """Ctrl-C reaches the group of the training, which the sampler is no part of."""
        with Sampler(place):
            (sampler,) = ours()
            assert os.getpgid(sampler.pid) != os.getpgid(0)

    def test_is_light(self, place):
        """It imports neither torch nor numpy: the beginning of a recording would be lost."""
        with Sampler(place):
            wait_for_samples(place)
            (sampler,) = ours()
            mapped = " ".join(one.path for one in sampler.memory_maps())

        assert "psutil" in mapped
        assert "torch" not in mapped
        assert "numpy" not in mapped

    def test_ends_when_the_training_is_killed(self, place):
        """A worker that outlives it holds the pipe open; what was sampled lies in the file."""
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            with Sampler(place):
                wait_for_samples(place)
                os.write(writing, f"{ours()[0].pid}".encode())
                if os.fork():
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(3)
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(writing)
        sampler = int(os.read(reading, 20))
        os.close(reading)
        while psutil.pid_exists(sampler) and psutil.Process(sampler).status() != "zombie":
            time.sleep(0.01)

        assert 2 <= len(samples(place))

    def test_goes_on_beside_a_fork(self, place):
        """And the child, whose process it is not, can end the block."""
        with Sampler(place) as sampler:
            if (pid := os.fork()) == 0:
                sampler.__exit__(None, None, None)
                os._exit(sampler._process is not None)
            assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            wait_for_samples(place)

        assert [] == notes(place)

    def test_that_was_killed_is_a_note(self, place):
        """What it sampled before is there."""
        with Sampler(place):
            wait_for_samples(place)
            ours()[0].kill()

        assert ["the resources were sampled only in part: the process ended with -9"] == notes(
            place
        )

    def test_that_somebody_else_waited_for_is_none(self, place):
        """A program may wait for any of its children."""
        with Sampler(place):
            wait_for_samples(place)
            (sampler,) = ours()
            sampler.kill()
            os.waitpid(-1, 0)

        assert [] == ours()

    def test_that_cannot_be_started_is_a_note(self, monkeypatch):
        """Of the run, which is recorded all the same."""
        monkeypatch.setattr(resource_sampler, "get_executable", lambda: "/no/such/python")

        run = ss.record(DataLoader(Noise(16), 2), batches=4)

        assert any("no process could be started" in note for note in run.notes)
        assert run.all_steps.height


class TestRecording:
    def test_has_the_resources_of_its_workers(self):
        """By process id, the same ones as in the deliveries."""
        loader = DataLoader(Noise(400), 2, num_workers=2)

        run = ss.record(loader, ss.simulated_step(0.02), batches=60, warmup=2)

        every, steady = run.all_resources, run.resources()  # a busy machine samples seldom
        workers = every.filter(every["resource"] == stages.WORKER)["device"].unique().to_list()
        assert {str(pid) for pid in run.deliveries["pid"].drop_nulls()} >= set(workers) > set()
        assert {stages.CORE, stages.MEMORY, stages.LOOP} <= set(every["resource"])
        assert (steady["end_ns"] <= run.all_steps["end_ns"].max() + 1e9).all()

    def test_keeps_its_resources_when_it_is_saved(self, tmp_path):
        """All rows, with their types."""
        run = ss.record(DataLoader(Noise(64), 2), ss.simulated_step(0.02), batches=20)

        assert ss.load(run.save(tmp_path / "run")).all_resources.equals(run.all_resources)
        assert run.all_resources.height

    def test_of_the_users_own_loop(self):
        """Passively, too."""
        with ss.instrumented(loader := DataLoader(Noise(64), 2)) as watch:
            for _ in loader:
                time.sleep(0.02)

        assert watch.run.all_resources.drop_nulls("value").height

    def test_keeps_the_samples_of_a_loop_that_failed(self):
        """Up to there; the exception is the user's own."""

        def fail(batch):
            time.sleep(0.03)
            if batch.sum() > 0 and next(steps) > 10:
                raise ValueError("mine")

        steps = iter(range(99))
        with pytest.raises(ValueError, match="mine") as caught:
            ss.record(DataLoader(Noise(64), 2), fail, batches=30)
        assert caught.value.run.all_resources.drop_nulls("value").height


class Locked(Dataset):
    """Samples that are made under one lock of a file."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        with open(self.path, "w") as file:  # noqa: PTH123 - as users write it
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.02)
        return index


@NEEDS_PROC
class TestWorkers:
    @pytest.mark.slow
    def test_a_lock_of_a_file_and_the_memory_of_workers_are_seen(self, tmp_path):
        """Of two workers that share a lock, one waits for it nearly all the time."""
        loader = DataLoader(Locked(str(tmp_path / "lock")), batch_size=4, num_workers=2)

        read = ss.record(loader, batches=60, budget_s=20).resources().drop_nulls("value")
        means = dict(read.group_by("resource").agg(pl.col("value").mean()).iter_rows())

        assert 0.2 < means[stages.FILE_LOCK] < 0.8
        assert means[stages.WORKER_MAPPED] >= means[stages.WORKER_MEMORY] > 1e6
        assert len(os.sched_getaffinity(0)) == means[stages.WORKER_CORES]


class TestGpu:
    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
    def test_is_null_where_there_is_none(self):
        """Its rows have no value, and there is nothing to say."""
        run = ss.record(DataLoader(Noise(16), 2), batches=4)

        rows = run.all_resources.filter(run.all_resources["resource"] == stages.GPU)
        assert [None] == rows["value"].to_list()
        assert not [note for note in run.notes if "GPU" in note]

    def test_without_nvml_is_a_note(self, monkeypatch):
        """The package is not needed."""
        monkeypatch.setitem(sys.modules, "pynvml", None)

        missing = gpus()

        assert (stages.GPU, stages.GPU_MEMORY) == missing.resources
        assert "nvidia-ml-py" in missing.why

    @pytest.mark.gpu
    def test_is_sampled_through_nvml(self):
        """Busy share and memory of each GPU, with their limits."""
        pytest.importorskip("pynvml")
        found = gpus()

        read = found.read()
        assert all(0 <= busy <= 1 for busy in read[stages.GPU].values())
        for gpu, used in read[stages.GPU_MEMORY].items():
            assert 0 < used <= found.limits[stages.GPU_MEMORY][gpu]


def test_no_room_for_samples_is_no_error(tmp_path):
    """The recording goes on without."""
    with Sampler(place := LogPlace(tmp_path / "gone", 9)):
        pass
    assert [] == [*ours(), *place.failures.sentences()]
