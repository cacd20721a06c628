"""Waits for batches that never come: each ends, says where the worker hangs, and cleans up.

Leftover hooks, processes, threads and folders fail every test (`conftest.py`).
"""

import time

import pytest
from support.faulty_datasets import Hangs, StandsStill, as_generator
from support.loaders import Noise
from torch.utils.data import DataLoader
from torch.utils.data import _utils as torch_utils

import stallscope as ss
from stallscope.errors import NoBatchError
from stallscope.loops import batch_timeout

WAIT_S = 0.8
"""Long enough for a sound batch of these datasets on a busy machine."""


def limited_to(most_s, monkeypatch):
    def wait_s(limit):
        limit.timeouts.add(most_s)
        return most_s

    monkeypatch.setattr(batch_timeout._TimeLimit, "wait_s", wait_s)


def hanging(monkeypatch, dataset, verb=ss.record, **loads):
    """Return the error of a measurement whose loader hangs."""
    limited_to(WAIT_S, monkeypatch)
    loader = DataLoader(dataset, 2, **{"num_workers": 2, **loads})
    with pytest.raises(NoBatchError) as caught:
        verb(loader, lambda _: None)
    error = caught.value.with_traceback(None)
    error.notes = "\n".join(getattr(error, "__notes__", []))
    return error


class TestWorkersThatHang:
    @pytest.mark.parametrize(
        ("how", "state"), [("stopped", "(stopped)"), ("endless loop", "(running)")]
    )
    def test_for_any_reason(self, monkeypatch, how, state):
        error = hanging(monkeypatch, StandsStill(how, bad=0))

        assert "owes batch 0 and is in StandsStill.load_for_ever (faulty_data" in str(error)
        assert state in str(error)

    def test_the_error_holds_the_stack_and_the_run(self, monkeypatch):
        error = hanging(monkeypatch, StandsStill())

        assert "Hangs.__getitem__ (faulty_datasets.py:" in error.notes
        assert "stage " not in error.notes
        assert 4 == error.run.all_steps.height
        assert {0, 1} == set(error.run.all_spans["worker"])

    def test_in_other_measurements(self, monkeypatch):
        error = hanging(monkeypatch, StandsStill(bad=0), ss.ladder)

        assert "owes batch 0 and is in" in str(error)

    def test_a_diagnosis_reports_only_the_hang(self, monkeypatch):
        error = hanging(monkeypatch, StandsStill(bad=60), ss.diagnose)

        (verdict,) = error.diagnosis.findings
        assert verdict.title.startswith("No batch came for ")
        assert "load_for_ever (faulty_datasets.py:" in verdict.title
        assert error.diagnosis.fixes.is_empty()

    def test_beside_a_loader_of_the_users(self, monkeypatch):
        """The workers of another loader that is going on stay alive."""
        mine = iter(DataLoader(Noise(64), 2, num_workers=1))
        next(mine)

        hanging(monkeypatch, StandsStill())

        assert mine._workers[0].is_alive()
        mine._shutdown_workers()

    def test_with_a_batch_that_cannot_be_pickled(self, monkeypatch):
        error = hanging(monkeypatch, StandsStill("goes on", bad=0), collate_fn=as_generator)

        assert "owes batch 0 and waits for its next task: that batch could not be sent" in str(
            error
        )


class TestOtherLoops:
    @pytest.fixture(autouse=True)
    def torch_is_impatient(self, monkeypatch):
        """Shorten the five seconds that torch waits before it terminates a hanging worker."""
        monkeypatch.setattr(torch_utils, "MP_STATUS_CHECK_INTERVAL", 0.2)

    def test_a_loop_that_is_only_watched_has_no_limit(self, monkeypatch):
        limited_to(0.1, monkeypatch)

        with pytest.raises(RuntimeError, match="timed out after 1 seconds"), ss.instrumented():
            list(DataLoader(Hangs(), 2, num_workers=2, timeout=1))

    def test_a_shorter_timeout_of_the_users_still_ends_the_wait(self):
        with pytest.raises(RuntimeError, match="timed out after 1") as caught:
            ss.record(DataLoader(Hangs(), 2, num_workers=2, timeout=1))

        assert not isinstance(caught.value, NoBatchError)

    def test_the_users_loader_keeps_its_timeout(self):
        loader = DataLoader(Noise(8), 2, num_workers=1)

        ss.record(loader, batches=2)

        assert 0 == loader.timeout


def test_a_wait_may_take_the_rest_of_the_budget_and_half_a_minute():
    limit = batch_timeout._TimeLimit(60.0, "wait", time.monotonic() + 20.0)

    assert 50 == limit.wait_s()
    limit.most_s = 7.5
    assert 8 == limit.wait_s()
