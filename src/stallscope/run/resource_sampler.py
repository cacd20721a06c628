"""Samples of what is used while a recording goes on, ten a second, by a thread of this process.

The thread is gone while a process is forked and comes back afterwards: a worker is never forked
beside a thread of ours. It slows down where sampling would cost too much, and says what it costs.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from stallscope.hooks.patches import in_this_process
from stallscope.hooks.stage_log import JsonLines
from stallscope.interrupts import held_back
from stallscope.run.resource_sources import Missing, ResourceSource, sources
from stallscope.stages import SAMPLER

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from stallscope.hooks.loop_log import LogPlace
    from stallscope.run.resource_sources import Readings


EVERY_NS: Final = 100_000_000
SELDOM: Final = 5
"""Sources that change slowly are read with one sample in so many."""
MOST_SHARE: Final = 0.005
"""Of one core: a sample that costs more than this share of the pause after it makes that longer.
Half of the 1% that is promised, because waking up costs, too."""
THINNED_AFTER: Final = 6000
"""Samples (ten minutes) after which the pause is doubled, and so on: a day is 20 MB at most."""

_RESOURCES: Final = "the resources"
_living: WeakSet[Sampler] = WeakSet()


class Sampler:
    """Samples for the length of a `with` block; whatever goes wrong in it is a note of the run's.

    Args:
        place: where the samples go, and the workers' logs are.
    """

    def __init__(self, place: LogPlace) -> None:
        self._place = place
        self.failures = place.failures
        self._sources: list[ResourceSource] = []
        self._said: set[str] = set()
        self._lines: JsonLines | None = None
        self._thread: tuple[threading.Thread, threading.Event] | None = None
        self._pauses = 0
        self._samples = 0
        self._spent_ns = 0
        self._latest_ns = self._due_ns = 0
        self.interrupted = False

    def __enter__(self) -> Self:
        try:
            with held_back(), self.failures.within(_RESOURCES):
                in_this_process.add(self)
                with suppress(OSError):  # no room for a few kB: logs will tell
                    self._open()
                    _living.add(self)
                    self._start()
        except BaseException:  # an interrupt that was held back
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with held_back():
            if self in in_this_process:  # and not in a forked child that has come here, too
                self.retire()

    def retire(self, *, close: bool = True) -> None:
        """Sample nothing from now on.

        Args:
            close: also end the thread, after a last sample; a forked child has no such thread.
        """
        _living.discard(self)
        in_this_process.discard(self)
        if close:
            self.failures.insist(_RESOURCES, self._stop)
            if self.interrupted:
                signal.raise_signal(signal.SIGINT)
            if perf_counter_ns() - self._latest_ns > EVERY_NS // 2 or self._samples == 1:
                with self.failures.within(_RESOURCES):
                    self._sample()
        for source in self._sources:
            self.failures.insist(_RESOURCES, source.close)
        if self._lines is not None:
            self.failures.insist(_RESOURCES, self._lines.close)
            self._lines = None

    # ---- the thread -------------------------------------------------------------------------

    def pause(self) -> None:
        """Have no thread; calls may be nested."""
        self._pauses += 1
        self._stop()

    def go_on(self) -> None:
        """Have one again."""
        self._pauses -= 1
        if not self._pauses and self in _living:
            self._start()

    def failed(self, error: Exception) -> None:
        """Note for the run that sampling has failed."""
        self.failures.note(_RESOURCES, error)

    def interrupt_later(self) -> None:
        """Let the main thread feel an interrupt with the next sample."""
        self.interrupted = True
        self._due_ns = perf_counter_ns() + EVERY_NS

    def _start(self) -> None:
        end = threading.Event()
        run = self.failures.passing(_RESOURCES, self._run)
        thread = threading.Thread(target=run, args=(end,), name="stallscope", daemon=True)
        self._thread = thread, end
        with suppress(RuntimeError):  # so many threads that there is no room for one more
            thread.start()

    def _stop(self) -> None:
        if self._thread is not None:
            (thread, end), self._thread = self._thread, None
            end.set()
            if thread.ident is not None:  # it was started
                thread.join()

    def _run(self, end: threading.Event) -> None:
        counted_ns = apart_ns = 0
        while not end.wait(max(self._due_ns - perf_counter_ns(), 0) / 1e9):
            if self.interrupted:  # the fork is over by now
                self.interrupted = False
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            with self.failures.within(_RESOURCES):
                self._sample()
            spent_ns = thread_time_ns() - counted_ns
            counted_ns += spent_ns
            self._spent_ns += spent_ns
            pause_ns = EVERY_NS << self._samples // THINNED_AFTER
            spaced_ns = sum(source.apart_ns for source in self._sources)
            costs_ns, apart_ns = spent_ns - (spaced_ns - apart_ns), spaced_ns
            self._due_ns = self._latest_ns + max(pause_ns, int(costs_ns / MOST_SHARE))
        self._spent_ns += thread_time_ns() - counted_ns

    # ---- a sample ---------------------------------------------------------------------------

    def _open(self) -> None:
        self._lines = JsonLines(self._place.resources())
        found = list(sources(self._place))
        self._sources = [source for source in found if not isinstance(source, Missing)]
        for source in found:
            if isinstance(source, Missing):
                self._lines.say(missing=source.resources)
                self._note([source.why] if source.why else [])
            else:
                self._lines.say(limits=source.limits)

    def _sample(self) -> None:
        """Write one; a source that cannot be read any more is left out from then on."""
        self._latest_ns, read = perf_counter_ns(), {SAMPLER: {"": self._spent_ns / 1e9}}
        with_seldom = self._samples % SELDOM == 0
        for source in [one for one in self._sources if with_seldom or not one.seldom]:
            read |= self._read(source)
        self._samples += 1
        if self._lines is not None:
            self._lines.say(time_ns=self._latest_ns, read=read)

    def _read(self, source: ResourceSource) -> Readings:
        try:
            return source.read()
        except Exception as error:  # noqa: BLE001 - whatever it is, the user's loop goes on
            self._sources.remove(source)
            source.close()
            self._note([f"{type(source).__name__} could not be sampled any more ({error!r})"])
            return {}
        finally:
            self._note(source.notes)

    def _note(self, notes: list[str]) -> None:
        for note in notes:
            if note not in self._said and self._lines is not None:
                self._said.add(note)
                self._lines.say(note=note)


def _at_fork(change: Callable[[Sampler], None]) -> None:
    """Python loses what leaves a hook of a fork: an interrupt is raised again by the thread."""
    for sampler in list(_living):
        try:
            change(sampler)
        except KeyboardInterrupt:  # noqa: PERF203 - each by itself
            sampler.interrupt_later()
        except Exception as error:  # noqa: BLE001 - Python would print it amidst the user's output
            sampler.failed(error)


_before_fork = partial(_at_fork, Sampler.pause)
_after_fork = partial(_at_fork, Sampler.go_on)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
