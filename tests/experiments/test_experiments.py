"""Experiments on real steps: gains, refusals and restored state."""

import time
import warnings
from itertools import count
from pathlib import Path

import polars as pl
import pytest
import torch
from support.device_loops import Naps
from torch import nn
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope import isolation
from stallscope.bench.comparison import FASTER
from stallscope.hooks.device_time import SimulatedDevice
from stallscope.verbs.experiments import experiments as verb
from stallscope.verbs.experiments.changes import CHANGES, StepContext, as_it_is
from stallscope.verbs.experiments.waits import StepFacts, StepWatch, use_watched

HERE = Path(__file__).name
BY_NAME = {change.name: change for change in CHANGES}


@pytest.fixture(autouse=True)
def one_thread():
    """Torch's threads spin while others have the cores, for many times the length of a step."""
    with isolation.one_thread():
        yield


@pytest.fixture(autouse=True, scope="module")
def short_laps():
    """These tests look at what is found, and not at how well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verb, "_LAP_S", 0.02)
        yield


def rows(result):
    return {row["experiment"]: row for row in result.table().iter_rows(named=True)}


class Trainer:
    """A model with a convolution that trains."""

    def __init__(self, **optimizer):
        torch.manual_seed(0)
        layers = (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten())
        self.model = nn.Sequential(*layers, nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01, **optimizer)

    def step(self, batch):
        """Train on a batch of 16 values a sample, as small images; their gradients set to zero."""
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.model(batch[:, :32].reshape(-1, 2, 4, 4)).square().mean()
        loss.backward()
        self.optimizer.step()

    def state(self):
        """Return all that training changes, with its layout in memory."""
        tensors = [*self.model.state_dict().values()]
        moments = [moment for state in self.optimizer.state.values() for moment in state.values()]
        groups = [{**group, "params": None} for group in self.optimizer.param_groups]
        return (
            [tensor.clone() for tensor in (*tensors, *moments)],
            [(parameter.stride(), parameter.data_ptr()) for parameter in self.model.parameters()],
            [sorted(vars(self.optimizer)), groups, torch.get_rng_state().tolist()],
        )


def same(before, after):
    """Return whether two states are equal to the last bit."""
    tensors = zip(before[0], after[0], strict=True)
    return all(torch.equal(a, b) for a, b in tensors) and before[1:] == after[1:]


def images(**named):
    return DataLoader(Naps(0.0001, 64, 32), 4, **named)


def context_of(trainer, optimizer=None, **facts):
    """Return the context of a trainer's step with these observed facts."""
    optimizers = [optimizer or trainer.optimizer]
    return StepContext(trainer.step, [trainer.model], optimizers, "cpu", StepFacts(**facts))


class TestChanges:
    @pytest.mark.parametrize("name", ["bfloat16 autocast", "channels_last", "fused optimizer"])
    def test_each_is_on_in_its_block_and_leaves_nothing_behind(self, name):
        """The state is equal bit for bit, with attributes, strides and parameters' memory."""
        trainer = Trainer()
        trainer.step(torch.rand(4, 32))
        context = context_of(trainer)
        before = trainer.state()
        on = {
            "bfloat16 autocast": lambda: torch.is_autocast_enabled("cpu"),
            "channels_last": lambda: trainer.model[0].weight.is_contiguous(
                memory_format=torch.channels_last
            ),
            "fused optimizer": lambda: trainer.optimizer.param_groups[0]["fused"],
        }[name]
        met = []

        def look(*_):
            met.append(bool(on()))

        handle = trainer.model.register_forward_pre_hook(look)
        assert not BY_NAME[name].why_not(context)
        with verb.as_before([], trainer.step), BY_NAME[name].make(context) as step:
            step(torch.rand(4, 32))
            step(torch.rand(4, 32))
        handle.remove()

        assert all(met)
        assert met
        assert same(before, trainer.state())

    @pytest.mark.parametrize(
        ("name", "facts", "why"),
        [
            ("bfloat16 autocast", {"autocasts": True}, "already does this"),
            ("cudnn.benchmark", {}, "needs CUDA"),
        ],
    )
    def test_a_change_that_is_there_already_is_not_tried(self, name, facts, why):
        assert why in BY_NAME[name].why_not(context_of(Trainer(), **facts))

    def test_a_step_without_a_model_has_no_changes(self):
        context = StepContext(print, [], [], "cpu", StepFacts())

        assert all(change.why_not(context) for change in CHANGES)
        with as_it_is(context) as step:
            assert step is print


class Halved:
    """A step that takes half as long under autocast and has another loss there."""

    def __init__(self):
        self.model = nn.Linear(32, 1)

    def __call__(self, batch):
        fast = torch.is_autocast_enabled("cpu")
        time.sleep(0.004 if fast else 0.008)
        with torch.autocast("cpu", enabled=False):  # a processor may be slow in bfloat16
            return self.model(batch).square().mean() * 0 + (1.5 if fast else 2.0)


class TestVerb:
    def test_a_gain_is_found_with_the_difference_of_the_loss(self):
        """Planted: half the time, a loss of 1.5 instead of 2."""
        result = ss.experiments(images(num_workers=1), Halved(), budget_s=8)
        row = rows(result)["bfloat16 autocast"]

        assert FASTER == row["says"]
        assert 1.3 < row["factor"] < 2.7
        assert row["factor_low"] <= row["factor"] <= row["factor_high"]
        assert 0.5 == row["loss_difference"]
        assert "bfloat16 autocast speeds the step up" in str(result)
        assert "differs by at most 0.5 of 2" in str(result)

    @pytest.mark.slow
    def test_a_model_that_trains_is_left_as_it_was(self):
        """Every experiment of a CPU restores the model; the same step twice has equal losses."""
        trainer = Trainer()
        trainer.step(torch.rand(4, 32))
        before = trainer.state()
        result = ss.experiments(images(shuffle=True), trainer.step, budget_s=20)
        tried = result.table().filter(pl.col("factor").is_not_null())["experiment"].to_list()

        assert same(before, trainer.state())
        assert {"channels_last", "fused optimizer"} <= {*tried}
        assert 0 == rows(result)["as it is"]["loss_difference"]
        assert rows(result)["fused optimizer"]["loss_difference"] < 1e-3 * result.circumstances.loss
        assert "needs CUDA" in str(result)

    def test_a_change_that_the_step_cannot_bear_says_why(self):
        class Strict(Trainer):
            def step(self, batch):
                if torch.is_autocast_enabled("cpu"):
                    raise TypeError("no bfloat16 here")
                super().step(batch)

        result = ss.experiments(images(), Strict().step, budget_s=3)

        assert "no bfloat16 here" in rows(result)["bfloat16 autocast"]["why_not"]
        assert rows(result)["fused optimizer"]["pairs"]

    def test_an_exception_of_the_steps_passes(self):
        def step(_):
            raise ArithmeticError("no step")

        with pytest.raises(ArithmeticError, match="no step") as caught:
            ss.experiments(images(), step, budget_s=5)

        assert "The step was not measured" in str(caught.value.experiments)

    @pytest.mark.parametrize(
        ("named", "why"), [({}, "no step was given"), ({"step": print, "budget_s": 0}, "budget_s=")]
    )
    def test_bad_input_is_one_sentence(self, named, why):
        with pytest.raises(ss.StallscopeError, match=why):
            ss.experiments(images(), **named)


def waits_of(step, simulated=None, batch=None):
    """Return the lines that wait in a step, with the seconds of each wait."""
    watch = StepWatch("cpu", simulated)
    with watch.watching() as facts:
        use_watched(step, torch.rand(8, 4) if batch is None else batch, facts)
    return facts.waits


def logs(batch):
    print(f"loss {batch.mean():.3f}")


def counts(batch):
    return batch[batch > 0.5]


def judges(batch):
    if batch.sum() > 0:
        return batch.mean().item()
    return None


def moves(batch):
    return batch.cpu(), batch.to("cpu"), batch.tolist()


def computes(batch):
    loss = (batch * 2).to(torch.float64).softmax(0)[0:2].sum()
    return loss.detach(), batch[torch.tensor([0, 1])], torch.where(batch > 0, batch, batch)


class TestWaits:
    @pytest.mark.parametrize(
        ("step", "what"),
        [
            (logs, ["a tensor as text (print)"]),
            (counts, ["a boolean mask"]),
            (judges, [".item()", "a condition on a tensor"]),
            (moves, [".cpu()", ".cpu()", ".tolist()"]),
            (lambda batch: batch.nonzero(), ["nonzero()"]),
            (lambda batch: float(batch.sum()), ["float() of a tensor"]),
            (lambda batch: batch.unique(), ["unique()"]),
            (lambda batch: torch.where(batch > 0), ["nonzero()"]),
            (computes, []),
        ],
    )
    def test_what_waits_is_named_by_its_line(self, step, what):
        """The line is in this file and has its source; work on the device alone is not named."""
        waits = waits_of(step)

        each = [line for line, took in waits.items() for _ in took]
        assert sorted(what) == sorted(line.what for line in each)
        assert all(HERE == Path(line.file).name for line in each)
        assert all(line.source for line in each)

    def test_a_wait_for_the_simulated_device_takes_the_remaining_work(self):
        """`.item()` after 10 ms of work waits for the rest of that work."""
        device = SimulatedDevice()

        def step(batch):
            device.launch(0.01)
            batch.sum().item()
            device.launch(0.01)
            device.synchronize()

        waits = {line.what: took for line, took in waits_of(step, device).items()}
        first, second = device.work
        assert {".item()", "synchronize()"} == set(waits)
        assert first.end_ns <= second.start_ns
        assert sum(waits["synchronize()"]) > 0.005

    def test_waits_are_counted_per_step_where_a_watched_step_raises(self):
        calls = count()

        def step(batch):
            batch.sum().item()
            if next(calls) == 4:  # after three steps to warm up, the second that is watched
                raise ArithmeticError("only while it is watched")

        result = ss.experiments(images(), step, budget_s=2)

        assert "only while it is watched" in str(result.notes)
        assert [1.0] == result.waits["calls_per_step"].to_list()

    def test_the_watch_is_removed_afterwards(self):
        before = torch.cuda.synchronize, warnings.showwarning
        waits_of(logs)

        now = torch.cuda.synchronize, warnings.showwarning
        assert before == now
        assert torch.overrides._get_current_function_mode() is None


def test_a_step_that_waits_for_its_device_is_not_bound_by_launches():
    """The waiting line is named; `tests/gpu` tests more on every device."""
    device = SimulatedDevice(depth=1000)

    def step(batch):
        for _ in range(20):
            device.launch(0.0001)
        batch.sum().item()
        time.sleep(0.005)

    result = ss.experiments(images(), step, budget_s=5)
    assert "bound by launches" not in str(result)
    assert "batch.sum().item()" in str(result)
