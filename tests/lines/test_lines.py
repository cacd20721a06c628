"""Lines of real datasets: the hottest line, unchanged code, messages."""

import gc
import random
import signal
import sys
import threading
import time
import types
from typing import Any

import numpy as np
import pytest
import torch
from support import slow_lines
from support.build_lines import some_lines
from support.loaders import Backwards, Fails
from support.slow_lines import (
    Bulk,
    Decorated,
    Items,
    Recursive,
    Sleeper,
    Slow,
    Stream,
    closing_over,
    plain,
    slow_collate,
)
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.verbs.lines import lines as verb
from stallscope.verbs.lines.result import sentence


@pytest.fixture(autouse=True)
def rough_shares(monkeypatch):
    """Take few samples: `planted_shares.py` checks the precision of the shares."""
    monkeypatch.setattr(verb, "_WITHIN", 0.1)
    monkeypatch.setattr(verb, "_LEAST_LOOKS", 60)


def hottest(lines: ss.Lines) -> dict[str, Any]:
    return lines.table().row(0, named=True)


def names(lines: ss.Lines) -> list[str]:
    """Return the functions whose lines were timed."""
    return lines.functions["function"].to_list()


def noted(lines: ss.Lines) -> str:
    return "\n".join(lines.notes)


def codes() -> dict[str, types.CodeType]:
    """Return the code objects of the planted module's functions."""
    code_by_name = {}
    for name, member in vars(slow_lines).items():
        if isinstance(member, types.FunctionType):
            code_by_name[name] = member.__code__
        elif isinstance(member, type):
            for part, method in vars(member).items():
                if isinstance(method, types.FunctionType):
                    code_by_name[f"{name}.{part}"] = method.__code__
    return code_by_name


class Nothing:
    """A sampler that yields no index and has no length."""

    def __iter__(self) -> Any:
        return iter(())


class TestTheHottestLine:
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("dataset", [Items, Bulk])
    def test_is_the_planted_one(self, dataset, workers):
        lines = ss.lines(DataLoader(dataset(Sleeper()), 4, num_workers=workers), samples=4)

        first = hottest(lines)
        assert "time.sleep(SLEEP_S)" in first["source"]
        assert ["Sleeper.__call__", "Sleeper", 4] == [
            first[name] for name in ("function", "stage", "hits")
        ]
        assert first["own_share"] > 0.5
        assert sentence(lines).startswith(f"Line {first['line']} of `Sleeper.__call__` takes")

    def test_is_in_a_stream(self):
        """A generator's line is timed while it runs, not while the generator is suspended."""
        lines = ss.lines(DataLoader(Stream(), 4, num_workers=1), samples=16)

        assert ("Stream.__iter__", 16) == (hottest(lines)["function"], hottest(lines)["hits"])
        assert "time.sleep" in hottest(lines)["source"]
        assert hottest(lines)["share"] <= 1

    def test_is_in_the_collate_function(self):
        lines = ss.lines(DataLoader(Items(), 2, collate_fn=slow_collate), samples=4)

        first = hottest(lines)
        assert ["slow_collate", "collate", 4] == [
            first[name] for name in ("function", "stage", "hits")
        ]

    @pytest.mark.parametrize(
        ("transform", "name"),
        [
            (plain, "plain"),
            (closing_over(0.003), "closing_over.<locals>.waits"),
            (Decorated(), "Decorated.__call__"),
            (lambda value: time.sleep(0.003) or value, "lambda (test_lines.py:"),
        ],
        ids=["function", "closure", "decorated", "lambda"],
    )
    def test_is_in_every_kind_of_transform(self, transform, name):
        lines = ss.lines(DataLoader(Items(transform), 2), samples=4)

        assert hottest(lines)["function"].startswith(name)
        assert "time.sleep" in hottest(lines)["source"]

    def test_modules_of_torch_are_no_lines_of_the_users(self):
        modules = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity())
        lines = ss.lines(DataLoader(Items(modules), 2), samples=4)

        assert ["Items.__getitem__"] == names(lines)

    def test_is_timed_without_batches(self):
        lines = ss.lines(DataLoader(Items(Sleeper()), batch_size=None), samples=3)

        assert ("batch", 3) == (lines.circumstances.unit, lines.circumstances.samples)
        assert "time.sleep(SLEEP_S)" in hottest(lines)["source"]

    def test_counts_no_time_twice_in_recursion(self):
        lines = ss.lines(DataLoader(Items(Recursive()), 2), samples=4)

        assert "time.sleep(0.005)" in hottest(lines)["source"]
        assert lines.table()["own_share"].sum() <= 1.05


class TestFunctions:
    def test_are_chosen_by_name(self):
        loader = DataLoader(Items(Sleeper()), 2, collate_fn=slow_collate)

        assert ["Sleeper.after"] == names(ss.lines(loader, functions="after", samples=2))
        assert ["Sleeper.__call__", "Sleeper.after"] == sorted(
            names(ss.lines(loader, functions=["Sleeper.after", "Sleeper"], samples=2))
        )
        assert ["slow_collate"] == names(ss.lines(loader, functions="collate", samples=2))

    def test_are_chosen_as_objects(self):
        """A library's function can be chosen too."""
        loader = DataLoader(Items(Sleeper()), 2)
        wanted = [Sleeper.after, torch.utils.data.default_collate]

        assert ["Sleeper.after", "default_collate"] == names(
            ss.lines(loader, functions=wanted, samples=2)
        )

    def test_that_never_run_are_named(self):
        lines = ss.lines(DataLoader(Items(Sleeper()), 2), functions=[plain], samples=2)

        assert "never called for these samples: `plain`" in noted(lines)
        assert sentence(lines) == "No line was measured"

    @pytest.mark.parametrize(
        ("functions", "message"),
        [
            ("Sleepr.after", r"did you mean 'Sleeper.after'\? There are .*Sleeper.__call__"),
            ("nothing of the kind", "matches no function that makes these samples"),
            (7, "functions=7: give names or functions"),
            ([], r"functions=\[\]: give names"),
            ([7], "functions holds 7"),
            (len, "`len`, which has no Python source"),
        ],
    )
    def test_that_do_not_exist_are_an_error(self, functions, message):
        with pytest.raises(ss.StallscopeError, match=message):
            ss.lines(DataLoader(Items(Sleeper()), 2), functions=functions, samples=2)


class TestNothingChanges:
    def test_of_generators_and_samplers(self):
        dataset = Items(plain)
        sampler = Backwards(dataset)
        loader = DataLoader(dataset, 2, sampler=sampler, generator=torch.Generator())

        def states():
            of_torch = [torch.get_rng_state().tolist(), loader.generator.get_state().tolist()]
            return [*of_torch, random.getstate(), str(np.random.get_state())]

        before = states()

        ss.lines(loader, samples=4)

        assert before == states()
        assert 0 == sampler.epochs
        assert dataset.file is None

    def test_of_any_function(self):
        """Every code object is the original afterwards, even after an error."""
        before = codes()

        ss.lines(DataLoader(Items(Sleeper()), 2), samples=2)
        with pytest.raises(KeyError):
            ss.lines(DataLoader(Fails(64, bad=3), 2), samples=16)

        assert all(code is before[name] for name, code in codes().items())

    def test_of_living_workers(self):
        loader = DataLoader(Items(plain), 4, num_workers=1, persistent_workers=True)
        iter(loader)
        iterator = loader._iterator
        ss.lines(loader, samples=2)

        assert loader._iterator is iterator
        del iterator
        loader._iterator._shutdown_workers()
        loader._iterator = None
        gc.collect()

    @pytest.mark.usefixtures("lost_interrupts_come_again")
    def test_after_an_interrupt(self):
        """Ctrl-C while lines are timed leaves no profiler and keeps the measured lines."""
        before, hooks = codes(), (sys.gettrace(), sys.getprofile())
        timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt) as caught:
            ss.lines(DataLoader(Items(Sleeper()), 2), samples=2_000)
        timer.join()

        assert isinstance(caught.value.lines, ss.Lines)
        assert hooks == (sys.gettrace(), sys.getprofile())
        assert all(code is before[name] for name, code in codes().items())


class TestErrors:
    def test_an_exception_of_the_datasets_passes(self):
        """The exception is unchanged, and carries its origin and the lines measured so far."""
        with pytest.raises(KeyError, match="no sample 17") as caught:
            ss.lines(DataLoader(Fails(64, bad=17), 4), samples=32)

        assert caught.value.lines.circumstances.samples > 0
        assert any("while 'where the time goes' was" in note for note in caught.value.__notes__)

    @pytest.mark.parametrize("samples", [0, -1, 2.5, "3", None, True, float("nan")])
    def test_an_invalid_number_of_samples_is_refused(self, samples):
        with pytest.raises(ss.StallscopeError, match="give a whole number, 1 or more"):
            ss.lines(DataLoader(Items(), 2), samples=samples)

    @pytest.mark.parametrize("target", [[torch.zeros(2)], (x for x in range(3))])
    def test_a_loader_not_from_torch_is_refused(self, target):
        with pytest.raises(ss.StallscopeError, match="give a plain DataLoader"):
            ss.lines(target)

    def test_an_empty_sampler_is_refused(self):
        loader = DataLoader(Items(), 2, sampler=Nothing())
        with pytest.raises(ss.StallscopeError, match="sampler gives no index"):
            ss.lines(loader)


def test_sentence_without_a_line_that_stands_out():
    assert sentence(some_lines({"f": [("a()", (0.03, 0.03))]})).startswith(
        "No line stands out: the hottest, "
    )
    assert "No line was measured" == sentence(some_lines({}))


@pytest.mark.parametrize("samples", [4, 400])
def test_the_budget_is_kept(samples):
    began_s = time.perf_counter()
    lines = ss.lines(DataLoader(Items(Slow()), 2), samples=samples, budget_s=1.0)

    assert time.perf_counter() - began_s < 20  # of a busy machine
    assert lines.circumstances.samples < 100
    assert "time.sleep(0.05)" in hottest(lines)["source"]
