"""What an active experiment puts back."""

from __future__ import annotations

import functools

import numpy as np
import torch
from loaders import Noise
from torch.utils.data import DataLoader

from stallscope.measure.snapshot import as_before, trainable

MODEL = torch.nn.Linear(4, 1)


class Trainer:
    """Keeps everything on itself, as trainers do."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

    def step(self, batch: torch.Tensor) -> None:
        """Train on one batch."""
        self.optimizer.zero_grad()
        self.model(batch).sum().backward()
        self.optimizer.step()
        self.scheduler.step()


def global_step(batch: torch.Tensor) -> None:
    """Trains a global model."""
    MODEL(batch).sum().backward()


def test_a_step_is_searched_wherever_it_keeps_its_model():
    """Bound object, closure, partial and globals are all looked through."""
    trainer, model = Trainer(), torch.nn.Linear(4, 1)
    closure = lambda batch: model(batch).sum()  # noqa: E731
    partial = functools.partial(lambda model, batch: model(batch), model)

    assert {trainer.model, trainer.optimizer, trainer.scheduler} == set(trainable(trainer.step))
    assert [model] == trainable(closure)
    assert [model] == trainable(partial)
    assert [MODEL] == trainable(global_step)
    assert [model] == trainable(model)


def test_training_is_undone():
    """Weights, running statistics, momentum, learning rate, gradients and modes are put back."""
    trainer = Trainer()
    trainer.step(torch.rand(8, 4))
    before = str((vars(trainer), [m.state_dict() for m in vars(trainer).values()]))

    with as_before(DataLoader(Noise()), trainer.step) as said:
        trainer.model.eval()
        trainer.model.train()
        for _ in range(3):
            trainer.step(torch.rand(8, 4))

    assert before == str((vars(trainer), [m.state_dict() for m in vars(trainer).values()]))
    assert "SGD, Sequential, StepLR" in said[0]


def test_generators_of_the_users_are_put_back():
    """The loader's generator and those of the dataset's transforms, of every make."""
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
