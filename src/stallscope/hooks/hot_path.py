"""Recorder of one thread, and its hot path: the code around every stage of every sample.

All hooks of a process are closures over one set of local variables, because local variables are
the fastest in Python: no attribute, no global, no lookup. A hook writes one word when its stage
begins and one, in a `finally`, when it ends (`tests/benchmarks/overhead.py` prints the overhead).
CPU time is read by swapping the clock, so that other stages pay nothing for it.

The original is called exactly once, also if writing fails: stallscope's code has a `try` of its
own, which is free while no exception is raised.
"""

from __future__ import annotations

import functools
import sys
from operator import index as as_number
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any, Final

from stallscope.hooks.event_log import CODE_SHIFT, INDEX_OFFSET, MOST_CODES, Header, Tag
from stallscope.hooks.loader_access import StandIn
from stallscope.hooks.patches import under, unseen
from stallscope.hooks.recording_folder import is_chosen
from stallscope.stages import BATCH, GETITEM, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.hooks.event_log import ProcessLog, ThreadLog


_CPU_SHARE: Final = 2.5e-4
"""Limit for reading CPU time, as a share of the samples' time: a quarter of the promised overhead,
because a read between two ops takes four times as long as in a tight loop."""


@unseen
def hot_path(  # noqa: C901, PLR0915 - the hooks must share one set of variables
    recorder: Recorder, cpu_clock: Callable[[], int], keys: tuple[int, int]
) -> dict[str, Callable[..., Any]]:
    """Return the functions that record into a log, by their names in `Recorder`.

    A batch is recorded in the log of its thread. `keys` are those of samples and batches.
    """
    log, clock, stage_of_key = recorder.log, recorder.clock, recorder.stage_of_key
    here = log.here()
    words, place, header = here.words, here.place, here.header
    note = log.failures.note
    started = log.started_ns
    home = 0  # the thread of the current batch; 0: no batch
    now, ident = clock, get_ident
    getitem_key, batch_key = keys
    sample_word, file_word, pixels_word = _SAMPLE_0, int(Tag.FILE), int(Tag.PIXELS)
    sample_end, cpu_word = int(Tag.SAMPLE_END), int(Tag.CPU)
    exhausted_word, none_word = int(Tag.EXHAUSTED), int(Tag.NONE)
    files: dict[str, int] = {}
    new_files = recorder.new_files
    errors: set[int] = set()
    in_sample = False
    in_transform = False  # the innermost stage is a transform: stages that give way are part of it

    def clock_with_cpu() -> int:
        words[place()] = cpu_clock() + cpu_word
        return clock()

    def read_cpu(*, on: bool) -> None:
        nonlocal now
        now = clock_with_cpu if on else clock

    def raised(key: int) -> None:
        try:
            code = (key + started >> CODE_SHIFT) % MOST_CODES
            words[place()] = Tag.RAISED | code
            kind = sys.exc_info()[0]
            if code not in errors and kind is not None:  # the first one's type stands for all
                errors.add(code)
                log.say(raised=kind.__name__, code=code)
        except Exception as error:  # noqa: BLE001 - the user's exception propagates
            note("the stages that raised", error)

    def failed(index: Any) -> None:
        turn_to(log.here())
        words[place()] = _sample_word(index)
        raised(getitem_key)
        words[place()] = sample_end

    def lost(key: int, error: Exception) -> None:
        note(f"the spans of '{stage_of_key[key].name}'", error)

    def turn_to(thread_log: ThreadLog) -> None:
        """Write into the log of another thread, or into its next file, without paths so far."""
        nonlocal here, words, place, header
        if thread_log.words is not words:
            here = thread_log
            words, place, header = here.words, here.place, here.header
            files.clear()

    def elsewhere(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if home:  # during a batch: count calls of other threads
            try:
                header[Header.OTHER_THREADS] += 1
            except Exception as error:  # noqa: BLE001 - as everywhere here: internal errors never reach the user
                note("the calls in other threads", error)
        return original(*args, **named)

    def leave() -> None:
        nonlocal home
        home = 0
        here.is_busy = False

    def call(  # noqa: C901 - one hook for functions and methods, without a call in between
        original: Callable[..., Any],
        key: int,
        seen: Callable[..., None] | None = None,
        key_of: Callable[[Any], int] | None = None,
        first: object = None,
    ) -> Callable[..., Any]:
        stage = stage_of_key[key]
        transforms, gives_way = stage.kind == "transform", stage.gives_way
        others: dict[int, Callable[..., Any]] = {}

        def under_other_stage(mine: int) -> Callable[..., Any]:
            """Return the original under a frame with the name of another object's stage."""

            def run(*args: Any, **named: Any) -> Any:
                return original(*args, **named)

            others[mine] = under(stage_of_key[mine], run)
            return others[mine]

        @functools.wraps(original)
        def hook(*args: Any, **named: Any) -> Any:
            nonlocal in_transform
            if ident() != home:
                return elsewhere(original, *args, **named)
            if gives_way and in_transform:
                return original(*args, **named)
            try:
                mine, run = key, original
                if key_of is not None and args[0] is not first:
                    mine = key_of(args[0])
                    run = others.get(mine) or under_other_stage(mine)
                words[place()] = now() + mine
            except Exception as error:  # noqa: BLE001
                lost(key, error)
                return original(*args, **named)
            outside, in_transform = in_transform, transforms
            try:
                result = run(*args, **named) if named else run(*args)
            except BaseException:
                raised(mine)
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
                    lost(mine, error)

        return under(stage, hook)

    def sample(get: Callable[..., Any], index: Any, *, call: bool = False) -> Any:
        nonlocal in_sample, in_transform
        if in_sample or ident() != home:
            return get() if call else get(index)
        try:
            recorder.samples += 1
            if is_chosen(recorder.samples, recorder.cpu_every):
                read_cpu(on=True)
            plain = type(index) is int and -1 < index < INDEX_OFFSET
            words[place()] = index + sample_word if plain else _sample_word(index)
            words[place()] = now() + getitem_key
        except Exception as error:  # noqa: BLE001
            note("samples", error)
            return get() if call else get(index)
        in_sample, in_transform = True, False
        try:
            got = get() if call else get(index)
        except StopIteration:  # the end of an iterable dataset
            of_sample(exhausted_word)
            raise
        except BaseException:
            raised(getitem_key)
            raise
        else:
            if got is None:
                of_sample(none_word)
            return got
        finally:
            in_sample = False
            try:
                words[place()] = sample_end  # before the exit: later words belong to no sample
                words[place()] = now()
                if now is not clock:
                    read_cpu(on=False)
            except Exception as error:  # noqa: BLE001
                note("samples", error)

    def of_sample(word: int) -> None:
        try:
            words[place()] = word
        except Exception as error:  # noqa: BLE001
            note("samples", error)

    def enter_batch(number: int) -> int:
        nonlocal in_sample, in_transform, home
        in_sample = in_transform = False  # an interrupt may have left the last batch incomplete
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
            new_files.append(path)
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

    def at_work() -> bool:
        return home == get_ident()

    functions = (call, under(GETITEM, sample), at_work, read_cpu, enter_batch, leave)
    others = (clock_with_cpu, failed, file, begin_key, pixels)
    return {function.__name__: function for function in (*functions, *others)}


def _sample_word(index: Any) -> int:
    """Return the word that begins a sample; an index that is not an integer is dropped."""
    try:
        number = as_number(index)
    except Exception:  # noqa: BLE001 - a user's sampler may yield any object
        return int(Tag.UNINDEXED)
    return number + _SAMPLE_0 if abs(number) < INDEX_OFFSET else int(Tag.UNINDEXED)


_SAMPLE_0: Final = Tag.SAMPLE | INDEX_OFFSET


class Recorder:
    """Recorder of the spans of one thread into the log of its process.

    `clock` is monotonic and the same in every process of the machine; both clocks give ns.
    """

    # Functions that record, during a batch and in its thread. Bound once, because properties would
    # slow hooks down.
    call: Callable[..., Callable[..., Any]]
    """`(original, key, seen, key_of, first)`: returns a function that records. `seen` receives the
    result and the arguments. Of a method, `key_of(instance)` gives the key, and `first` is the
    instance of `key`, for most classes the only one."""
    sample: Callable[..., Any]
    """`(get, index, call=False)`: loads a sample by `get(index)`, or `get()`, and records it."""
    at_work: Callable[[], bool]
    """Returns True during a batch of the calling thread."""
    read_cpu: Callable[..., None]
    """`(on=)`: turns reading of CPU time on or off."""
    enter_batch: Callable[[int], int]
    """`(number)`: a batch begins; returns the place of its first word."""
    leave: Callable[[], None]
    """Ends a batch: from now on, hooks only call their originals."""
    clock_with_cpu: Callable[[], int]
    """Reads the clock; writes the CPU time into the log first."""
    failed: Callable[[Any], None]
    """`(index)`: a sample of a batch without hooks has raised."""
    file: Callable[[str], None]
    """`(path)`: the current sample reads this file."""
    begin_key: Callable[[int], Callable[[], None] | None]
    """`(key)`: begins a stage, which includes stages that give way; returns the function that ends
    the stage; None: there is no batch."""
    pixels: Callable[[int, int], None]
    """`(width, height)`: the current sample opened an image of this size."""

    def __init__(
        self,
        log: ProcessLog,
        clock: Callable[[], int] = perf_counter_ns,
        cpu_clock: Callable[[], int] = thread_time_ns,
    ) -> None:
        self.log = log
        self.failures = log.failures
        self.clock = clock
        self.samples = 0
        self.cpu_every = 8
        """CPU time is read for every n-th sample."""
        self.stage_of_key: dict[int, Stage] = {}
        self.new_files: list[str] = []
        """Paths that are not yet in the log; files are numbered from 1, in order."""
        vars(self).update(hot_path(self, cpu_clock, (self.key(GETITEM), self.key(BATCH))))

    def retire(self) -> None:
        """Write nothing from now on: hooks that still exist only call their originals."""
        self.failures.insist("the end of the hooks", self.leave)

    # ---- names ----------------------------------------------------------------------------------

    def key(self, stage: Stage) -> int:
        """Return the number that, added to the clock, gives the enter word of this stage."""
        stage, code = self.log.numbered(stage)
        key = (Tag.ENTER | code << CODE_SHIFT) - self.log.started_ns
        self.stage_of_key[key] = stage
        return key

    def begin(self, stage: Stage) -> Callable[[], None] | None:
        """Begin a stage with a name of the user's, see `begin_key`."""
        return self.begin_key(self.key(stage))

    def note(self, sentence: str) -> None:
        """Write a note on a gap in the recording; the run shows it."""
        self.log.say(note=sentence)

    @unseen
    def of_batch(self, original: Callable[[Any], Any], key: int) -> Callable[[Any], Any]:
        """Return a call for a whole batch, recorded with its CPU time every time."""
        timed = self.call(original, key)
        cpu = self.failures.passing("the CPU time of batches", self.read_cpu)

        def hook(batch: Any) -> Any:
            cpu(on=True)
            try:
                return timed(batch)
            finally:
                cpu(on=False)

        return hook

    # ---- batches --------------------------------------------------------------------------------

    def mark(self, tag: Tag, payload: int = 0) -> None:
        """Write a word other than enter and exit."""
        here = self.log.here()
        here.words[here.place()] = tag | payload

    def leave_batch(self, first: int, *, is_complete: bool) -> int:
        """End the batch that began at the word `first`; return the number of its words."""
        here = self.log.here()
        self.leave()
        now = self.clock_with_cpu()
        last = here.place()
        here.words[last] = now
        if is_complete:
            self.mark(Tag.BATCH_END)
        new = self.new_files
        if new:
            here.add_paths(new)
            new.clear()
        if self.log.is_retired:  # another thread retired the log, but left it open
            here.close()
        return max(last - first, 0) + 1

    def choose_cpu_every(self, words: float, sample_ns: float) -> None:
        """Read CPU time so rarely that this takes below a thousandth of the samples' time."""
        cost_ns = words * _cpu_clock_cost_ns()
        self.cpu_every = max(1, min(1000, round(cost_ns / (_CPU_SHARE * max(sample_ns, 1)))))


@functools.cache
def _cpu_clock_cost_ns() -> float:
    began = perf_counter_ns()
    for _ in range(50):
        thread_time_ns()
    return (perf_counter_ns() - began) / 50


class IteratorStandIn(StandIn):
    """An iterator whose every `next` is a call of ours; everything else goes to the original."""

    def __init__(self, samples: Iterator[Any], advance: Callable[[], Any]) -> None:
        super().__init__(samples)
        self._advance = advance

    def __iter__(self) -> IteratorStandIn:
        return self

    @unseen
    def __next__(self) -> Any:
        return self._advance()
