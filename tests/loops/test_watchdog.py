"""Waits for batches that never come: each ends, says where the worker stands, and leaves nothing.

Hooks, processes, threads and folders that were left would fail every test (`conftest.py`).
"""

import gc
import math
import multiprocessing
import signal
import sys
import time

import polars as pl
import pytest
import torch
from support.faulty_datasets import (
    Hangs,
    NeverArrives,
    NeverGoesOn,
    OneIsStopped,
    SlowToSend,
    StandsStill,
    StandsStillInWorkers,
    UsesPolars,
    as_generator,
)
from support.loaders import Noise
from torch.utils.data import DataLoader
from torch.utils.data import _utils as torch_utils

import stallscope as ss
from stallscope import pyspy_calls
from stallscope.errors import NoBatchError
from stallscope.hooks.probe import shut_down
from stallscope.loops import watchdog


class Patience:
    """Stands in for the clock of a watchdog: a wait lasts too long when nothing is left to come."""

    budget_s, longest_s, after_s, remedy = 60.0, None, 0.0, "give it more"

    def __init__(self, dataset, used):
        self.others = {process.pid for process in multiprocessing.active_children()}
        self.stands, self.used = dataset.stands, used
        self.before = dataset.bad // 2

    def ends_s(self, since_s, **_):
        hangs = self.stands.wait(0) and len(self.used) >= self.before
        return since_s + self.after_s if hangs else math.inf


def hanging(monkeypatch, dataset, verb=ss.record, **loads):
    """The error of a measurement whose loader hangs."""
    used = []
    monkeypatch.setattr(watchdog, "_Patience", lambda *_, **__: Patience(dataset, used))
    monkeypatch.setattr(watchdog, "_LOOK_EVERY_S", 0.2)
    is_loader = isinstance(dataset, NeverArrives)
    loader = dataset if is_loader else DataLoader(dataset, 2, **{"num_workers": 2, **loads})
    with pytest.raises(NoBatchError) as caught:
        verb(loader, used.append)
    error = caught.value.with_traceback(None)
    error.notes = "\n".join(getattr(error, "__notes__", []))
    return error


class TestWorkersThatStandStill:
    @pytest.mark.parametrize(
        ("how", "state"),
        [
            ("stopped", "it is stopped, as by SIGSTOP"),
            ("deadlock", "it sleeps"),
            ("endless loop", "it is computing"),
        ],
    )
    def test_for_any_reason(self, monkeypatch, how, state):
        """The wait ends, and the error says where the worker stands."""
        error = hanging(monkeypatch, StandsStill(how, bad=0))

        assert "owes batch 0 and stands in StandsStill.load_for_ever (faulty_data" in str(error)
        assert state in str(error)

    def test_what_is_known_then(self, monkeypatch):
        """The stack without anything of ours, and the run until then."""
        error = hanging(monkeypatch, StandsStill())

        assert "Hangs.__getitem__ (faulty_datasets.py:" in error.notes
        assert "stage " not in error.notes
        assert 4 == error.run.all_steps.height
        assert {0, 1} == set(error.run.all_spans["worker"])

    @pytest.mark.parametrize("verb", [ss.ladder, ss.flame, ss.diagnose])
    def test_in_other_measurements(self, monkeypatch, verb):
        """They end like a recording."""
        error = hanging(monkeypatch, StandsStill(bad=0), verb)

        assert "owes batch 0 and stands in" in str(error)

    def test_while_orders_are_measured(self, monkeypatch):
        """The samples of this process are made, and the first wait for a worker ends."""
        error = hanging(monkeypatch, StandsStillInWorkers(), lambda loader, _: ss.orders(loader))

        assert "owes batch 0 and stands in Hangs.load_for_ever (faulty_data" in str(error)
        assert "StandsStillInWorkers.__getitem__ (faulty_datasets.py:" in error.notes

    def test_where_py_spy_is_not_there(self, monkeypatch):
        """The error says so, and what the system knows of the worker."""
        monkeypatch.setattr(pyspy_calls, "executable", lambda: None)

        error = hanging(monkeypatch, StandsStill("stopped", bad=0))

        assert "its stack cannot be read (py-spy is not installed" in str(error)
        assert "it is stopped" in str(error)

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are spawned")
    def test_for_threads_of_polars(self, monkeypatch):
        """The error says why it waits, and what helps."""
        pl.DataFrame({"a": [1]}).filter(pl.col("a") > 0)
        monkeypatch.setattr(Patience, "after_s", 0.3)

        error = hanging(monkeypatch, UsesPolars())

        assert "polars had been used in this process" in str(error)
        assert 'multiprocessing_context="forkserver"' in str(error)

    def test_beside_a_loader_of_the_users(self, monkeypatch):
        """The workers of another loader that is going on stay alive."""
        mine = iter(DataLoader(Noise(64), 2, num_workers=1))
        next(mine)

        hanging(monkeypatch, StandsStill())

        assert mine._workers[0].is_alive()
        mine._shutdown_workers()

    def test_of_a_loader_that_gc_does_not_see(self, monkeypatch):
        """A training that freezes what it has, as before a fork, hides no worker."""
        gc.collect()
        dataset = StandsStill()

        def record(loader, step):
            return ss.record(loader, lambda batch: (step(batch), gc.freeze()))

        try:
            error = hanging(monkeypatch, dataset, record)
            assert gc.get_freeze_count()
        finally:
            gc.unfreeze()

        assert "owes batch 4 and stands in Hangs.load_for_ever (faulty_data" in str(error)

    def test_when_the_loop_ends_before_it_waits_for_them(self, monkeypatch):
        """A stopped worker, which cannot be told to end, is killed."""
        monkeypatch.setattr(torch_utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
        dataset = StandsStill("stopped", bad=0)
        iterator = iter(DataLoader(dataset, 1, num_workers=1))
        dataset.stands.wait()

        shut_down(iterator)

        assert not iterator._workers[0].is_alive()

    def test_with_a_batch_that_cannot_be_sent(self, monkeypatch):
        """A worker that waits for its next task has lost that batch: it could not be pickled."""
        monkeypatch.setattr(Patience, "after_s", 0.3)

        error = hanging(monkeypatch, StandsStill("goes on", bad=0), collate_fn=as_generator)

        assert "owes batch 0 and waits for its next task: that batch could not be sent" in str(
            error
        )

    def test_that_are_stopped_with_what_another_needs(self, monkeypatch):
        """It is said which one is stopped, whoever owes the batch."""
        monkeypatch.setattr(Patience, "after_s", 0.3)

        error = hanging(monkeypatch, OneIsStopped())

        assert "owes batch 0 and" in str(error)
        assert "; worker 1 (pid " in str(error)
        assert "is stopped, as by SIGSTOP" in str(error)


class TestThisProcessStandsStill:
    @pytest.mark.parametrize(
        ("verb", "workers", "how"),
        [
            (ss.record, 0, "sleep"),
            (ss.diagnose, 0, "endless loop"),
            (ss.ladder, 0, "sleep"),
            (lambda loader, _: ss.lines(loader), 2, "deadlock"),
            (lambda loader, _: ss.orders(loader), 2, "sleep"),
        ],
    )
    def test_in_a_sample(self, monkeypatch, verb, workers, how):
        """The call is ended by a signal, and the error has its stack."""
        dataset = StandsStill(how, bad=0)
        dataset.transform = torch.Tensor.exp

        error = hanging(monkeypatch, dataset, verb, num_workers=workers)

        assert "this process itself stands in " in str(error)
        assert ".load_for_ever (faulty_datasets.py" in str(error)
        assert "StandsStill.__getitem__" in error.notes or "Hangs.__getitem__" in error.notes

    @pytest.mark.parametrize(
        "verb",
        [
            ss.record,
            ss.flame,
            lambda loader, _: ss.lines(loader),
            lambda loader, _: ss.orders(loader),
        ],
    )
    def test_in_a_sampler(self, monkeypatch, verb):
        """Likewise, while workers start, or before anybody makes a sample."""
        dataset = StandsStill(bad=0)
        dataset.transform = torch.Tensor.exp
        sampler = NeverGoesOn(dataset)

        error = hanging(monkeypatch, dataset, verb, sampler=sampler)

        assert "this process itself stands in Hangs.load_for_ever (faulty_data" in str(error)
        assert "NeverGoesOn.__iter__" in error.notes


class TestWorkersThatStartSlowly:
    @pytest.mark.slow
    @pytest.mark.parametrize("verb", [ss.record, ss.ladder, ss.flame, ss.diagnose])
    def test_the_next_one_does_not_start(self, monkeypatch, verb):
        """Where the time is over: those that have started are gone (`conftest.py`)."""

        class AfterOne(watchdog._Patience):
            def ends_s(self, since_s, **_):
                return -math.inf if SlowToSend.sent else math.inf

        monkeypatch.setattr(watchdog, "_Patience", AfterOne)
        monkeypatch.setattr(SlowToSend, "sent", 0)
        loader = DataLoader(SlowToSend(), 4, num_workers=2, multiprocessing_context="spawn")

        with pytest.raises(NoBatchError, match=r"1 worker took .* to start, past the budget"):
            verb(loader)

        assert 1 == SlowToSend.sent


class TestOtherWaits:
    def test_for_what_is_no_loader_of_torchs(self, monkeypatch):
        """The wait is interrupted: there is no worker whose end would end it."""
        monkeypatch.setattr(watchdog, "_ENDING_S", 0.1)

        error = hanging(monkeypatch, NeverArrives())

        assert "no worker is known" in str(error)
        assert 2 == error.run.all_steps.height

    @pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
    def test_where_interrupts_are_the_users(self, monkeypatch, handler):
        """They end in a process that ignores Ctrl-C (`python train.py &`) or uses it itself."""
        monkeypatch.setattr(watchdog, "_ENDING_S", 0.1)
        before = signal.signal(signal.SIGINT, handler)
        try:
            error = hanging(monkeypatch, NeverArrives())
            assert handler is signal.getsignal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)

        assert "no worker is known" in str(error)
        assert signal.SIG_DFL is signal.getsignal(watchdog.WAKE)

    def test_of_a_loop_that_is_only_watched(self, monkeypatch):
        """It is never ended: it is the user's."""
        monkeypatch.setattr(torch_utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
        monkeypatch.setattr(watchdog, "START_GRACE_S", -100.0)

        with pytest.raises(RuntimeError, match="timed out after 1 seconds"), ss.instrumented():
            list(DataLoader(Hangs(), 2, num_workers=2, timeout=1))


class TestHowLongAWaitMayTake:
    def test_for_the_first_batch(self):
        """As long as the budget, and half a minute: workers start and import."""
        patience = watchdog._Patience(60)

        assert 90 == pytest.approx(patience.ends_s(time.monotonic()) - time.monotonic(), abs=1)

    def test_for_another_batch(self):
        """As long as the budget, and ten seconds."""
        patience = watchdog._Patience(60)
        patience.longest_s = 0.5

        assert 70 == pytest.approx(patience.ends_s(time.monotonic()) - time.monotonic(), abs=1)

    def test_for_a_batch_of_a_slow_loader(self):
        """Four times as long as the longest until then, also where it began after the budget."""
        patience = watchdog._Patience(1)
        patience.longest_s = 20

        assert 1e9 + 80 == patience.ends_s(1e9)
