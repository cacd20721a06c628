"""Callbacks for other people's training loops, which record and log a window of steps now and then.

`Watcher` is for a loop of one's own; `lightning()` and `trainer()` give the callbacks of Lightning
and of Hugging Face's Trainer, which log to whatever these are set up with. `tensorboard()`,
`wandb()` and `mlflow()` log a window's pictures and its verdict, too. Nothing of those libraries is
imported before it is asked for, and whatever fails here is said once, as a warning, and never
reaches the training.

Between two windows nothing is hooked. Workers that were started before a window are not looked
into: of them it is known what the loop waits for, not what they do.
"""

from __future__ import annotations

import html
import io
import os
import re
import warnings
from collections.abc import Callable  # noqa: TC003 - of a dataclass
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.apart import Later
from stallscope.errors import ArgumentError, StallscopeError
from stallscope.files import workspace
from stallscope.model.loop_time import loop_breakdown
from stallscope.run.load import readable
from stallscope.run.record import begin_window
from stallscope.units import WARMUP, said_by
from stallscope.verbs.diagnose.recorded import diagnose_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from stallscope.run.result import Run
    from stallscope.verbs.diagnose.result import Diagnosis

    Log = Callable[[dict[str, float], int], object]
    _Seen = tuple[dict[str, float], Diagnosis, dict[str, bytes]]

PREFIX: Final = "stallscope/"
PICTURES: Final = ("exposed", "timeline")
"""Plots of a window, see `Run.plot`."""


@dataclass(frozen=True)
class Logger:
    """Logs a window's numbers, and what a logger of numbers alone could not show."""

    numbers: Log
    """Called with numbers by name and the step."""
    picture: Callable[[str, Any, int], object]
    """Called with a name, a picture of Pillow's and the step."""
    text: Callable[[str, str, int], object]
    """Called with a name, a text and the step."""

    def __call__(self, numbers: dict[str, float], step: int) -> None:
        """Log the numbers."""
        self.numbers(numbers, step)

    def show(self, verdict: str, pictures: dict[str, bytes], step: int) -> None:
        """Log the verdict of a window, and its pictures (PNG)."""
        self.text(f"{PREFIX}verdict", verdict, step)
        for name, png in pictures.items():
            picture = import_module("PIL.Image").open(io.BytesIO(png)).convert("RGB")
            self.picture(f"{PREFIX}{name}", picture, step)


def tensorboard(writer: Any) -> Logger:
    """Log to TensorBoard by its `SummaryWriter`."""
    return Logger(
        lambda numbers, step: [writer.add_scalar(*number, step) for number in numbers.items()],
        # Its page shows a small copy, or the picture pixel by pixel: then it must fit a window
        lambda name, picture, step: writer.add_image(
            name, import_module("numpy").asarray(picture.reduce(2)), step, dataformats="HWC"
        ),
        # Its page shows Markdown: `__getitem__` would be bold, and `<lambda>` gone
        lambda name, text, step: writer.add_text(
            name, re.sub(r"([\\`*_{}\[\]#])", r"\\\1", html.escape(text, quote=False)), step
        ),
    )


def wandb(run: Any) -> Logger:
    """Log to a run of Weights & Biases, beside what the training logs next."""
    return Logger(
        lambda numbers, _: run.log(numbers, commit=False),
        lambda name, picture, _: run.log(
            {name: import_module("wandb").Image(picture)}, commit=False
        ),
        lambda name, text, _: run.summary.update({name: text}),
    )


def mlflow() -> Logger:
    """Log to the run of MLflow that is active; the pictures are its artifacts."""
    api = import_module("mlflow")
    return Logger(
        lambda numbers, step: api.log_metrics(numbers, step=step),
        lambda name, picture, step: api.log_image(picture, f"{name}-{step}.png"),
        lambda name, text, _: api.set_tag(name, text),
    )


class Watcher:
    """Records a window of steps now and then, and gives its numbers to a logger.

    Use it around the loop, as a context manager, and call `step()` after each step.

    Args:
        log: called after each window with numbers by name and the number of the step, as
            `lambda numbers, step: wandb.log(numbers, step)`: `stall_share` (0 to 1), `wait_s` and
            `step_s` (mean of a step), `steps_per_s`. A `Logger` gets the pictures and the verdict,
            too.
        steps: of a window.
        every: a window begins at the first step and at each of so many.
        warmup: steps of a window that are not counted.

    Attributes:
        diagnosis: of the last window; None before its end.

    Raises:
        ArgumentError: the window is longer than what lies between two, or not longer than its
            warm-up.
    """

    def __init__(
        self, log: Log | None = None, *, steps: int = 50, every: int = 1000, warmup: int = WARMUP
    ) -> None:
        if not 0 <= warmup < steps <= every:
            raise ArgumentError(
                f"steps={steps}, every={every}, warmup={warmup}: steps must be above warmup, and "
                "at most every"
            )
        self.diagnosis: Diagnosis | None = None
        self._log, self._steps, self._every, self._warmup = log, steps, every, warmup
        self._number = 0
        self._window: _Window | None = None
        self._ended: _Window | None = None
        self._failed = False

    def __enter__(self) -> Self:
        """Begin the first window."""
        self._number = 0
        self._open()
        return self

    def step(self) -> None:
        """Count a step that is over."""
        self._number += 1
        place = self._number % self._every
        if self._ended is not None and self._ended.is_read:
            self._log_ended()
        if place == self._steps % self._every:
            self._close()
        if place == 0:
            self._open()

    def __exit__(self, *_: object) -> None:
        """End the window that is under way, and wait for its results."""
        self._close()
        self._log_ended()

    def _open(self) -> None:
        if self._window is None and not self._failed:
            with self._warning():
                self._window = _Window(self._warmup)

    def _close(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            with self._warning():
                window.close(self._number, draws=isinstance(self._log, Logger))
                self._log_ended()  # of the one before, if it is that slow: no time of this one's
                self._ended = window

    def _log_ended(self) -> None:
        window, self._ended = self._ended, None
        with self._warning():
            if window is None or (seen := window.seen()) is None:
                return
            numbers, self.diagnosis, pictures = seen
            if self._log is not None:
                self._log(numbers, window.step)
            if isinstance(self._log, Logger):
                self._log.show(self.diagnosis.verdict.title, pictures, window.step)

    @contextmanager
    def _warning(self) -> Iterator[None]:
        """Warn once of what fails in the block: the training goes on, and it is not tried again."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is
            if not self._failed:
                self._failed = True
                with suppress(Exception):  # where warnings are errors
                    warnings.warn(f"stallscope stops watching: {said_by(error)}", stacklevel=5)


class _Window:
    """Some steps that are recorded; they are analysed beside the training."""

    def __init__(self, warmup: int) -> None:
        self.step = 0
        """Number of its last step."""
        self._pid = os.getpid()
        self._reading: Later[_Seen | None] | None = None
        with ExitStack() as everything:
            folder = everything.enter_context(workspace())
            self._recording = everything.enter_context(ExitStack())
            self._place = begin_window(folder, self._recording, warmup)
            self._everything = everything.pop_all()

    def close(self, step: int, *, draws: bool) -> None:
        """Take the hooks off, and begin to read what was recorded; pictures only if asked for."""
        self.step = step
        with self._everything.pop_all() as everything:
            self._recording.close()
            if os.getpid() == self._pid:  # and not in a child, which polars would hang in
                self._reading = Later(lambda: _seen(readable(self._place), draws=draws))
                everything.callback(self._reading.end)
                self._everything = everything.pop_all()

    @property
    def is_read(self) -> bool:
        """Return whether `seen` would not wait."""
        return self._reading is None or self._reading.is_ready()

    def seen(self) -> _Seen | None:
        """Return the results; None where no step was seen, or in a child of the training."""
        if self._reading is None or os.getpid() != self._pid:
            return None
        with self._everything:
            return self._reading.result()


def _seen(run: Run, *, draws: bool) -> _Seen | None:
    if run.steps().drop_nulls("wait_s").is_empty():
        return None
    diagnosis: Any = diagnose_run(run)
    pictures = {name: diagnosis.plot(name).png() for name in PICTURES} if draws else {}
    return numbers_of(run), diagnosis, pictures


def numbers_of(run: Run) -> dict[str, float]:
    """Return what is logged of a window, by name."""
    steps = run.steps().drop_nulls(["wait_s", "start_ns"])
    time = loop_breakdown(steps, run.stalls())
    if time is None or not time.total_s:
        return {}
    used_s = pl.sum_horizontal("h2d_s", "step_s", "other_s")
    means = steps.select(pl.col("wait_s").mean(), step_s=used_s.mean()).row(0, named=True)
    numbers = {"stall_share": time.stall_share, "steps_per_s": time.steps / time.total_s, **means}
    return {f"{PREFIX}{name}": float(value) for name, value in numbers.items()}


def lightning(*, steps: int = 50, every: int = 1000, warmup: int = WARMUP) -> Any:
    """Return a callback for Lightning's Trainer: `Trainer(callbacks=[callbacks.lightning()])`.

    The arguments are those of `Watcher`.

    Raises:
        StallscopeError: Lightning is not installed.
    """
    for name in ("lightning.pytorch", "pytorch_lightning"):
        with suppress(ImportError):
            callback: Any = import_module(name).Callback
            break
    else:
        raise StallscopeError("Lightning is not installed: pip install lightning")

    class LightningCallback(callback):  # type: ignore[misc]  # of either library
        """Logs how long the training stalls to the loggers of its trainer."""

        def __init__(self) -> None:
            self.watcher = Watcher(steps=steps, every=every, warmup=warmup)

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            self.watcher._log = lambda numbers, _: [  # noqa: SLF001 - its own
                logger.log_metrics(numbers, trainer.global_step) for logger in trainer.loggers
            ]
            self.watcher.__enter__()

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            self.watcher.step()

        def on_train_end(self, *_: Any) -> None:
            self.watcher.__exit__()

        on_exception = on_train_end

    return LightningCallback()


def trainer(of: Any, *, steps: int = 50, every: int = 1000, warmup: int = WARMUP) -> Any:
    """Return a callback for Hugging Face's Trainer: `t.add_callback(callbacks.trainer(t))`.

    It logs through that Trainer; the other arguments are those of `Watcher`.

    Raises:
        StallscopeError: transformers is not installed.
    """
    try:
        callback: Any = import_module("transformers").TrainerCallback
    except ImportError as error:
        raise StallscopeError("transformers is not installed: pip install transformers") from error

    class HuggingFaceCallback(callback):  # type: ignore[misc]  # loaded late
        """Logs how long the training stalls as its trainer logs the loss."""

        def __init__(self) -> None:
            log = lambda numbers, _: of.log(numbers)  # noqa: E731 - one line
            self.watcher = Watcher(log, steps=steps, every=every, warmup=warmup)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.watcher.__enter__()

        def on_step_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
            logs_next = control.should_log
            self.watcher.step()
            control.should_log = logs_next  # to log by hand is not to have logged the loss

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.watcher.__exit__()

    return HuggingFaceCallback()
