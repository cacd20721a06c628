"""The recorder of one thread, and in it the hot path: what runs around every stage of every sample.

All hooks of a process are closures over one set of local variables, because a local variable is
the cheapest thing in Python: no attribute, no global, no lookup. A hook writes one word when its
stage begins and one, in a `finally`, when it ends (`tests/benchmarks/overhead.py` prints what that
costs). CPU time is read by swapping the clock, so that stages which do not read it pay nothing.

The original is called once, whatever goes wrong in writing: what is ours stands in a `try` of its
own, which costs nothing while nothing is raised.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from operator import index as as_number
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any, Final

from stallscope.hooks.event_log import (
    CODE_SHIFT,
    INDEX_OFFSET,
    MOST_CODES,
    Header,
    Tag,
    kept_apart,
)
from stallscope.hooks.patches import under, unseen
from stallscope.stages import BATCH, COLLATE, GETITEM, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.hooks.event_log import ProcessLog, ThreadLog


_NOTHING: Final = object()
_CPU_SHARE: Final = 2.5e-4
"""Reading CPU time may cost this share of the samples' time: a quarter of what is promised, because
a read costs four times as much between two ops as in a row."""


@dataclass
class RecorderState:
    """State that changes while samples go by, and the meaning of the numbers in the log."""

    samples: int = 0
    """Samples so far."""
    cpu_every: int = 8
    """CPU time is read for one sample in this many."""
    stage_of_key: dict[int, Stage] = field(default_factory=dict)
    """Stage of each key."""
    key_of_code: dict[object, int] = field(default_factory=dict)
    """Key of the stage of each hooked function, by its code object."""
    new_files: list[str] = field(default_factory=list)
    """Paths that the log does not name yet; files are numbered from 1, in order."""
    getitem_key: int = 0
    batch_key: int = 0


@unseen
def hot_path(  # noqa: C901, PLR0915 - the hooks must share one set of variables
    log: ProcessLog, clocks: tuple[Callable[[], int], Callable[[], int]], state: RecorderState
) -> dict[str, Callable[..., Any]]:
    """Make the functions that record into a log, by the names that `Recorder` gives them.

    Args:
        log: of this process; a batch is recorded in the log of the thread that makes it.
        clocks: of the wall, ns, monotonic and the same in every process; CPU time of this thread.
        state: counts the samples; may be changed from outside.
    """
    here = log.here()
    words, place, header = here.words, here.place, here.header
    note = log.failures.note
    started = log.started_ns
    home = 0  # the thread that makes a batch; 0 while there is no batch at work
    clock, cpu_clock = clocks
    now, ident = clock, get_ident
    getitem_key, batch_key = state.getitem_key, state.batch_key
    sample_word, file_word, pixels_word = _SAMPLE_0, int(Tag.FILE), int(Tag.PIXELS)
    sample_end, cpu_word = int(Tag.SAMPLE_END), int(Tag.CPU)
    files: dict[str, int] = {}
    in_sample = False
    in_transform = False  # the innermost stage is one: what gives way is part of it

    def clock_with_cpu() -> int:
        words[place()] = cpu_clock() + cpu_word
        return clock()

    def read_cpu(*, on: bool) -> None:
        nonlocal now
        now = clock_with_cpu if on else clock

    def raised(key: int) -> None:
        try:
            words[place()] = Tag.RAISED | (key + started >> CODE_SHIFT) % MOST_CODES
        except Exception as error:  # noqa: BLE001 - the user's own exception is under way
            note("the stages that raised", error)

    def lost(key: int, error: Exception) -> None:
        note(f"the spans of '{state.stage_of_key[key].name}'", error)

    def failed(index: Any, key: int) -> None:
        turn_to(log.here())
        words[place()] = _sample_word(index)
        raised(key)
        words[place()] = sample_end

    def turn_to(thread_log: ThreadLog) -> None:
        """Write into the log of another thread, or into its next file, which knows no paths."""
        nonlocal here, words, place, header
        if thread_log.words is not words:
            here = thread_log
            words, place, header = here.words, here.place, here.header
            files.clear()

    def elsewhere(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if home:  # another thread of the batch at work, and not somebody else's call
            try:
                header[Header.OTHER_THREADS] += 1
            except Exception as error:  # noqa: BLE001 - as everywhere here: ours is not the user's
                note("the calls in other threads", error)
        return original(*args, **named)

    def leave() -> None:
        nonlocal home
        home = 0
        here.is_busy = False

    def method(
        original: Callable[..., Any], first: object, key: int, key_of: Callable[[Any], int]
    ) -> Callable[..., Any]:
        state.key_of_code[getattr(original, "__code__", None)] = key
        transforms = state.stage_of_key[key].kind == "transform"
        others: dict[int, Callable[..., Any]] = {}

        def other(mine: int) -> Callable[..., Any]:
            """The original, under a frame with the name of another object's stage."""

            def run(*args: Any, **named: Any) -> Any:
                return original(*args, **named)

            others[mine] = under(state.stage_of_key[mine], run)
            return others[mine]

        @functools.wraps(original)
        def hook(self: Any, x: Any = _NOTHING, /, *rest: Any, **named: Any) -> Any:
            nonlocal in_transform
            if ident() != home:
                args = rest if x is _NOTHING else (x, *rest)
                return elsewhere(original, self, *args, **named)
            try:
                if self is first:
                    mine, run = key, original
                else:
                    mine = key_of(self)
                    run = others.get(mine) or other(mine)
                words[place()] = now() + mine
            except Exception as error:  # noqa: BLE001
                lost(key, error)
                args = rest if x is _NOTHING else (x, *rest)
                return original(self, *args, **named)
            outside, in_transform = in_transform, transforms
            try:
                if rest or named or x is _NOTHING:
                    args = rest if x is _NOTHING else (x, *rest)
                    return run(self, *args, **named)
                return run(self, x)
            except BaseException:
                raised(mine)
                raise
            finally:
                in_transform = outside
                try:
                    words[place()] = now()
                except Exception as error:  # noqa: BLE001
                    lost(mine, error)

        return under(state.stage_of_key[key], hook)

    def call(
        original: Callable[..., Any], key: int, seen: Callable[..., None] | None = None
    ) -> Callable[..., Any]:
        state.key_of_code[getattr(original, "__code__", None)] = key
        stage = state.stage_of_key[key]
        transforms, gives_way = stage.kind == "transform", stage.gives_way

        @functools.wraps(original)
        def hook(*args: Any, **named: Any) -> Any:
            nonlocal in_transform
            if ident() != home:
                return elsewhere(original, *args, **named)
            if gives_way and in_transform:
                return original(*args, **named)
            try:
                words[place()] = now() + key
            except Exception as error:  # noqa: BLE001
                lost(key, error)
                return original(*args, **named)
            outside, in_transform = in_transform, transforms
            try:
                result = original(*args, **named)
            except BaseException:
                raised(key)
                raise
            else:
                if seen is not None:
                    try:
                        seen(result, *args)
                    except Exception as error:  # noqa: BLE001
                        note("the files and images of the samples", error)
                return result
            finally:
                in_transform = outside
                try:
                    words[place()] = now()
                except Exception as error:  # noqa: BLE001
                    lost(key, error)

        return under(stage, hook)

    def sample(get: Callable[..., Any], index: Any, *, call: bool = False) -> Any:
        nonlocal in_sample, in_transform
        if in_sample or ident() != home:
            return get() if call else get(index)
        try:
            state.samples += 1
            if state.samples % state.cpu_every == 0:
                read_cpu(on=True)
            plain = type(index) is int and -1 < index < INDEX_OFFSET
            words[place()] = index + sample_word if plain else _sample_word(index)
            words[place()] = now() + getitem_key
        except Exception as error:  # noqa: BLE001
            note("samples", error)
            return get() if call else get(index)
        in_sample, in_transform = True, False
        try:
            return get() if call else get(index)
        except StopIteration:  # the end of an iterable dataset, not a failure
            exhausted()
            raise
        except BaseException:
            raised(getitem_key)
            raise
        finally:
            in_sample = False
            try:
                words[place()] = sample_end  # before the exit: what follows is no sample's
                words[place()] = now()
                if now is not clock:
                    read_cpu(on=False)
            except Exception as error:  # noqa: BLE001
                note("samples", error)

    def exhausted() -> None:
        try:
            words[place()] = Tag.EXHAUSTED
        except Exception as error:  # noqa: BLE001
            note("samples", error)

    def enter_batch(number: int) -> int:
        nonlocal in_sample, in_transform, home
        in_sample = in_transform = False  # an interrupt may have left the last batch half done
        read_cpu(on=False)
        turn_to(log.here())
        here.is_busy = True
        first = place()
        words[first] = Tag.BATCH | number
        words[place()] = now() + batch_key
        home = get_ident()
        return first

    def file(path: str) -> None:
        number = files.get(path)
        if number is None:
            number = files[path] = len(files) + 1
            state.new_files.append(path)
        words[place()] = number + file_word

    def pixels(width: int, height: int) -> None:
        words[place()] = (width << 24 | height) + pixels_word

    def begin_key(key: int) -> Callable[[], None] | None:
        nonlocal in_transform
        if ident() != home:
            return None
        outside, in_transform = in_transform, True
        words[place()] = now() + key

        def end() -> None:
            nonlocal in_transform
            if ident() == home:
                words[place()] = now()
                in_transform = outside

        return end

    def is_in_sample() -> bool:
        return in_sample

    def at_work() -> bool:
        return home == get_ident()

    return {
        "method": method,
        "call": call,
        "sample": under(GETITEM, sample),
        "in_sample": is_in_sample,
        "at_work": at_work,
        "read_cpu": read_cpu,
        "enter_batch": enter_batch,
        "leave": leave,
        "clock_with_cpu": clock_with_cpu,
        "failed": failed,
        "file": file,
        "begin_key": begin_key,
        "pixels": pixels,
    }


def _sample_word(index: Any) -> int:
    """Return the word that begins a sample; an index that is no whole number is dropped."""
    try:
        number = as_number(index)
    except Exception:  # noqa: BLE001 - whatever a user's sampler gives, the sample goes on
        return int(Tag.UNINDEXED)
    return number + _SAMPLE_0 if abs(number) < INDEX_OFFSET else int(Tag.UNINDEXED)


_SAMPLE_0: Final = Tag.SAMPLE | INDEX_OFFSET


class Recorder:
    """Writes the spans of one thread into its log.

    Args:
        log: of this process.
        clock: nanoseconds, monotonic and the same in every process of the machine.
        cpu_clock: CPU time of this thread, ns.
    """

    # The functions that record, while a batch is at work and in the thread that makes it. Bound
    # once: a hook's way to them must not lead through properties.
    method: Callable[..., Callable[..., Any]]
    """`(original, first, key, key_of)`: a method that records; `first` is the object that most
    classes have just one of."""
    call: Callable[..., Callable[..., Any]]
    """`(original, key, seen)`: a function that records; `seen(result, *args)` may look at what
    went through."""
    sample: Callable[..., Any]
    """`(get, index, call=False)`: makes one sample by `get(index)`, or `get()`, and records it."""
    in_sample: Callable[[], bool]
    """Returns whether a sample is being made."""
    at_work: Callable[[], bool]
    """Returns whether a batch is being made in the calling thread."""
    read_cpu: Callable[..., None]
    """`(on=)`: whether the hooks read CPU time, too."""
    enter_batch: Callable[[int], int]
    """`(number)`: a batch begins; returns the place of its first word."""
    leave: Callable[[], None]
    """No batch is at work any more: the hooks only call their originals."""
    clock_with_cpu: Callable[[], int]
    """Reads the clock; writes the CPU time into the log first."""
    failed: Callable[[Any, int], None]
    """`(index, key)`: a sample of a batch that is not recorded has failed in this stage."""
    file: Callable[[str], None]
    """`(path)`: the sample at work reads this file."""
    begin_key: Callable[[int], Callable[[], None] | None]
    """`(key)`: a stage begins here and now, and what gives way is part of it; returns what ends it,
    None where no batch is at work."""
    pixels: Callable[[int, int], None]
    """`(width, height)`: the sample at work opened an image of this size."""

    def __init__(
        self,
        log: ProcessLog,
        clock: Callable[[], int] = perf_counter_ns,
        cpu_clock: Callable[[], int] = thread_time_ns,
    ) -> None:
        self.log = log
        self.failures = log.failures
        self.clock = clock
        self.state = RecorderState()
        self._names: dict[Stage, int] = {}
        self.state.getitem_key, self.state.batch_key = self.key(GETITEM), self.key(BATCH)
        vars(self).update(hot_path(log, (clock, cpu_clock), self.state))

    def retire(self) -> None:
        """Write nothing from now on: a hook that somebody still holds only calls its original."""
        self.failures.insist("the end of the hooks", self.leave)

    # ---- names ----------------------------------------------------------------------------------

    def key(self, stage: Stage) -> int:
        """Return what to add to the clock to get the word that enters this stage."""
        stage, code = self.log.numbered(stage)
        key = (Tag.ENTER | code << CODE_SHIFT) - self.log.started_ns
        self.state.stage_of_key[key] = stage
        return key

    def begin(self, stage: Stage) -> Callable[[], None] | None:
        """Begin a stage that the user names, see `begin_key`."""
        return self.begin_key(self._names.get(stage) or self._name(stage))

    def _name(self, stage: Stage) -> int:
        stage = kept_apart(stage, self._names, self.note)
        key = self._names[stage] = self.key(stage)
        return key

    def note(self, sentence: str) -> None:
        """Say what could not be seen; it is shown with the run."""
        self.log.say(note=sentence)

    @unseen
    def collate(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the collate function, recorded with its CPU time in every batch."""
        timed = self.call(original, self.key(COLLATE))

        def cpu(*, on: bool) -> None:
            try:
                self.read_cpu(on=on)
            except Exception as error:  # noqa: BLE001 - ours is never the user's
                self.log.failures.note("the CPU time of collating", error)

        def hook(samples: Any) -> Any:
            cpu(on=True)
            try:
                return timed(samples)
            finally:
                cpu(on=False)

        return hook

    def iterator(self, samples: Iterator[Any]) -> Iterator[Any]:
        """An iterator whose every `next` is a sample."""
        return _SampleIterator(self.sample, samples)

    # ---- batches --------------------------------------------------------------------------------

    def mark(self, tag: Tag, payload: int = 0) -> None:
        """Write a word that is not an enter or an exit."""
        here = self.log.here()
        here.words[here.place()] = tag | payload

    def leave_batch(self, first: int, samples: int, *, made: bool) -> int:
        """End the batch; return how many words it wrote.

        Args:
            first: what `enter_batch` returned.
            samples: made in this batch.
            made: whether there is a batch, and no exception.
        """
        here = self.log.here()
        self.leave()
        now = self.clock_with_cpu()
        last = here.place()
        here.words[last] = now
        if made:
            self.mark(Tag.BATCH_END)
        here.header[Header.SAMPLES] += samples
        new = self.state.new_files
        if new:
            here.add_paths(new)
            new.clear()
        if self.log.is_retired:  # by another thread, which left this log open
            here.close()
        return max(last - first, 0) + 1

    def choose_cpu_every(self, events: float, sample_ns: float) -> None:
        """Read CPU time so rarely that it stays below a thousandth of the samples' time.

        Args:
            events: words a sample writes.
            sample_ns: time a sample takes.
        """
        cost_ns = events * _cpu_clock_cost_ns()
        self.state.cpu_every = max(1, min(1000, round(cost_ns / (_CPU_SHARE * max(sample_ns, 1)))))


@functools.cache
def _cpu_clock_cost_ns() -> float:
    """Return what reading the CPU clock costs here; a system call on most machines."""
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
