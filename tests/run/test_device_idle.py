"""Idle time of a device that works behind the host, during the waits of a loop."""

import polars as pl
import pytest
import torch
from support.device_loops import Naps, WatchedStep, idleness
from support.gpu_clock import GpuLike
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.hooks.device_time import SimulatedDevice
from stallscope.model.loop_time import loop_breakdown
from stallscope.run.stall_data import sentence

NEAR = 0.02
"""Largest error of the idle time that is found, as a share of the loop."""


def recorded(sample_s, step_s, *, workers=1, batches=30, values=4, synchronises=False, **device):
    """Record a loop over samples that nap, on a simulated device; return its run and its step."""
    step = WatchedStep(step_s, GpuLike(**device), synchronises=synchronises)
    loader = DataLoader(Naps(sample_s, values=values), 4, num_workers=workers)
    return ss.record(loader, step, batches=batches), step


class TestPlantedLoops:
    @pytest.mark.slow
    def test_a_host_that_waits_for_a_busy_device_costs_nothing(self):
        """Batches come shortly before the device is through: the loop waits, and nothing stalls."""
        run, step = recorded(0.006, 0.03, depth=1000)
        idle = idleness(run, step)
        time = loop_breakdown(run.steps(), run.stalls())

        assert idle.waited_s > 0.5 * idle.loop_s
        assert idle.error < NEAR
        assert time.hidden_s > time.stall_s
        assert time.hidden_s == pytest.approx(run.steps()["hidden_s"].sum())
        assert sentence(run).endswith("of the time while its device works") or time.stalls

    @pytest.mark.slow
    @pytest.mark.parametrize("synchronises", [False, True])
    def test_an_idle_device_is_what_a_wait_costs(self, synchronises):
        """The step before hides a third of each wait, unless the loop waits for that step."""
        run, step = recorded(0.008, 0.012, synchronises=synchronises)
        idle = idleness(run, step)
        stalls = run.stalls()

        assert idle.error < NEAR
        assert stalls["stall_s"].sum() == pytest.approx(idle.found_s, rel=1e-6)
        if synchronises:
            assert stalls["hidden_s"].median() < 0.001
        else:
            assert stalls["hidden_s"].median() > 0.01

    def test_the_parts_of_a_stall_are_those_of_its_idle_end(self):
        """The parts of a stall sum to it, and begin when the device runs out of work."""
        run, _ = recorded(0.008, 0.012)
        sums = run.parts().group_by("step").agg(pl.col("exposed_s").sum())
        beside = run.stalls().join(sums, on="step")

        assert beside.height == run.stalls().height
        assert (beside["stall_s"] - beside["exposed_s"]).abs().max() < 1e-6
        assert (beside["end_ns"] - beside["start_ns"] - beside["stall_s"] * 1e9).abs().max() < 2

    @pytest.mark.slow
    def test_copies_are_work_of_the_device(self):
        run, step = recorded(
            0.001, 0.004, values=250_000, pinned_bytes_per_s=1e9, pageable_bytes_per_s=1e9
        )
        copies = run.device_work.filter(pl.col("kind") == "h2d")
        lengths_s = (copies["end_ns"] - copies["start_ns"]) / 1e9

        assert lengths_s.median() > 0.95 * 4 * 250_000 * 4 / 1e9  # longer on a busy machine
        assert idleness(run, step).error < NEAR
        assert run.steps()["h2d_s"].median() > 0.003

    def test_a_loop_on_the_host_has_no_device_beside_it(self):
        run = ss.record(DataLoader(Naps(0.004), 4), ss.simulated_step(0.001), batches=8)

        assert run.device is None
        assert run.device_work.is_empty()
        assert set(run.steps()["hidden_s"]) == {0.0}
        assert set(run.stalls()["hidden_s"]) == {0.0}


class Lost(SimulatedDevice):
    """A device that is lost after some steps, as after an Xid."""

    def record(self, event):
        if len(self.work) > 12:
            raise RuntimeError("device lost")
        super().record(event)


class TestUnknown:
    def test_idle_time_of_a_lost_device_is_unknown(self):
        """The user's loop goes on, later steps have no idle time, and the run gives the reason."""
        step = WatchedStep(0.004, Lost())
        run = ss.record(DataLoader(Naps(0.003), 4, num_workers=1), step, batches=30)
        hidden = run.steps()["hidden_s"]

        assert len(step.begins_ns) >= 30
        assert hidden.null_count() > 15
        assert run.stalls().height <= hidden.len() - hidden.null_count()
        assert any("when the device was idle" in note for note in run.notes)
        assert "it is unknown" in sentence(run)
        assert not loop_breakdown(run.steps(), run.stalls()).is_known


def test_the_batches_are_those_of_the_plain_loader():
    loader = DataLoader(Naps(0.0, 32), 4, shuffle=True)
    torch.manual_seed(5)
    plain = [batch.clone() for batch in loader]
    seen = []
    step = ss.simulated_step(0.0005, runs_behind=True)

    torch.manual_seed(5)
    ss.record(loader, lambda batch: (seen.append(batch.clone()), step(batch)), batches=4, warmup=2)

    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=False))
