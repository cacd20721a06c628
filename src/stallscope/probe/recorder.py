"""The recorder: the few lines that run around every stage of every sample.

Each hook is made by a method of `Recorder` and shares its local variables, because a local
variable of a closure is the cheapest thing in Python: no attribute, no global, no lookup. A hook
writes one word when its stage begins and one, in a `finally`, when it ends
(`tests/benchmarks/span_cost.py` prints what that costs).
"""

from __future__ import annotations

import functools
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any, Final

from stallscope.eventlog import (
    CODE_SHIFT,
    INDEX_OFFSET,
    MOST_CODES,
    TAG_SHIFT,
    Header,
    LogWriter,
    Tag,
)
from stallscope.stages import BATCH, COLLATE, GETITEM, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NOTHING: Final = object()
_LARGEST_INDEX: Final = INDEX_OFFSET - 1
_CPU_SHARE: Final = 1e-3
"""Reading CPU time may cost this share of the samples' time at most."""


def word(tag: Tag, payload: int = 0) -> int:
    """A word that is not an enter or an exit."""
    return tag << TAG_SHIFT | payload


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
        self.samples = 0
        self.key_of_code: dict[object, int] = {}
        """Key of the stage of each hooked function, by its code object."""
        self._codes: dict[Stage, int] = {}
        self._files: dict[str, int] = {}
        self._cpu_every = 8
        words, place = log.words, log.place

        def clock_with_cpu() -> int:
            words[place()] = word(Tag.CPU, cpu_clock())
            return clock()

        self.clock = clock
        self._clock_with_cpu = clock_with_cpu
        self._now = clock  # what the hooks call; switched by `_read_cpu`
        self._make_hooks()

    def retire(self, *, close: bool = True) -> None:
        """Write nothing from now on: a hook that somebody still holds only calls its original.

        Args:
            close: also give the mapping back; a forked child leaves it to its parent.
        """
        self._retire()
        if close:
            self.log.close()

    # ---- names ----------------------------------------------------------------------------------

    def key(self, stage: Stage) -> int:
        """What to add to the clock to get the word that enters this stage."""
        code = self._codes.get(stage)
        if code is None:
            code = min(len(self._codes) + 1, MOST_CODES - 1)  # the last code is shared by the rest
            self._codes[stage] = code
            self.log.say(code=code, stage=stage)
        return (Tag.ENTER << TAG_SHIFT | code << CODE_SHIFT) - self.log.header[Header.BORN_NS]

    def note(self, sentence: str) -> None:
        """Say what could not be seen; it is shown with the run."""
        self.log.say(note=sentence)

    # ---- the hooks ------------------------------------------------------------------------------

    def _make_hooks(self) -> None:  # noqa: C901, PLR0915 - the hooks must share one set of cells
        """Make everything that runs per stage or per sample, around one set of local variables."""
        words, place, header, home = self.log.words, self.log.place, self.log.header, get_ident()
        born = header[Header.BORN_NS]
        now = self.clock
        getitem_key, batch_key = self.key(GETITEM), self.key(BATCH)
        sample_end = word(Tag.SAMPLE_END)
        in_sample = False

        def read_cpu(*, on: bool) -> None:
            nonlocal now
            now = self._clock_with_cpu if on else self.clock

        def raised(key: int) -> None:
            words[place()] = word(Tag.RAISED, (key + born >> CODE_SHIFT) % MOST_CODES)

        def failed(index: Any, key: int) -> None:
            """A sample of a batch that is not recorded has failed in this stage."""
            words[place()] = _sample_word(index)
            raised(key)
            words[place()] = sample_end

        def elsewhere(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
            if home:
                header[Header.OTHER_THREADS] += 1
            return original(*args, **named)

        def retire() -> None:
            nonlocal home
            home = 0  # no thread's

        def method(
            original: Callable[..., Any], first: object, key: int, key_of: Callable[[Any], int]
        ) -> Callable[..., Any]:
            """A method that records; `first` is the object that most classes have just one of."""
            self.key_of_code[getattr(original, "__code__", None)] = key

            @functools.wraps(original)
            def hook(self: Any, x: Any = _NOTHING, /, *rest: Any, **named: Any) -> Any:
                if get_ident() != home:
                    args = rest if x is _NOTHING else (x, *rest)
                    return elsewhere(original, self, *args, **named)
                mine = key if self is first else key_of(self)
                words[place()] = now() + mine
                try:
                    if rest or named or x is _NOTHING:
                        args = rest if x is _NOTHING else (x, *rest)
                        return original(self, *args, **named)
                    return original(self, x)
                except BaseException:
                    raised(mine)
                    raise
                finally:
                    words[place()] = now()

            return hook

        def call(
            original: Callable[..., Any], key: int, seen: Callable[..., None] | None = None
        ) -> Callable[..., Any]:
            """A function that records; `seen(result, *args)` may look at what went through."""
            self.key_of_code[getattr(original, "__code__", None)] = key

            @functools.wraps(original)
            def hook(*args: Any, **named: Any) -> Any:
                if get_ident() != home:
                    return elsewhere(original, *args, **named)
                words[place()] = now() + key
                try:
                    result = original(*args, **named)
                except BaseException:
                    raised(key)
                    raise
                else:
                    if seen is not None:
                        seen(result, *args)
                    return result
                finally:
                    words[place()] = now()

            return hook

        def sample(get: Callable[..., Any], index: Any, *, call: bool = False) -> Any:
            """One sample of this index: `get(index)`, or `get()` with `call`."""
            nonlocal in_sample
            if in_sample or get_ident() != home:
                return get() if call else get(index)
            in_sample = True
            self.samples += 1
            if self.samples % self._cpu_every == 0:
                read_cpu(on=True)
            words[place()] = _sample_word(index)
            words[place()] = now() + getitem_key
            try:
                return get() if call else get(index)
            except StopIteration:  # the end of an iterable dataset, not a failure
                words[place()] = word(Tag.EXHAUSTED)
                raise
            except BaseException:
                raised(getitem_key)
                raise
            finally:
                words[place()] = sample_end  # before the exit: what follows is no sample's
                words[place()] = now()
                in_sample = False
                if now is not self.clock:
                    read_cpu(on=False)

        def enter_batch(number: int) -> int:
            """A batch begins; returns the place of its first word."""
            nonlocal in_sample
            in_sample = False  # an interrupt may have left the last batch half done
            read_cpu(on=False)
            first = place()
            words[first] = word(Tag.BATCH, number)
            words[place()] = now() + batch_key
            return first

        def inside() -> bool:
            return in_sample

        self.method, self.call, self.sample, self.in_sample = method, call, sample, inside
        self.read_cpu, self.enter_batch, self.failed = read_cpu, enter_batch, failed
        self._retire = retire

    def collate(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The collate function, recorded with its CPU time in every batch."""
        timed = self.call(original, self.key(COLLATE))

        def hook(samples: Any) -> Any:
            self.read_cpu(on=True)
            try:
                return timed(samples)
            finally:
                self.read_cpu(on=False)

        return hook

    def iterator(self, samples: Iterator[Any]) -> Iterator[Any]:
        """An iterator whose every `next` is a sample."""
        return _SampleIterator(self.sample, samples)

    # ---- files ----------------------------------------------------------------------------------

    def file(self, path: str) -> None:
        """The sample at work reads this file."""
        number = self._files.get(path)
        if number is None:
            number = self._files[path] = len(self._files) + 1
            self.log.say(file=number, path=path)
        self.log.words[self.log.place()] = word(Tag.FILE, number)

    def pixels(self, width: int, height: int) -> None:
        """The sample at work opened an image of this size."""
        self.log.words[self.log.place()] = word(Tag.PIXELS, width << 24 | height)

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
        now = self._clock_with_cpu()
        last = place()
        words[last] = now
        if made:
            self.mark(Tag.BATCH_END)
        header[Header.SAMPLES] = self.samples
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
        self._cpu_every = max(1, min(1000, round(cost_ns / (_CPU_SHARE * max(sample_ns, 1)))))


@functools.cache
def _cpu_clock_cost_ns() -> float:
    """What reading the CPU clock costs here; a system call on most machines."""
    began = perf_counter_ns()
    for _ in range(50):
        thread_time_ns()
    return (perf_counter_ns() - began) / 50


def _sample_word(index: Any) -> int:
    """The word that begins a sample; an index that is not a whole number is not kept."""
    if type(index) is int or hasattr(index, "__index__"):
        number = int(index)
        if abs(number) <= _LARGEST_INDEX:
            return word(Tag.SAMPLE, number + INDEX_OFFSET)
    return word(Tag.UNINDEXED)


class _SampleIterator:
    """Records every `next` of a dataset's iterator as a sample."""

    def __init__(self, sample: Callable[..., Any], samples: Iterator[Any]) -> None:
        self._sample = sample
        self._next = samples.__next__

    def __iter__(self) -> _SampleIterator:
        return self

    def __next__(self) -> Any:
        return self._sample(self._next, None, call=True)
