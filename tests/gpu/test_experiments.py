"""Experiments on a step whose device works behind the host, simulated or real."""

import time

import pytest
import torch
from support.device_loops import Naps
from torch import nn
from torch.utils.data import DataLoader

import stallscope as ss


def batches(values=250_000):
    return DataLoader(Naps(0.0, 64, values), 4)


def test_copies_of_each_kind_are_timed(worker):
    """The host is free before a non-blocking copy from pinned memory ends."""
    experiments = ss.experiments(batches(), worker.step(0.002), device=worker.where, budget_s=5)
    rows = {row["way"]: row for row in experiments.copies().iter_rows(named=True)}
    free, held = rows["pinned, non_blocking=True"], rows["from pinned memory"]

    assert free["host_s"] < free["copy_s"]
    assert free["host_s"] < held["host_s"]
    assert held["copy_s"] < rows["from pageable memory"]["copy_s"]


def test_a_line_that_waits_is_named_with_its_duration(worker):
    def step(batch):
        worker.launch(0.01)
        batch.sum().item()

    experiments = ss.experiments(batches(4), step, device=worker.where, budget_s=5)
    row = experiments.waits.row(0, named=True)

    assert "batch.sum().item()" == row["source"]
    assert 1 == row["calls_per_step"]
    assert row["wait_s"] > 0.007


def test_a_step_of_many_short_kernels_is_bound_by_launches(worker):
    def step(_):
        for _ in range(20):
            worker.launch(0.00005)
            time.sleep(0.0005)

    experiments = ss.experiments(batches(4), step, device=worker.where, budget_s=5)

    assert 20 == round(experiments.circumstances.kernels_per_step)
    assert experiments.circumstances.kernel_s == pytest.approx(0.00005, rel=0.2)
    assert "bound by launches" in str(experiments)


@pytest.mark.gpu
class TestCuda:
    def test_every_experiment_leaves_the_model_as_it_was(self):
        """Weights, strides, cuDNN's setting and torch's debug mode stay unchanged."""
        model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())

        def step(batch):
            optimizer.zero_grad(set_to_none=False)
            loss = model(batch.view(-1, 4, 8, 8)).square().mean()
            loss.backward()
            optimizer.step()

        step(torch.ones(4, 256).cuda())
        before = [value.clone() for value in model.state_dict().values()]
        settings = torch.backends.cudnn.benchmark, torch.cuda.get_sync_debug_mode()
        experiments = ss.experiments(batches(256), step, device="cuda", budget_s=15)
        tried = {row["experiment"] for row in experiments.table().to_dicts() if row["pairs"]}

        assert {"bfloat16 autocast", "channels_last", "cudnn.benchmark", "fused optimizer"} <= tried
        assert settings == (torch.backends.cudnn.benchmark, torch.cuda.get_sync_debug_mode())
        after = model.state_dict().values()
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
        assert model[0].weight.is_contiguous()

    def test_a_boolean_mask_is_counted_as_a_wait(self):
        experiments = ss.experiments(
            batches(256), lambda batch: batch[batch > 0], device="cuda", budget_s=5
        )

        assert [1.0] == experiments.waits["calls_per_step"].to_list()

    def test_a_batch_that_the_loader_pins_is_compared_with_pageable_memory(self):
        pinned = DataLoader(Naps(0.0, 64, 1_000_000), 4, pin_memory=True)
        experiments = ss.experiments(pinned, lambda batch: batch.sum(), device="cuda", budget_s=5)
        rows = {row["way"]: row["copy_s"] for row in experiments.copies().iter_rows(named=True)}

        assert "from pinned memory" == next(iter(rows))
        assert rows["from pinned memory"] < rows["from pageable memory"]

    def test_a_step_that_reaches_no_module_is_timed_by_the_device_in_use(self):
        matrix = torch.randn(8192, 8192, device="cuda")
        torch.cuda.synchronize()
        experiments = ss.experiments(batches(4), lambda _: matrix @ matrix, budget_s=5)

        assert experiments.circumstances.device == torch.cuda.get_device_name()
        assert "device='cuda'" in "".join(experiments.notes)

    def test_a_top_rung_without_room_caches_fewer_batches(self):
        """With little free memory, the rung caches fewer batches so that the step fits."""
        free, _ = torch.cuda.mem_get_info()
        size = 64_000_000
        taken = torch.empty(max(free - 6 * 4 * size, 0), dtype=torch.uint8, device="cuda")

        def step(batch):
            torch.empty_like(batch).fill_(1)

        ladder = ss.ladder(batches(size // 4), step, device="cuda", budget_s=20)
        del taken

        assert ladder.table().filter(ladder.table()["rung"] == "batches on the device")["blocks"][0]

    def test_one_sentence_has_memory_and_both_busy_shares(self):
        weight = torch.randn(4096, 4096, device="cuda")
        ladder = ss.ladder(batches(4096), lambda batch: batch @ weight, device="cuda", budget_s=10)

        assert "its memory is" in str(ladder)
        assert "it computes" in str(ladder)
