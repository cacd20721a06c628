"""Inside of other people's training loops: a window of steps is recorded now and then, and logged.

`Watcher` is for a loop of one's own; `lightning()` and `trainer()` give the callbacks of Lightning
and of Hugging Face's Trainer, which log to whatever these are set up with (TensorBoard, Weights &
Biases, MLflow). Nothing of those libraries is imported before it is asked for, and whatever fails
here is said once, as a warning, and never reaches the training.

Between two windows nothing is hooked. Workers that were started before a window are not looked
into: of them it is known what the loop waits for, not what they do.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.apart import apart
from stallscope.diagnose.recorded import diagnose_run
from stallscope.errors import ArgumentError, StallscopeError
from stallscope.run.record import Watch, instrumented
from stallscope.stalls.loop_time import loop_breakdown
from stallscope.units import said_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from stallscope.diagnose.result import Diagnosis
    from stallscope.run.result import Run

    Log = Callable[[dict[str, float], int], object]

PREFIX: Final = "stallscope/"


class Watcher:
    """Records a window of steps now and then, and gives its numbers to a logger.

    Use it around the loop, as a context manager, and call `step()` after each step.

    Args:
        log: called after each window with numbers by name and the number of the step, as
            `lambda numbers, step: wandb.log(numbers, step)`: `stall_share` (0 to 1), `wait_s` and
            `step_s` (mean of a step), `steps_per_s`.
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
        self, log: Log | None = None, *, steps: int = 50, every: int = 1000, warmup: int = 4
    ) -> None:
        if not 0 <= warmup < steps <= every:
            raise ArgumentError(
                f"steps={steps}, every={every}, warmup={warmup}: a window has more steps than its "
                "warm-up, and no more than there are from one window to the next"
            )
        self.diagnosis: Diagnosis | None = None
        self._log, self._steps, self._every, self._warmup = log, steps, every, warmup
        self._number = 0
        self._window: ExitStack | None = None
        self._watch: Watch | None = None
        self._failed = False

    def __enter__(self) -> Self:
        """Begin the first window."""
        self._number = 0
        self._open()
        return self

    def step(self) -> None:
        """Say that a step is over."""
        self._number += 1
        place = self._number % self._every
        if place == self._steps % self._every:
            self._close()
        if place == 0:
            self._open()

    def __exit__(self, *_: object) -> None:
        """End the window that is under way."""
        self._close()

    def _open(self) -> None:
        if self._window is not None or self._failed:
            return
        window = ExitStack()
        try:
            self._watch = window.enter_context(instrumented(warmup=self._warmup))
            self._window = window
        except Exception as error:  # noqa: BLE001 - the training goes on without us
            self._say(error)

    def _close(self) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        try:
            window.close()
            run = getattr(self._watch, "run", None)
            if run is None or run.steps().drop_nulls("wait_s").is_empty():
                return
            self.diagnosis = diagnose_run(run)
            if self._log is not None:
                self._log(apart(lambda: numbers_of(run)), self._number)
        except Exception as error:  # noqa: BLE001 - likewise
            self._say(error)

    def _say(self, error: Exception) -> None:
        """Warn once; what failed is not tried again."""
        self._failed = True
        with suppress(Exception):  # where warnings are errors
            warnings.warn(f"stallscope stops watching: {said_by(error)}", stacklevel=4)


def numbers_of(run: Run) -> dict[str, float]:
    """What is logged of a window, by name."""
    steps = run.steps().drop_nulls(["wait_s", "start_ns"])
    time = loop_breakdown(steps, run.stalls())
    if time is None or not time.total_s:
        return {}
    used_s = pl.sum_horizontal("h2d_s", "step_s", "other_s").mean()
    wait_s, use_s = steps.select(pl.col("wait_s").mean(), used_s.alias("use_s")).row(0)
    found = {
        "stall_share": time.stall_share,
        "wait_s": wait_s,
        "step_s": use_s,
        "steps_per_s": time.steps / time.total_s,
    }
    return {f"{PREFIX}{name}": float(value) for name, value in found.items()}


def lightning(*, steps: int = 50, every: int = 1000, warmup: int = 4) -> Any:
    """A callback for Lightning's Trainer: `Trainer(callbacks=[callbacks.lightning()])`.

    Args:
        steps: as for `Watcher`.
        every: likewise.
        warmup: likewise.

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

        def on_exception(self, *_: Any) -> None:
            self.watcher.__exit__()

    return LightningCallback()


def trainer(of: Any, *, steps: int = 50, every: int = 1000, warmup: int = 4) -> Any:
    """A callback for Hugging Face's Trainer: `trainer.add_callback(callbacks.trainer(trainer))`.

    Args:
        of: the Trainer, through which it logs.
        steps: as for `Watcher`.
        every: likewise.
        warmup: likewise.

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
