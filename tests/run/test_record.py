"""`ss.record` and `ss.instrumented` over real loaders with real workers."""

import copy
import gc
import os
import signal
import threading
import time
import weakref

import numpy as np
import polars as pl
import pytest
import torch
from support.faults import generators, seeded
from support.loaders import Backwards, Fails, Jitter, Noise, NoiseStream, Slow
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.errors import UnsupportedError, WorkspaceError

PARENT = os.getpid()


class TestTheDataIsNeverChanged:
    def test_persistent_workers_go_on_without_hooks(self):
        batches = []
        for instrument in (False, True):
            own = seeded(7)
            loader = DataLoader(
                Noise(24, Jitter()), 4, shuffle=True, generator=own, num_workers=2,
                persistent_workers=True,
            )  # fmt: skip
            if instrument:
                with ss.instrumented(loader) as watch:
                    first = list(loader)
            else:
                first = list(loader)
            batches.append([*first, *loader])
            loader._iterator._shutdown_workers()

        assert all(map(torch.equal, *batches))
        assert len(batches[0]) == len(batches[1])
        assert {0} == set(watch.run.batches["epoch"])

    def test_a_counting_sampler_is_put_back(self):
        data = Noise()
        sampler = Backwards(data)

        ss.record(DataLoader(data, 4, sampler=sampler), batches=3)

        assert 0 == sampler.epochs

    def test_living_persistent_workers_are_left_alone(self):
        """`record` starts its own workers; the user's live on with the same process ids."""
        loader = DataLoader(Noise(), 4, num_workers=1, persistent_workers=True)
        list(loader)
        pids = [worker.pid for worker in loader._iterator._workers]

        ss.record(loader, batches=3)
        list(loader)

        assert pids == [worker.pid for worker in loader._iterator._workers]
        loader._iterator._shutdown_workers()


class TestTheModelIsNeverChanged:
    def test_what_the_step_trains_is_put_back(self):
        """Model, optimizer and gradients are as before, and the run says what was put back."""
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())

        def step(batch):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

        step(torch.rand(2, 4))
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        gradient = model.weight.grad.clone()

        run = ss.record(DataLoader(Noise(), 4), step, batches=4)

        after = (model.state_dict(), optimizer.state_dict())
        assert str(before) == str(after)
        assert torch.equal(gradient, model.weight.grad)
        assert any("Adam, Linear" in note for note in run.notes)

    def test_a_step_without_a_model_says_so(self):
        """A step that reaches nothing that trains leads to a note."""
        run = ss.record(DataLoader(Noise(), 4), lambda _: None, batches=2)

        assert any("reaches no model" in note for note in run.notes)


class TestRun:
    def test_tables_agree(self):
        """Stages, samples and spans agree, and no spans of a process overlap."""
        run = ss.record(DataLoader(Noise(96, Jitter()), 4, num_workers=2), batches=16, warmup=4)

        samples, stages = run.samples(), run.stages()
        spans = run.spans().with_columns(s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9)
        parts = samples["fetch_s"] + samples["decode_s"] + samples["transform_s"]
        assert np.allclose(parts + samples["other_s"], samples["total_s"])
        assert np.isclose(stages["busy_s"].sum(), spans["s"].sum())
        assert np.isclose(1.0, stages["busy_share"].sum())
        of_samples = spans.filter(pl.col("sample").is_not_null())
        assert np.isclose(samples["total_s"].sum(), of_samples["s"].sum())
        assert stages.filter(pl.col("stage") == "Jitter")["count"].item() == samples.height
        assert {0, 1} == set(samples["worker"])
        for _, own in run.all_spans.group_by("pid"):
            assert (own["end_ns"][:-1].to_numpy() <= own["start_ns"][1:].to_numpy()).all()

    def test_start_up_is_not_steady(self):
        """Warm-up and each worker's first batch are in no table of the steady state."""
        run = ss.record(DataLoader(Noise(96), 4, num_workers=2), batches=12, warmup=5)

        assert 5 == run.steps()["step"].min()
        assert 5 == run.samples()["batch"].min()
        assert 0 == run.steps(steady=False)["step"].min()
        assert 2 == run.startup.height
        assert run.startup["first_sample_s"].null_count() == 0
        assert run.first_batch_s is not None

    def test_as_many_batches_as_asked_for(self):
        run = ss.record(DataLoader(Noise(200), 4, num_workers=6), batches=12, warmup=2)

        assert 12 == run.batches.filter("steady").height

    def test_what_is_not_measured_is_null(self):
        """Without a step and a device, their times are null, never 0."""
        run = ss.record(DataLoader(Noise(96), 4), batches=6)

        for name in ("pin_s", "h2d_s", "step_s", "restart_s"):
            assert run.steps()[name].null_count() == run.steps().height
        assert run.steps()["wait_s"].min() > 0
        assert run.stages()["exposed_s"].null_count() == 0

    def test_samples_of_a_stream_know_their_worker(self):
        """Samples of a stream have no index, and each knows its worker."""
        run = ss.record(DataLoader(NoiseStream(64), 4, num_workers=2), batches=8, warmup=2)

        assert {0, 1} == set(run.samples()["worker"])
        assert run.samples()["index"].null_count() == run.samples().height


class TestBadInput:
    @pytest.mark.parametrize("verb", ["record", "instrumented"])
    @pytest.mark.parametrize("moment", [0, 3, 6])
    @pytest.mark.usefixtures("lost_interrupts_come_again")
    def test_an_interrupt_at_any_moment_leaves_nothing(self, verb, moment):
        """Ctrl-C while starting, running or ending puts the generators back."""
        before = generators()
        interrupt = threading.Timer(0.01 + moment * 0.04, os.kill, (PARENT, signal.SIGINT))
        loader = DataLoader(Slow(64), 2, shuffle=True, num_workers=2 * (moment % 2))

        with pytest.raises(KeyboardInterrupt):
            interrupt.start()
            if verb == "record":
                ss.record(loader, batches=20)
            else:
                with ss.instrumented(loader):
                    list(loader)
            time.sleep(5)

        assert "instrumented" == verb or before == generators()

    def test_nothing_of_ours_keeps_a_dataset(self):
        """A dataset dies with its last reference, so that a loader inside it ends its workers."""
        dataset = Noise(64)
        ss.record(DataLoader(dataset, 4), batches=4)
        there = weakref.ref(dataset)
        gc.disable()
        try:
            del dataset
            assert there() is None
        finally:
            gc.enable()

    def test_the_budget_ends_the_recording(self):
        """The loop stops after the first batch beyond the budget, and the run says so."""
        run = ss.record(DataLoader(Slow(10_000), 4), batches=5_000, budget_s=0.5)

        assert run.all_steps.height < 5_000
        assert any("budget" in note for note in run.notes)

    def test_a_short_loader_goes_on_with_the_next_epoch(self):
        """A short loader runs as many epochs as needed, and the run has a note."""
        run = ss.record(DataLoader(Noise(8), 4), batches=6, warmup=0)

        assert 6 == run.steps().height
        assert 4 == run.steps(steady=False)["epoch"].n_unique()
        assert any("4 epochs" in note for note in run.notes)

    def test_an_empty_stream_ends_with_a_sentence(self):
        """A loader that gives nothing leads to an empty run that says so."""
        run = ss.record(DataLoader(NoiseStream(0), 4), batches=6)

        assert run.stages().is_empty()
        assert any("nothing to show" in note for note in run.notes)

    def test_works_after_a_failed_recording(self):
        with pytest.raises(KeyError):
            ss.record(DataLoader(Fails(), 4, num_workers=2))

        run = ss.record(DataLoader(Noise(64), 4, num_workers=2), batches=8, warmup=2)

        assert {"getitem", "collate", "batch"} >= set(run.work["stage"])

    def test_no_room_for_the_logs(self, monkeypatch):
        """A full temporary folder is an error that names it, before anything is started."""
        from stallscope import files

        monkeypatch.setattr(files.shutil, "disk_usage", lambda _: _Usage(free=1000))
        with pytest.raises(WorkspaceError, match="TMPDIR"):
            ss.record(DataLoader(Noise(), 4))

    def test_other_iterables_show_their_waits(self):
        run = ss.record([torch.rand(2)] * 3, batches=3, warmup=0)

        assert run.steps()["wait_s"].null_count() == 0
        assert run.work.is_empty()

    def test_loaders_one_after_the_other_are_several(self):
        """With training and validation in one iterable, the steps are the longer loader's."""
        train, validate = (DataLoader(Slow(n), 4, num_workers=1) for n in (24, 12))

        class Both:
            def __iter__(self):
                for _ in range(2):
                    yield from train
                    yield from validate

        run = ss.record(Both(), batches=18, warmup=0)

        each = run.all_steps.group_by("epoch", maintain_order=True).len()
        assert [6, 6] == each["len"].to_list()[:2]
        assert run.others[0].all_spans.height
        waits = run.waits.filter(pl.col("batch") == 0)
        begun = run.deliveries.filter(pl.col("batch") == 0)
        assert (waits["start_ns"][1:] < begun["asked_ns"][1:]).all()  # with the iterator's making

    def test_a_loader_that_is_made_late(self):
        """An iterable that shows no DataLoader yet is watched like all loaders of the process."""

        class Late:
            def __iter__(self):
                return iter(DataLoader(Noise(), 4))

        with ss.instrumented(Late(), warmup=0) as watch:
            batches = len(list(Late()))

        assert batches == watch.run.all_steps.height


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


@pytest.mark.parametrize(
    "verb", [ss.record, ss.ladder, ss.flame, ss.lines, ss.storage, ss.layouts, ss.experiments]
)
def test_an_experiment_refuses_more_than_one_rank(monkeypatch, verb):
    """Under torchrun, also before the ranks have met, the error names the alternative."""
    monkeypatch.setenv("WORLD_SIZE", "8")

    with pytest.raises(UnsupportedError, match=r"8 ranks.*ss\.instrumented"):
        verb(DataLoader(Noise(), 4))


def test_watching_is_allowed_and_knows_its_rank(monkeypatch):
    """`instrumented` works in each rank, and its spans carry the rank."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "5")
    loader = DataLoader(Noise(), 4)

    with ss.instrumented(loader) as watch:
        list(loader)

    assert {5} == set(watch.run.spans(steady=False)["rank"])
