"""Windows of other people's trainings: logged to their loggers, without disturbing them."""

import csv
import time
import warnings

import pytest
import torch
from support.loaders import Noise
from torch import nn
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope import callbacks
from stallscope.errors import StallscopeError

NAMES = {f"stallscope/{name}" for name in ("stall_share", "wait_s", "step_s", "steps_per_s")}


def train(watcher=None, steps=30):
    """Run a small training; return its losses."""
    torch.manual_seed(0)
    model, losses = nn.Linear(4, 1), []
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for number, batch in enumerate(DataLoader(Noise(400), 4, num_workers=1)):
        if number == steps:
            break
        loss = model(batch.reshape(len(batch), -1)[:, :4]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if watcher is not None:
            watcher.step()
    return losses


class TestWatcher:
    def test_logs_each_window(self):
        """Two windows of six steps in thirty; the losses are those of a training without it."""
        logged = []
        watcher = callbacks.Watcher(
            lambda *entry: logged.append(entry), steps=6, every=20, warmup=2
        )

        with watcher:
            losses = train(watcher)

        assert train() == losses
        assert [6, 26] == [step for _, step in logged]
        assert all(set(numbers) == NAMES for numbers, _ in logged)
        assert all(0 <= numbers["stallscope/stall_share"] <= 1 for numbers, _ in logged)
        assert watcher.diagnosis.verdict.title

    def test_a_training_that_ends_within_a_window(self):
        logged = []
        with callbacks.Watcher(lambda *entry: logged.append(entry), steps=50, every=50) as watcher:
            train(watcher, 12)

        assert [12] == [step for _, step in logged]

    def test_a_logger_that_fails_is_passed_over(self):
        def broken(*_):
            raise ConnectionError("the server is away")

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with callbacks.Watcher(broken, steps=6, every=10) as watcher:
                losses = train(watcher)

        assert train() == losses
        assert ["the server is away" in str(warning.message) for warning in caught].count(True) == 1

    @pytest.mark.parametrize(("steps", "every"), [(50, 10), (4, 10), (0, 0)])
    def test_windows_that_cannot_be(self, steps, every):
        with pytest.raises(StallscopeError, match=f"steps={steps}, every={every}"):
            callbacks.Watcher(steps=steps, every=every)


@pytest.mark.slow
def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.loggers import CSVLogger

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.losses = nn.Linear(4, 1), []

        def training_step(self, batch, _):
            loss = self.layer(batch.reshape(len(batch), -1)[:, :4]).square().mean()
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-6)

    def fitted(*added):
        lightning.seed_everything(0)
        model = Model()
        trainer = lightning.Trainer(
            max_steps=24,
            accelerator="cpu",
            logger=CSVLogger(tmp_path, version=str(len(added))),
            callbacks=list(added),
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(model, DataLoader(Noise(400), 4, num_workers=1))
        return model.losses

    class Slow(lightning.Callback):
        def on_train_batch_end(self, *_):
            time.sleep(0.05)

    plain = dict(vars(Slow))
    with ss.instrumented(warmup=2) as watch:
        losses = fitted(Slow())
    assert "allback code takes" in ss.diagnose(watch.run).verdict.title
    assert "callback code" in str(watch.run)
    assert plain == dict(vars(Slow))  # nothing of ours is left on it
    assert fitted() == losses
    assert losses == fitted(callbacks.lightning(steps=8, every=12, warmup=2))
    (file,) = tmp_path.rglob("1/metrics.csv")
    with file.open() as rows:
        windows = [row for row in csv.DictReader(rows) if row.get("stallscope/stall_share")]
    assert 2 == len(windows)
    assert 0 <= float(windows[0]["stallscope/stall_share"]) <= 1


@pytest.mark.slow
def test_hugging_faces_trainer(tmp_path):
    """The Trainer's log has the numbers, and the losses are unchanged."""
    transformers = pytest.importorskip("transformers")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 1)

        def forward(self, values):
            return {"loss": self.layer(values).square().mean()}

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 400

        def __getitem__(self, index):
            return {"values": torch.full((8,), index / 400)}

    class Slow(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            time.sleep(0.05)

    def fitted(*, watched=False, slow=False):
        transformers.set_seed(0)
        trainer = transformers.Trainer(
            Model(),
            transformers.TrainingArguments(
                str(tmp_path / "out"),
                max_steps=24,
                per_device_train_batch_size=4,
                logging_steps=1,
                dataloader_num_workers=1,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=Rows(),
        )
        if slow:
            trainer.add_callback(Slow)
        if watched:
            trainer.add_callback(callbacks.trainer(trainer, steps=8, every=12, warmup=2))
        trainer.train()
        return trainer.state.log_history

    plain, watched = fitted(), fitted(watched=True)
    with ss.instrumented(warmup=2) as watch:
        fitted(slow=True)

    assert "allback code takes" in ss.diagnose(watch.run).verdict.title
    assert [row["loss"] for row in plain if "loss" in row] == [
        row["loss"] for row in watched if "loss" in row
    ]
    assert 2 == sum("stallscope/stall_share" in row for row in watched)


def shown_by(logger):
    """Run a training of two windows whose numbers, pictures and verdict go to a logger."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "stallscope stops watching")
        with callbacks.Watcher(logger, steps=6, every=20, warmup=2) as watcher:
            train(watcher)


@pytest.mark.slow
class TestLoggers:
    def test_tensorboard(self, tmp_path):
        """Scalars, the pictures and the verdict, at the steps of the training."""
        pytest.importorskip("tensorboard", reason="TensorBoard is large: in no extra")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(tmp_path) as writer:
            shown_by(callbacks.tensorboard(writer))
            callbacks.tensorboard(writer).text("name", "__getitem__ of <lambda>", 0)

        events = EventAccumulator(str(tmp_path)).Reload()
        assert set(events.Tags()["scalars"]) == NAMES
        assert {f"stallscope/{name}" for name in callbacks.PICTURES} == set(events.Tags()["images"])
        assert [6, 26] == [event.step for event in events.Scalars("stallscope/stall_share")]
        assert 960 == events.Images("stallscope/exposed")[0].width  # fits a window
        name, verdict = sorted(events.Tags()["tensors"])
        assert verdict.startswith("stallscope/verdict")
        (shown,) = events.Tensors(name)  # as Markdown
        assert [rb"\_\_getitem\_\_ of &lt;lambda&gt;"] == [*shown.tensor_proto.string_val]

    def test_weights_and_biases(self, tmp_path):
        """The run is offline, and the training's own steps are unchanged."""
        wandb = pytest.importorskip("wandb", reason="Weights & Biases is large: in no extra")
        with wandb.init(dir=tmp_path, mode="offline", project="test") as run:
            shown_by(callbacks.wandb(run))
            assert 0 == run.step
            run.log({"loss": 1.0})
            summary = dict(run.summary)
        wandb.teardown()  # its own service

        assert {*NAMES, "stallscope/verdict", "loss"} <= set(summary)
        pictures = [path.name for path in tmp_path.rglob("*.png")]
        assert all(any(path.startswith(name) for path in pictures) for name in callbacks.PICTURES)

    def test_mlflow(self, tmp_path, monkeypatch):
        """A store of files: metrics at their steps, pictures as artifacts, the verdict as a tag."""
        mlflow = pytest.importorskip("mlflow", reason="MLflow is large: in no extra")
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow.set_tracking_uri(f"file:{tmp_path / 'runs'}")  # a new one has a first experiment
        with mlflow.start_run() as active:
            shown_by(callbacks.mlflow())

        client = mlflow.MlflowClient()
        history = client.get_metric_history(active.info.run_id, "stallscope/wait_s")
        assert [6, 26] == [point.step for point in history]
        assert client.get_run(active.info.run_id).data.tags["stallscope/verdict"]
        assert 4 == len(list(tmp_path.rglob("*.png")))
