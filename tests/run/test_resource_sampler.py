"""The sampler beside real work: what it reads, what it leaves, and forks in between."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
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
from stallscope.files import workspace
from stallscope.hooks.loop_log import LogPlace
from stallscope.hooks.stage_log import read_lines
from stallscope.run import resource_sampler, resource_sources
from stallscope.run.resource_sampler import Sampler
from stallscope.run.resource_sources import gpus

NEEDS_PROC = pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="no /proc")  # noqa: PTH110


@pytest.fixture
def place(tmp_path):
    """Where the samples go."""
    return LogPlace(tmp_path, 1000)


def samples(place):
    return [entry for entry in read_lines(place.resources()) if "read" in entry]


def wait_for_samples(place, more=2):
    """However slow the machine is, the samples come."""
    there = len(samples(place))
    while len(samples(place)) < there + more:
        time.sleep(0.01)


def ours():
    return [thread for thread in threading.enumerate() if thread.name == "stallscope"]


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

    @pytest.mark.slow
    def test_survive_a_killed_process(self, tmp_path):
        """What was sampled lies in the file, whole lines of it."""
        code = (
            "import os, pathlib, signal, sys, time\n"
            "from stallscope.run.resource_sampler import Sampler\n"
            "from stallscope.hooks.loop_log import LogPlace\n"
            "with Sampler(LogPlace(pathlib.Path(sys.argv[1]), 9)) as sampler:\n"
            "    while sampler._samples < 3: time.sleep(0.01)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
        )

        ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)

        assert -signal.SIGKILL == ended.returncode
        assert 3 <= len(samples(LogPlace(tmp_path, 9)))

    @NEEDS_PROC
    def test_of_a_source_that_fails_end_with_a_note(self, place, monkeypatch):
        """The others go on, and nothing is raised."""
        from stallscope.run.resource_sources import Disks

        monkeypatch.setattr(Disks, "read", lambda _: {}["no such disk"])
        with Sampler(place):
            wait_for_samples(place)

        told = [entry["note"] for entry in read_lines(place.resources()) if "note" in entry]
        assert [True] == ["Disks could not be sampled" in note for note in told]
        assert stages.CORE in samples(place)[-1]["read"]

    def test_of_a_system_without_proc_are_none_and_that_is_said_once(
        self, place, tmp_path, monkeypatch
    ):
        """Nothing is read in another way; the loop is recorded as ever."""
        monkeypatch.setattr(resource_sources, "PROC", tmp_path / "no such file")
        with Sampler(place):
            wait_for_samples(place)

        assert {stages.SAMPLER} >= set(samples(place)[0]["read"]) - {stages.GPU, stages.GPU_MEMORY}
        told = [entry["note"] for entry in read_lines(place.resources()) if "note" in entry]
        assert ["the machine's resources were not sampled: this system has no /proc"] == [
            note for note in told if "GPU" not in note
        ]

    @NEEDS_PROC
    def test_count_a_wait_for_a_core(self, place):
        """Of this process, in seconds, as the kernel has it."""
        with Sampler(place):
            wait_for_samples(place)

        waited = samples(place)[-1]["read"][stages.QUEUED][str(os.getpid())]
        assert 0 <= waited <= int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


class TestThread:
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

    def test_is_gone_while_a_process_is_forked(self, place):
        """So a worker never has half of it, and Python 3.12 has no reason to warn."""
        with Sampler(place):
            resource_sampler._before_fork()
            assert [] == ours()
            resource_sampler._after_fork()
            assert 1 == len(ours())

    def test_comes_back_after_a_fork(self, place):
        """And the child, which has none of its files either, can end the block."""
        with Sampler(place) as sampler:
            if (pid := os.fork()) == 0:
                sampler.__exit__(None, None, None)
                os._exit(len(ours()))
            assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            wait_for_samples(place)

    def test_pauses_may_be_nested(self, place):
        """Two threads of the user's fork at the same time."""
        with Sampler(place) as sampler:
            sampler.pause()
            sampler.pause()
            sampler.go_on()
            assert [] == ours()
            sampler.go_on()
            assert 1 == len(ours())

    def test_an_interrupt_during_a_fork_is_not_lost(self, place, monkeypatch):
        """Python forgets what a hook of a fork raises; it is raised again behind the fork."""
        stop = Sampler._stop

        def interrupted(sampler):
            stop(sampler)
            if not sampler.interrupted:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), Sampler(place):
            with monkeypatch.context() as patched:
                patched.setattr(Sampler, "_stop", interrupted)
                resource_sampler._before_fork()
            resource_sampler._after_fork()
            time.sleep(60)

        assert [] == ours()

    def test_slows_down_where_a_sample_costs_much(self, place, monkeypatch):
        """The pause follows what the sample before it took."""
        monkeypatch.setattr(resource_sampler, "MOST_SHARE", 1e-9)
        with Sampler(place) as sampler:
            while not sampler._samples:
                time.sleep(0.01)
            time.sleep(0.3)
            assert 1 == sampler._samples


class TestRecording:
    def test_has_the_resources_of_its_workers(self):
        """By process id, the same ones as in the deliveries."""
        loader = DataLoader(Noise(400), 2, num_workers=2)

        run = ss.record(loader, ss.simulated_step(0.02), batches=60, warmup=2)

        used = run.resources()
        workers = used.filter(used["resource"] == stages.WORKER)["device"].unique().to_list()
        assert {str(pid) for pid in run.deliveries["pid"].drop_nulls()} >= set(workers) > set()
        assert {stages.CORE, stages.MEMORY, stages.LOOP} <= set(used["resource"])
        assert (used["end_ns"] <= run.all_steps["end_ns"].max() + 1e9).all()

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

    @NEEDS_PROC
    def test_says_what_could_not_be_sampled(self, monkeypatch):
        """As a note of the run."""
        monkeypatch.setattr(resource_sources.Disks, "read", lambda _: {}["no such disk"])

        run = ss.record(DataLoader(Noise(16), 2), batches=4)

        assert any("Disks could not be sampled" in note for note in run.notes)


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

    def test_without_nvml_is_a_note(self, place, monkeypatch):
        """The package is not needed."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setitem(sys.modules, "pynvml", None)

        missing = gpus(place)

        assert (stages.GPU, stages.GPU_MEMORY) == missing.resources
        assert "nvidia-ml-py" in missing.why

    @pytest.mark.gpu
    def test_is_sampled_through_nvml(self, place):
        """Busy share and memory of each GPU, with their limits."""
        pytest.importorskip("pynvml")
        found = gpus(place)

        read = found.read()
        found.close()
        assert all(0 <= busy <= 1 for busy in read[stages.GPU].values())
        for gpu, used in read[stages.GPU_MEMORY].items():
            assert 0 < used <= found.limits[stages.GPU_MEMORY][gpu]


def test_no_room_for_samples_is_no_error(tmp_path):
    """The recording goes on without."""
    with Sampler(LogPlace(tmp_path / "gone", 9)):
        assert [] == ours()


def test_the_private_folder_holds_nothing_of_it_afterwards():
    """The file is gone with the recording's folder."""
    with workspace() as folder, Sampler(LogPlace(folder, 9)):
        assert (folder / "samples.resources").exists()
    assert not folder.exists()
