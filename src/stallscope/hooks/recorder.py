"""The recorder of one thread: names, files and batches, around the hot path that writes spans."""

from __future__ import annotations

import functools
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any, Final

from stallscope.hooks.hot_path import Clocks, LogNames, SamplingRate, hot_path, word
from stallscope.hooks.stage_log import CODE_SHIFT, MOST_CODES, TAG_SHIFT, Header, LogWriter, Tag
from stallscope.hooks.weak import unseen
from stallscope.stages import BATCH, COLLATE, GETITEM, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_REST: Final = Stage("other ops", "transform")
_CPU_SHARE: Final = 2.5e-4
"""Reading CPU time may cost this share of the samples' time: a quarter of what is promised, because
a read costs four times as much between two ops as in a row."""


class Recorder:
    """Writes the spans of one thread into its log.

    Args:
        log: where to write.
        clock: nanoseconds, monotonic and the same in every process of the machine.
        cpu_clock: CPU time of this thread, ns.
    """

    def __init__(
        self,
        log: LogWriter,
        clock: Callable[[], int] = perf_counter_ns,
        cpu_clock: Callable[[], int] = thread_time_ns,
    ) -> None:
        self.log = log
        self.clock = clock
        self.pace = SamplingRate()
        self.names = LogNames()
        self._codes: dict[Stage, int] = {}
        self._files_said = 0
        self.names.getitem_key, self.names.batch_key = self.key(GETITEM), self.key(BATCH)
        self._hot = hot_path(log, Clocks(clock, cpu_clock), self.pace, self.names)
        # Bound here once: a hook's way to its functions must not lead through properties.
        self.method, self.call, self.sample = self._hot.method, self._hot.call, self._hot.sample
        self.in_sample, self.at_work = self._hot.in_sample, self._hot.at_work
        self.enter_batch, self.failed = self._hot.enter_batch, self._hot.failed
        self.file, self.pixels = self._hot.file, self._hot.pixels

    def retire(self, *, close: bool = True) -> None:
        """Write nothing from now on: a hook that somebody still holds only calls its original.

        Args:
            close: also give the mapping back; a forked child leaves it to its parent.
        """
        self._hot.leave()
        if close:
            self.log.close()

    # ---- names ----------------------------------------------------------------------------------

    def key(self, stage: Stage) -> int:
        """What to add to the clock to get the word that enters this stage."""
        code = self._codes.get(stage)
        if code is None and len(self._codes) >= MOST_CODES - 2:  # the last code is shared
            if _REST not in self._codes:
                self.note(f"more than {MOST_CODES - 2} stages: the rest is 'other ops'")
            stage, code = _REST, self._codes.get(_REST)
        if code is None:
            code = self._codes[stage] = len(self._codes) + 1
            self.log.say(code=code, stage=stage)
        key = (Tag.ENTER << TAG_SHIFT | code << CODE_SHIFT) - self.log.header[Header.BORN_NS]
        self.names.stage_of_key[key] = stage
        return key

    def begin(self, stage: Stage) -> Callable[[], None] | None:
        """A stage begins here and now, see `HotPath.begin`."""
        return self._hot.begin(self.key(stage))

    def note(self, sentence: str) -> None:
        """Say what could not be seen; it is shown with the run."""
        self.log.say(note=sentence)

    @unseen
    def collate(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The collate function, recorded with its CPU time in every batch."""
        timed = self.call(original, self.key(COLLATE))

        def hook(samples: Any) -> Any:
            self._hot.read_cpu(on=True)
            try:
                return timed(samples)
            finally:
                self._hot.read_cpu(on=False)

        return hook

    def iterator(self, samples: Iterator[Any]) -> Iterator[Any]:
        """An iterator whose every `next` is a sample."""
        return _SampleIterator(self.sample, samples)

    # ---- batches --------------------------------------------------------------------------------

    def mark(self, tag: Tag, payload: int = 0) -> None:
        """Write a word that is not an enter or an exit."""
        self.log.words[self.log.place()] = word(tag, payload)

    def leave_batch(self, first: int, *, made: bool) -> int:
        """The batch is done; returns how many words it wrote.

        Args:
            first: what `enter_batch` returned.
            made: whether there is a batch, and no exception.
        """
        words, place, header = self.log.words, self.log.place, self.log.header
        self._hot.leave()
        now = self._hot.clock_with_cpu()
        last = place()
        words[last] = now
        if made:
            self.mark(Tag.BATCH_END)
        header[Header.SAMPLES] = self.pace.samples
        new = self.names.new_files
        if new:
            self.log.say_files(new, self._files_said + 1)
            self._files_said += len(new)
            new.clear()
        if last < first:
            header[Header.LAPS] += 1
        return (last - first) % len(words) + 1

    def choose_cpu_every(self, events: float, sample_ns: float) -> None:
        """Read CPU time so rarely that it stays below a thousandth of the samples' time.

        Args:
            events: words a sample writes.
            sample_ns: time a sample takes.
        """
        cost_ns = events * _cpu_clock_cost_ns()
        self.pace.cpu_every = max(1, min(1000, round(cost_ns / (_CPU_SHARE * max(sample_ns, 1)))))


@functools.cache
def _cpu_clock_cost_ns() -> float:
    """What reading the CPU clock costs here; a system call on most machines."""
    began = perf_counter_ns()
    for _ in range(50):
        thread_time_ns()
    return (perf_counter_ns() - began) / 50


class _SampleIterator:
    """Records every `next` of a dataset's iterator as a sample."""

    def __init__(self, sample: Callable[..., Any], samples: Iterator[Any]) -> None:
        self._sample = sample
        self._next = samples.__next__

    def __iter__(self) -> _SampleIterator:
        return self

    @unseen
    def __next__(self) -> Any:
        return self._sample(self._next, None, call=True)
