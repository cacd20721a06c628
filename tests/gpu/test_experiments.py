"""Experiments on a step whose device works behind the host, whichever it is."""

import time

import pytest
import torch
from support.device_loops import Naps
from torch import nn
from torch.utils.data import DataLoader

import stallscope as ss


def batches(values=250_000):
    return DataLoader(Naps(0.0, 64, values), 4)


def test_copies_are_timed_in_each_way(worker):
    """The host is free before a copy from pinned memory that it does not wait for is there."""
    found = ss.experiments(batches(), worker.step(0.002), device=worker.where, budget_s=5)
    rows = {row["way"]: row for row in found.copies().iter_rows(named=True)}
    free, held = rows["pinned, non_blocking=True"], rows["from pinned memory"]

    assert free["host_s"] < free["copy_s"]
    assert free["host_s"] < held["host_s"]
    assert held["copy_s"] < rows["from pageable memory"]["copy_s"]


def test_a_line_that_waits_is_named_with_what_it_takes(worker):
    def step(batch):
        worker.launch(0.01)
        batch.sum().item()

    found = ss.experiments(batches(4), step, device=worker.where, budget_s=5)
    row = found.waits.row(0, named=True)

    assert "batch.sum().item()" == row["source"]
    assert 1 == row["calls_per_step"]
    assert row["wait_s"] > 0.007


def test_a_step_of_many_short_kernels_is_bound_by_launches(worker):
    def step(_):
        for _ in range(20):
            worker.launch(0.00005)
            time.sleep(0.0005)

    found = ss.experiments(batches(4), step, device=worker.where, budget_s=5)

    assert 20 == round(found.circumstances.kernels_per_step)
    assert found.circumstances.kernel_s == pytest.approx(0.00005, rel=0.2)
    assert "bound by launches" in str(found)


@pytest.mark.gpu
class TestCuda:
    """What only a real one can show."""

    def test_every_experiment_leaves_the_model_as_it_was(self):
        """Weights, moments, strides, cuDNN's setting and torch's debug mode."""
        model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())

        def step(batch):
            optimizer.zero_grad(set_to_none=False)
            loss = model(batch.view(-1, 4, 8, 8)).square().mean()
            loss.backward()
            optimizer.step()

        step(torch.ones(4, 256).cuda())
        before = [one.clone() for one in model.state_dict().values()]
        settings = torch.backends.cudnn.benchmark, torch.cuda.get_sync_debug_mode()
        found = ss.experiments(batches(256), step, device="cuda", budget_s=15)
        tried = {row["experiment"] for row in found.table().to_dicts() if row["pairs"]}

        assert {"bfloat16 autocast", "channels_last", "cudnn.benchmark", "fused optimizer"} <= tried
        assert settings == (torch.backends.cudnn.benchmark, torch.cuda.get_sync_debug_mode())
        after = model.state_dict().values()
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        assert model[0].weight.is_contiguous()

    def test_a_boolean_mask_is_heard_by_torchs_debug_mode_too(self):
        found = ss.experiments(
            batches(256), lambda batch: batch[batch > 0], device="cuda", budget_s=5
        )

        assert [1.0] == found.waits["calls_per_step"].to_list()

    def test_a_batch_that_the_loader_pins_is_compared_with_pageable_memory(self):
        pinned = DataLoader(Naps(0.0, 64, 1_000_000), 4, pin_memory=True)
        found = ss.experiments(pinned, lambda batch: batch.sum(), device="cuda", budget_s=5)
        rows = {row["way"]: row["copy_s"] for row in found.copies().iter_rows(named=True)}

        assert "from pinned memory" == next(iter(rows))
        assert rows["from pinned memory"] < rows["from pageable memory"]

    def test_a_step_that_reaches_no_module_is_timed_by_the_device_in_use(self):
        matrix = torch.randn(8192, 8192, device="cuda")
        torch.cuda.synchronize()
        found = ss.experiments(batches(4), lambda _: matrix @ matrix, budget_s=5)

        assert found.circumstances.device == torch.cuda.get_device_name()
        assert "device='cuda'" in "".join(found.notes)

    def test_a_top_rung_without_room_keeps_fewer_batches(self):
        """The rest of the memory is taken; what is kept makes room for the step."""
        free, _ = torch.cuda.mem_get_info()
        size = 64_000_000
        taken = torch.empty(max(free - 6 * 4 * size, 0), dtype=torch.uint8, device="cuda")

        def step(batch):
            torch.empty_like(batch).fill_(1)

        found = ss.ladder(batches(size // 4), step, device="cuda", budget_s=20)
        del taken

        assert found.table().filter(found.table()["rung"] == "batches on the device")["blocks"][0]

    def test_memory_and_both_busy_shares_stand_in_one_sentence(self):
        weight = torch.randn(4096, 4096, device="cuda")
        found = ss.ladder(batches(4096), lambda batch: batch @ weight, device="cuda", budget_s=10)

        assert "its memory is" in str(found)
        assert "it computes" in str(found)
