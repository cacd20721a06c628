"""Real diagnoses over real workers: measurements, side effects and messages."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from support.loaders import Fails, Noise
from support.planted_costs import SlowFetchDataset
from torch import nn
from torch.utils.data import DataLoader, get_worker_info

import stallscope as ss
from stallscope.targets.target import target
from stallscope.verbs.diagnose import diagnose, verdict
from stallscope.verbs.diagnose.causes import CAUSES
from stallscope.verbs.diagnose.result import SPENT, TABLE

SLOW = 0.01
"""Seconds that a sample waits for storage."""


@pytest.fixture(autouse=True, scope="module")
def short():
    """These tests look at what is measured, and not at how well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnose, "_STEADY_S", 0.2)
        patch.setattr(diagnose, "MANY_STEPS", 14)
        patch.setattr(diagnose, "_LADDER_S", 1.5)
        patch.setattr(diagnose, "_STACKS_S", 0.5)
        patch.setattr(diagnose, "_ALONE_S", 0.2)
        yield


def slow_storage(workers: int = 2, entries: int = 4000) -> DataLoader[Any]:
    """Samples that do nothing but wait for storage, far longer than the step takes."""
    return DataLoader(SlowFetchDataset(entries, SLOW), 8, num_workers=workers)


class SlowSampler:
    """Draws pairs of indices."""

    def __iter__(self):
        yield from ([0, 1] for _ in range(4))


def phases(diagnosis: ss.Diagnosis) -> list[str]:
    """Return the phases that the budget went to."""
    return diagnosis.spent["phase"].to_list()


def one_worker_is_open(_, asked) -> verdict.Question | None:
    """Return the same question even on a busy machine; the rules have their own tests."""
    if verdict.ONE_WORKER in asked:
        return None
    return verdict.Question(verdict.ONE_WORKER, "do the workers share what they wait for?")


@pytest.fixture
def only_the_loop(monkeypatch):
    """Let nothing but the loop fit into the budget."""
    monkeypatch.setattr(diagnose.Examination, "next_question", one_worker_is_open)
    monkeypatch.setattr(diagnose.Examination, "wanted_s", lambda *_: 1e9)


def needs_two(_worker: int) -> None:
    """Fail in a loader with a single worker."""
    assert get_worker_info().num_workers > 1


LOADER = slow_storage()


@pytest.fixture(scope="module")
def storage() -> ss.Diagnosis:
    """Diagnose storage that every sample waits for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnose.Examination, "next_question", one_worker_is_open)
        return ss.diagnose(LOADER, ss.simulated_step(0.005))


class TestResult:
    def test_a_loop_that_waits_is_not_healthy(self, storage):
        """The verdict is some cause with its stall; which cause depends on the machine's load."""
        assert storage.verdict.code in CAUSES
        assert "healthy" != storage.verdict.code
        assert storage.verdict.evidence["stall_share"] > 0.5

    def test_the_table_has_a_row_for_each_finding(self, storage):
        table = storage.table()

        assert TABLE == dict(table.schema)
        assert [finding.code for finding in storage.findings] == table["code"].to_list()

    def test_it_lists_what_the_budget_went_to(self, storage):
        """Phases are in order, from the target to the stop; their times fit into the whole."""
        spent = storage.spent

        assert SPENT == dict(spent.schema)
        assert ["target", "loop", verdict.ONE_WORKER] == phases(storage)[:3]
        assert "stop" == phases(storage)[-1]
        assert spent["seconds"].sum() <= storage.circumstances.wall_s

    def test_it_holds_the_run(self, storage):
        assert storage.run.steps().height >= 12

    def test_a_simulated_step_is_called_so(self, storage):
        assert 0.005 == storage.circumstances.simulated_step_s
        assert any("simulated" in note for note in storage.notes)


class TestTarget:
    @pytest.mark.slow
    def test_a_loop_without_workers_blames_the_main_process(self):
        """A loop without workers gets the advice to add them."""
        cause = ss.diagnose(slow_storage(0), ss.simulated_step(0.005), budget_s=6).verdict

        assert "main-process" == cause.code
        assert "num_workers" in cause.next_step

    def test_a_sampler_that_computes_is_named_by_its_place(self):
        """The user's class and its line are named; samplers of torch have no place."""
        setup = diagnose.setup_of(target(DataLoader(Noise(), batch_sampler=SlowSampler())))

        assert setup.sampler.startswith("SlowSampler.__iter__ (test_diagnose.py:")
        assert "" == diagnose.setup_of(target(DataLoader(Noise(), 4, shuffle=True))).sampler

    @pytest.mark.slow
    def test_without_a_step_a_note_says_what_is_unknown(self):
        """A loader alone gets what bounds it, and a note on what a step would add."""
        diagnosis = ss.diagnose(slow_storage())

        assert "healthy" != diagnosis.verdict.code
        assert any("no step was given" in note for note in diagnosis.notes)

    def test_a_loader_too_short_is_inconclusive(self):
        """The verdict says how many more batches are needed."""
        batches = iter([torch.zeros(2)] * 8)

        cause = ss.diagnose(batches, ss.simulated_step(0.001)).verdict

        assert "inconclusive" == cause.code
        assert "are needed" in cause.title

    @pytest.mark.parametrize("budget_s", [0, -1, float("nan"), "60"])
    def test_an_invalid_budget_is_refused(self, budget_s):
        """The error names the number and a valid one."""
        with pytest.raises(ss.StallscopeError, match=r"budget_s=.*seconds above 0"):
            ss.diagnose("sample", budget_s=budget_s)

    def test_an_invalid_target_is_refused(self):
        with pytest.raises(ss.StallscopeError, match="yields no batches"):
            ss.diagnose(42)


class TestBudget:
    @pytest.mark.slow
    @pytest.mark.usefixtures("only_the_loop")
    def test_a_measurement_that_does_not_fit_is_left_out_and_noted(self):
        diagnosis = ss.diagnose(slow_storage(), ss.simulated_step(0.005))

        assert ["target", "loop", "stop"] == phases(diagnosis)
        assert any(note.startswith("no one worker: it takes about") for note in diagnosis.notes)
        assert "too little" in diagnosis.spent["why"][-1]


@pytest.mark.usefixtures("only_the_loop")
class TestLeftAlone:
    def test_generators_and_model_are_unchanged(self):
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(Noise(64), 4, shuffle=True)
        before = [parameter.clone() for parameter in model.parameters()]
        states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()

        def train(batch):
            model(batch.float().flatten()[:4]).sum().backward()
            optimizer.step()

        ss.diagnose(loader, train, budget_s=4)

        assert states[0] == random.getstate()
        assert states[1] == np.random.get_state()[1].tolist()
        assert torch.equal(states[2], torch.get_rng_state())
        assert all(map(torch.equal, before, model.parameters()))

    def test_one_worker_is_tried_on_a_copy(self, storage):
        """The user's loader keeps its number of workers."""
        assert verdict.ONE_WORKER in phases(storage)
        assert 2 == LOADER.num_workers

    def test_an_exception_of_the_users_passes(self):
        with pytest.raises(KeyError, match="no sample 17"):
            ss.diagnose(DataLoader(Fails(), 2), ss.simulated_step(0.001))


@pytest.mark.slow
def test_a_loader_that_fails_with_one_worker_is_noted(monkeypatch):
    monkeypatch.setattr(diagnose.Examination, "next_question", one_worker_is_open)
    loader = slow_storage()
    loader.worker_init_fn = needs_two

    diagnosis = ss.diagnose(loader, ss.simulated_step(0.005))

    assert any("with one worker the loader raises" in note for note in diagnosis.notes)
    assert diagnosis.run.steps().height
