"""The sampler beside real work: its readings, its cleanup, and forks in between."""

import itertools
import os
import signal
import sys
import time

import psutil
import pytest
import torch
from support.loaders import Noise
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope import stages
from stallscope.hooks.recording_folder import LogPlace, read_lines
from stallscope.run import resource_sampler
from stallscope.run.resource_sampler import SOURCES, Recorded, Sampler, Samples, Source


@pytest.fixture
def place(tmp_path):
    """Return the place of the samples."""
    return LogPlace(tmp_path, 1000)


@pytest.fixture
def recorded(tmp_path):
    """Return this process, without workers."""
    return Recorded(os.getpid(), tmp_path)


def of_gpu(recorded, place):
    """Return the GPU's source, begun."""
    return Samples(place.resources(), recorded, SOURCES[-1:])


def samples(place):
    return [entry for entry in read_lines(place.resources()) if "read" in entry]


def notes(place):
    return [entry["note"] for entry in read_lines(place.resources()) if "note" in entry]


def wait_for_samples(place, new_samples=2):
    """Wait until new samples come, however slow the machine is."""
    there = len(samples(place))
    while len(samples(place)) < there + new_samples:
        time.sleep(0.01)


def ours():
    """Return the processes that sample for this one."""
    children = psutil.Process().children()
    return [child for child in children if resource_sampler._COMMAND in child.cmdline()]


class TestSamples:
    def test_hold_what_the_kernel_counts(self, place):
        """The allowed cores, this process and the memory are sampled, with psutil's numbers."""
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

    def test_of_a_source_that_fails_end_with_a_note(self, place, recorded):
        def fail(_):
            yield {}
            raise KeyError("no such disk")

        sound = Source((stages.SHM,), lambda _: itertools.repeat({stages.SHM: {"": 1.0}}))
        failing = Source((stages.DISK_BUSY, stages.DISK_READ), fail)
        written = Samples(place.resources(), recorded, [failing, sound])
        written.take()
        written.take()

        assert [
            "could not be sampled any more: disk busy, disk reads (KeyError('no such disk'))"
        ] == (notes(place))
        assert [stages.SAMPLER, stages.SHM] == list(samples(place)[-1]["read"])

    def test_of_a_system_without_proc_are_missing_with_one_note(
        self, place, recorded, tmp_path, monkeypatch
    ):
        """Nothing is sampled, and the loop is recorded as ever."""
        monkeypatch.setattr(resource_sampler, "PROC", tmp_path / "no such file")

        Samples(place.resources(), recorded, SOURCES).take()

        assert ["the machine's resources were not sampled: this system has no /proc"] == notes(
            place
        )
        lines = read_lines(place.resources())
        missing = [entry["missing"] for entry in lines if "missing" in entry]
        assert [list(source.resources) for source in SOURCES] == missing
        assert [stages.SAMPLER] == list(samples(place)[0]["read"])


class TestProcess:
    @pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
    def test_ends_with_the_block(self, place, error):
        files = psutil.Process().num_fds()
        try:
            with Sampler(place):
                wait_for_samples(place)  # its process has its name by then
                assert 1 == len(ours())
                if error:
                    raise error
        except (ValueError, KeyboardInterrupt):
            pass

        assert [] == ours()
        assert files == psutil.Process().num_fds()
        assert [] == notes(place)

    def test_ends_when_the_training_is_killed(self, place):
        """The sampler's file can be read while a worker that outlives it holds the pipe open."""
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

    def test_that_was_killed_is_a_note(self, place):
        with Sampler(place):
            wait_for_samples(place)
            ours()[0].kill()

        assert ["the resources were sampled only in part: the process ended with -9"] == notes(
            place
        )

    def test_that_cannot_be_started_is_a_note(self, monkeypatch):
        """The note is one of the run, which is recorded all the same."""
        monkeypatch.setattr(resource_sampler, "get_executable", lambda: "/no/such/python")

        run = ss.record(DataLoader(Noise(16), 2), batches=4)

        assert any("no process could be started" in note for note in run.notes)
        assert run.all_steps.height


class TestRecording:
    def test_has_the_resources_of_its_workers(self):
        loader = DataLoader(Noise(400), 2, num_workers=2)

        run = ss.record(loader, ss.simulated_step(0.02), batches=60, warmup=2)

        every, steady = run.all_resources, run.resources()  # a busy machine samples seldom
        workers = every.filter(every["resource"] == stages.WORKER)["device"].unique().to_list()
        assert {str(pid) for pid in run.deliveries["pid"].drop_nulls()} >= set(workers) > set()
        assert {stages.CORE, stages.MEMORY, stages.LOOP} <= set(every["resource"])
        assert (steady["end_ns"] <= run.all_steps["end_ns"].max() + 1e9).all()


class TestGpu:
    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
    def test_is_null_where_there_is_none(self):
        run = ss.record(DataLoader(Noise(16), 2), batches=4)

        rows = run.all_resources.filter(run.all_resources["resource"] == stages.GPU)
        assert [None] == rows["value"].to_list()
        assert not [note for note in run.notes if "GPU" in note]

    def test_without_nvml_is_a_note(self, place, recorded, monkeypatch):
        """A missing package raises nothing."""
        monkeypatch.setitem(sys.modules, "pynvml", None)

        of_gpu(recorded._replace(has_gpu=True), place)

        assert [
            "not sampled: GPU busy, GPU memory (there is no NVML: pip install nvidia-ml-py)"
        ] == (notes(place))

    @pytest.mark.gpu
    def test_is_sampled_through_nvml(self, place, recorded):
        """The busy share and the memory of each GPU come with their limits."""
        pytest.importorskip("pynvml")

        of_gpu(recorded._replace(has_gpu=True), place).take()

        limits = next(read_lines(place.resources()))["limits"][stages.GPU_MEMORY]
        read = samples(place)[0]["read"]
        assert all(0 <= busy <= 1 for busy in read[stages.GPU].values())
        for gpu, used in read[stages.GPU_MEMORY].items():
            assert 0 < used <= limits[gpu]


def test_no_room_for_samples_is_no_error(tmp_path):
    with Sampler(place := LogPlace(tmp_path / "gone", 9)):
        pass
    assert [] == [*ours(), *place.failures.sentences()]
