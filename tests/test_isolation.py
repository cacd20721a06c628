"""Objects that an active experiment puts back."""

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from support.loaders import Noise
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.isolation import as_before, to_device, trainable

MODEL = torch.nn.Linear(4, 1)


class Trainer:
    """Keeps everything on itself, as trainers do."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

    def step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(batch).sum().backward()
        self.optimizer.step()
        self.scheduler.step()


def global_step(batch: torch.Tensor) -> None:
    MODEL(batch).sum().backward()


def test_a_step_is_searched_wherever_it_keeps_its_model():
    """The search covers bound object, closure, partial and globals."""
    trainer, model = Trainer(), torch.nn.Linear(4, 1)
    closure = lambda batch: model(batch).sum()  # noqa: E731
    partial = functools.partial(lambda model, batch: model(batch), model)

    assert {trainer.model, trainer.optimizer, trainer.scheduler} == set(trainable(trainer.step))
    assert [model] == trainable(closure)
    assert [model] == trainable(partial)
    assert [MODEL] == trainable(global_step)
    assert [model] == trainable(model)


class Frozen(dict):
    """A configuration, as some libraries keep it on a model."""

    def update(self, *_: Any, **__: Any) -> None:
        raise TypeError("frozen")


class Net(torch.nn.Module):
    """Keeps what trains it, what draws for it, and what it has counted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.optimizers = [torch.optim.Adam(self.layer.parameters())]
        self.rng = np.random.default_rng(1)
        self.total = torch.tensor(0.0)
        self.losses: list[float] = []
        self.parts = [self.layer]
        # What cannot be written to, and is not
        self.settings = Frozen(size=4)
        self.graph = torch.eye(3).to_sparse()
        self.token = torch.zeros(1, 2).expand(3, 2)
        self.table = np.broadcast_to(np.zeros(2), (3, 2))

    def training_step(self, batch: torch.Tensor) -> None:
        loss = self.layer(batch).sum() * self.rng.random()
        loss.backward()
        self.optimizers[0].step()
        self.total += loss.detach()
        self.losses.append(loss.item())


def test_attributes_of_a_module_are_put_back():
    net = Net()
    net.training_step(torch.rand(8, 4))
    before = str((net.optimizers[0].state_dict(), net.rng.bit_generator.state))
    sums = (net.total, net.total.item(), net.losses, list(net.losses))

    with as_before(DataLoader(Noise()), net.training_step) as notes:
        net.training_step(torch.rand(8, 4))

    assert before == str((net.optimizers[0].state_dict(), net.rng.bit_generator.state))
    assert sums == (net.total, net.total.item(), net.losses, net.losses)
    assert {"size": 4} == net.settings
    assert notes[0].endswith(": Adam, Net")


def test_a_step_is_searched_to_its_inner_functions():
    default = torch.nn.Linear(4, 1)

    def step(batch: torch.Tensor, *, model: torch.nn.Module = default) -> Any:
        def closure() -> torch.Tensor:
            return MODEL(batch).sum()

        return model(batch), closure()

    assert {MODEL, default} == set(trainable(step))


def test_training_is_undone():
    trainer = Trainer()
    trainer.step(torch.rand(8, 4))
    before = str((vars(trainer), [m.state_dict() for m in vars(trainer).values()]))

    with as_before(DataLoader(Noise()), trainer.step) as notes:
        trainer.model.eval()
        trainer.model.train()
        for _ in range(3):
            trainer.step(torch.rand(8, 4))

    assert before == str((vars(trainer), [m.state_dict() for m in vars(trainer).values()]))
    assert "SGD, Sequential, StepLR" in notes[0]


def test_generators_of_the_users_are_put_back():
    own = {
        "torch": torch.Generator().manual_seed(1),
        "numpy": np.random.default_rng(1),
        "legacy": np.random.RandomState(1),
    }
    dataset = Noise()
    dataset.rngs = own
    loader = DataLoader(dataset, generator=torch.Generator().manual_seed(2))

    def draw() -> list[float]:
        return [
            torch.rand(1, generator=own["torch"]).item(), own["numpy"].random(),
            own["legacy"].rand(), torch.rand(1, generator=loader.generator).item(),
        ]  # fmt: skip

    with as_before(loader):
        first = draw()

    assert first == draw()


class Pair(NamedTuple):
    image: Any
    label: Any


def test_every_tensor_moves_and_nothing_else_changes():
    """Tensors in lists, tuples, named tuples and dicts are moved; the rest stays as it is."""
    tensor = torch.ones(1)

    moved = to_device([{"a": tensor, "b": "text"}, (tensor, 3), Pair(tensor, None)], "meta")

    assert "meta" == moved[0]["a"].device.type == moved[1][0].device.type
    assert "meta" == moved[2].image.device.type
    assert ("text", 3, None) == (moved[0]["b"], moved[1][1], moved[2].label)
    assert Pair is type(moved[2])


def test_record_moves_the_batch_before_the_step():
    devices = []

    ss.record(DataLoader(Noise(), 4), lambda b: devices.append(b.device.type), device="meta")

    assert {"meta"} == set(devices)
