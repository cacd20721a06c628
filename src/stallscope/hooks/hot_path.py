"""The hot path: the few lines that run around every stage of every sample.

All hooks of a process are closures over one set of local variables, because a local variable is
the cheapest thing in Python: no attribute, no global, no lookup. A hook writes one word when its
stage begins and one, in a `finally`, when it ends (`tests/benchmarks/span_cost.py` prints what that
costs). CPU time is read by swapping the clock, so that stages which do not read it pay nothing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from operator import index as as_number
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stallscope.hooks.stage_log import CODE_SHIFT, INDEX_OFFSET, MOST_CODES, TAG_SHIFT, Header, Tag
from stallscope.hooks.weak import under, unseen
from stallscope.stages import GETITEM

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.hooks.stage_log import LogWriter
    from stallscope.stages import Stage


_NOTHING: Final = object()


@dataclass
class SamplingRate:
    """What changes while samples go by."""

    samples: int = 0
    """Samples so far."""
    cpu_every: int = 8
    """CPU time is read for one sample in this many."""


@dataclass
class LogNames:
    """What the numbers in the log stand for."""

    stage_of_key: dict[int, Stage] = field(default_factory=dict)
    """Stage of each key."""
    key_of_code: dict[object, int] = field(default_factory=dict)
    """Key of the stage of each hooked function, by its code object."""
    new_files: list[str] = field(default_factory=list)
    """Paths that the log does not name yet; files are numbered from 1, in order."""
    getitem_key: int = 0
    batch_key: int = 0


class Clocks(NamedTuple):
    """Where the time comes from."""

    wall: Callable[[], int]
    """ns, monotonic, the same in every process of the machine."""
    cpu: Callable[[], int]
    """CPU time of this thread, ns."""


class HotPath(NamedTuple):
    """The functions that record, while a batch is at work and in the thread that makes it."""

    method: Callable[..., Callable[..., Any]]
    """`(original, first, key, key_of)`: a method that records."""
    call: Callable[..., Callable[..., Any]]
    """`(original, key, seen)`: a function that records."""
    sample: Callable[..., Any]
    """`(get, index, call=False)`: makes one sample by `get(index)`, or `get()`, and records it."""
    in_sample: Callable[[], bool]
    """Whether a sample is at work."""
    at_work: Callable[[], bool]
    """Whether a batch is at work, in the thread that asks."""
    read_cpu: Callable[..., None]
    """`(on=)`: whether the hooks read CPU time, too."""
    enter_batch: Callable[[int], int]
    """`(number)`: a batch begins; returns the place of its first word."""
    leave: Callable[[], None]
    """No batch is at work any more: the hooks only call their originals."""
    clock_with_cpu: Callable[[], int]
    """The clock; writes the CPU time into the log first."""
    failed: Callable[[Any, int], None]
    """`(index, key)`: a sample of a batch that is not recorded has failed in this stage."""
    file: Callable[[str], None]
    """`(path)`: the sample at work reads this file."""
    begin: Callable[[int], Callable[[], None] | None]
    """`(key)`: a stage begins here; returns what ends it, None where no batch is at work."""
    pixels: Callable[[int, int], None]
    """`(width, height)`: the sample at work opened an image of this size."""


def word(tag: Tag, payload: int = 0) -> int:
    """A word that is not an enter or an exit."""
    return tag << TAG_SHIFT | payload


@unseen
def hot_path(  # noqa: C901, PLR0915 - the hooks must share one set of variables
    log: LogWriter,
    clocks: Clocks,
    pace: SamplingRate,
    names: LogNames,
) -> HotPath:
    """Make the functions that record into a log.

    Args:
        log: of the thread that calls.
        clocks: where the time comes from.
        pace: counts the samples; may be changed from outside.
        names: what keys and files stand for.
    """
    words, place, header = log.words, log.place, log.header
    born = header[Header.BORN_NS]
    home = 0  # the thread that makes a batch; 0 while there is no batch at work
    clock, cpu_clock = clocks
    now, ident = clock, get_ident
    getitem_key, batch_key = names.getitem_key, names.batch_key
    sample_word, file_word, pixels_word = _SAMPLE_0, word(Tag.FILE), word(Tag.PIXELS)
    sample_end, cpu_word = word(Tag.SAMPLE_END), word(Tag.CPU)
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
        words[place()] = word(Tag.RAISED, (key + born >> CODE_SHIFT) % MOST_CODES)

    def failed(index: Any, key: int) -> None:
        """A sample of a batch that is not recorded has failed in this stage."""
        words[place()] = _sample_word(index)
        raised(key)
        words[place()] = sample_end

    def elsewhere(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if home:  # another thread of the batch at work, and not somebody else's call
            header[Header.OTHER_THREADS] += 1
        return original(*args, **named)

    def leave() -> None:
        """No batch is at work: from now on every hook only calls its original."""
        nonlocal home
        home = 0

    def method(
        original: Callable[..., Any], first: object, key: int, key_of: Callable[[Any], int]
    ) -> Callable[..., Any]:
        """A method that records; `first` is the object that most classes have just one of."""
        names.key_of_code[getattr(original, "__code__", None)] = key
        transforms = names.stage_of_key[key].kind == "transform"
        others: dict[int, Callable[..., Any]] = {}

        def other(mine: int) -> Callable[..., Any]:
            """The original, under a frame with the name of another object's stage."""

            def run(*args: Any, **named: Any) -> Any:
                return original(*args, **named)

            others[mine] = under(names.stage_of_key[mine], run)
            return others[mine]

        @functools.wraps(original)
        def hook(self: Any, x: Any = _NOTHING, /, *rest: Any, **named: Any) -> Any:
            nonlocal in_transform
            if ident() != home:
                args = rest if x is _NOTHING else (x, *rest)
                return elsewhere(original, self, *args, **named)
            if self is first:
                mine, run = key, original
            else:
                mine = key_of(self)
                run = others.get(mine) or other(mine)
            outside, in_transform = in_transform, transforms
            words[place()] = now() + mine
            try:
                if rest or named or x is _NOTHING:
                    args = rest if x is _NOTHING else (x, *rest)
                    return run(self, *args, **named)
                return run(self, x)
            except BaseException:
                raised(mine)
                raise
            finally:
                words[place()] = now()
                in_transform = outside

        return under(names.stage_of_key[key], hook)

    def call(
        original: Callable[..., Any], key: int, seen: Callable[..., None] | None = None
    ) -> Callable[..., Any]:
        """A function that records; `seen(result, *args)` may look at what went through."""
        names.key_of_code[getattr(original, "__code__", None)] = key
        stage = names.stage_of_key[key]
        transforms, gives_way = stage.kind == "transform", stage.gives_way

        @functools.wraps(original)
        def hook(*args: Any, **named: Any) -> Any:
            nonlocal in_transform
            if ident() != home:
                return elsewhere(original, *args, **named)
            if gives_way and in_transform:
                return original(*args, **named)
            outside, in_transform = in_transform, transforms
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
                in_transform = outside

        return under(stage, hook)

    def sample(get: Callable[..., Any], index: Any, *, call: bool = False) -> Any:
        """One sample of this index: `get(index)`, or `get()` with `call`."""
        nonlocal in_sample, in_transform
        if in_sample or ident() != home:
            return get() if call else get(index)
        in_sample, in_transform = True, False
        pace.samples += 1
        if pace.samples % pace.cpu_every == 0:
            read_cpu(on=True)
        plain = type(index) is int and -1 < index < INDEX_OFFSET
        words[place()] = index + sample_word if plain else _sample_word(index)
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
            if now is not clock:
                read_cpu(on=False)

    def enter_batch(number: int) -> int:
        """A batch begins; returns the place of its first word."""
        nonlocal in_sample, in_transform, home
        in_sample = in_transform = False  # an interrupt may have left the last batch half done
        read_cpu(on=False)
        home = get_ident()
        first = place()
        words[first] = word(Tag.BATCH, number)
        words[place()] = now() + batch_key
        return first

    def file(path: str) -> None:
        """The sample at work reads this file."""
        number = files.get(path)
        if number is None:
            number = files[path] = len(files) + 1
            names.new_files.append(path)
        words[place()] = number + file_word

    def pixels(width: int, height: int) -> None:
        """The sample at work opened an image of this size."""
        words[place()] = (width << 24 | height) + pixels_word

    def begin(key: int) -> Callable[[], None] | None:
        """A stage begins here and now; what gives way is part of it."""
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

    def inside() -> bool:
        return in_sample

    def at_work() -> bool:
        return home == get_ident()

    return HotPath(
        method,
        call,
        under(GETITEM, sample),
        inside,
        at_work,
        read_cpu,
        enter_batch,
        leave,
        clock_with_cpu,
        failed,
        file,
        begin,
        pixels,
    )


def _sample_word(index: Any) -> int:
    """The word that begins a sample; an index that is not a whole number is not kept."""
    try:
        number = as_number(index)
    except Exception:  # noqa: BLE001 - whatever a user's sampler gives, the sample goes on
        return word(Tag.UNINDEXED)
    return number + _SAMPLE_0 if abs(number) < INDEX_OFFSET else word(Tag.UNINDEXED)


_SAMPLE_0: Final = word(Tag.SAMPLE, INDEX_OFFSET)
