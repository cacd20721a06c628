"""Verbs on loops whose device works behind the host, simulated or real."""

import gc

import polars as pl
import pytest
import torch
from support.device_loops import Naps
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.model.loop_time import loop_breakdown

STEP_S = 0.012


def loader(batch_s, *, values=4, **named):
    return DataLoader(Naps(batch_s / 4, values=values), 4, num_workers=1, **named)


def time_of(run):
    return loop_breakdown(run.steps(), run.stalls())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch_s", "synchronises"), [(0.036, False), (0.036, True), (0.024, True)]
)
def test_a_slow_loader_leaves_the_device_idle(worker, batch_s, synchronises):
    run = ss.record(loader(batch_s), worker.step(STEP_S, synchronises=synchronises), batches=25)
    period_s = batch_s if not synchronises else max(batch_s, STEP_S)
    time = time_of(run)

    assert time.stall_share == pytest.approx(1 - STEP_S / period_s, abs=0.12)
    assert (time.hidden_s < time.stall_s / 4) == synchronises


@pytest.mark.slow
def test_waits_behind_a_busy_device_are_no_stalls(worker):
    """The host waits most of the time, but the device is rarely idle."""
    run = ss.record(loader(0.024), worker.step(0.04), batches=25)

    assert time_of(run).stall_share < 0.15
    assert run.device == worker.device.name


@pytest.mark.slow
def test_the_devices_time_is_kept_with_the_run(worker, tmp_path):
    """Device work has the kernel's length, is in order, and survives saving."""
    run = ss.record(loader(0.02), worker.step(STEP_S), batches=20)
    work = run.device_work
    lengths = (
        work.filter(pl.col("kind") == "step")
        .select((pl.col("end_ns") - pl.col("start_ns")) / 1e9)
        .to_series()
    )

    assert lengths.median() == pytest.approx(STEP_S, rel=0.05)
    assert (work["start_ns"].diff().drop_nulls() >= 0).all()
    assert ss.load(run.save(tmp_path / "run")).device_work.equals(work)


@pytest.mark.slow
def test_the_parts_of_a_stall_add_up_to_its_idle_time(worker):
    run = ss.record(loader(0.03), worker.step(STEP_S), batches=20)
    sums = run.parts().group_by("step").agg(pl.col("exposed_s").sum())
    beside = run.stalls().join(sums, on="step")

    assert beside.height
    assert (beside["stall_s"] - beside["exposed_s"]).abs().max() < 1e-6


@pytest.mark.slow
def test_the_users_own_loop_is_watched(worker):
    batches, step = loader(0.03), worker.step(STEP_S)
    with ss.instrumented(batches) as watch:
        for number, batch in enumerate(batches):
            step(batch)
            if number == 30:
                break
    batches = None

    assert watch.run.device == worker.device.name
    assert watch.run.stalls()["hidden_s"].median() == pytest.approx(STEP_S, rel=0.1)


@pytest.mark.slow
def test_a_ladder_is_timed_by_the_device(worker):
    ladder = ss.ladder(loader(0.03), worker.step(STEP_S), budget_s=8)
    top = ladder.table().filter(pl.col("blocks") > 0).row(-1, named=True)

    assert top["samples_per_s"] == pytest.approx(4 / STEP_S, rel=0.1)
    assert top["step_share"] > 0.9


@pytest.mark.thorough
@pytest.mark.parametrize(("batch_s", "code"), [(0.012, "healthy"), (0.06, "storage-latency")])
def test_the_verdict_rests_on_idle_time(worker, batch_s, code):
    """A loop whose device is always busy is healthy."""
    diagnosis = ss.diagnose(loader(batch_s), worker.step(0.02), budget_s=20)

    assert code == diagnosis.verdict.code
    assert diagnosis.verdict.severity < 0.1 or batch_s > 0.02


class Collecting(Naps):
    """Samples whose workers collect garbage, including objects of the parent process."""

    def __getitem__(self, index):
        gc.collect()
        return super().__getitem__(index)


@pytest.mark.slow
def test_workers_can_collect_garbage_after_a_recording(worker):
    """CUDA kills a worker that destroys an event of the process that it was forked from."""
    data = Collecting(0.0, entries=80)
    for _ in range(2):
        run = ss.record(DataLoader(data, 4, num_workers=2), worker.step(0.002), batches=18)

    assert run.steps().height >= 14


def test_workers_can_collect_garbage_during_a_recording(worker):
    """Workers of the second epoch are forked while events of the first are in use."""
    batches, step = DataLoader(Collecting(0.0, entries=80), 4, num_workers=2), worker.step(0.002)
    with ss.instrumented(batches) as watch:
        for _ in range(2):
            for batch in batches:
                step(batch)

    assert 2 == watch.run.steps()["epoch"].n_unique()


@pytest.mark.gpu
class TestCuda:
    def test_a_model_that_trains_is_restored_and_its_device_detected(self):
        """The parameters name the device, and the recording undoes its training steps."""
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        before = model.weight.detach().clone()

        def step(batch):
            optimizer.zero_grad()
            model(batch.cuda(non_blocking=True)).square().mean().backward()
            optimizer.step()

        run = ss.record(loader(0.01, values=64), step, batches=20)

        assert torch.equal(before, model.weight)
        assert run.device == torch.cuda.get_device_name()
        assert run.device_work.height

    @pytest.mark.parametrize("pinned", [False, True])
    def test_copies_are_timed_on_the_device(self, pinned):
        run = ss.record(
            loader(0.02, values=1_000_000, pin_memory=pinned),
            lambda batch: batch.sum(),
            device="cuda",
            batches=15,
        )
        copies = run.device_work.filter(pl.col("kind") == "h2d")

        assert copies.height
        assert (copies["end_ns"] - copies["start_ns"]).median() > 16e6 / 60e9 * 1e9

    def test_no_synchronisation_while_it_records(self):
        """A synchronisation by the recording would raise in torch's sync debug mode."""
        torch.ones(1, device="cuda")
        batches = loader(0.005)
        with ss.instrumented(batches) as watch:
            torch.cuda.set_sync_debug_mode("error")
            try:
                for number, _ in enumerate(batches):
                    torch.cuda._sleep(1_000_000)
                    if number == 20:
                        break
            finally:
                torch.cuda.set_sync_debug_mode("default")

        assert watch.run.device_work.height

    def test_a_step_captured_as_a_graph(self):
        x = torch.ones(1024, 1024, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(50):
                x = x @ x.clamp(0, 1e-3)
        run = ss.record(loader(0.02), lambda _: graph.replay(), batches=15)

        assert run.stalls().height
        assert run.device_work.filter(pl.col("kind") == "step").height

    def test_a_ladder_has_pinned_and_on_device_rungs(self):
        weight = torch.randn(4096, 4096, device="cuda")
        ladder = ss.ladder(
            loader(0.02, values=4096), lambda batch: batch @ weight, device="cuda", budget_s=15
        )
        rows = {row["rung"]: row for row in ladder.table().iter_rows(named=True)}

        assert rows["batches in pinned memory"]["blocks"]
        assert rows["batches on the device"]["device_busy_share"] is not None
