"""The hot path: the few lines that run around every stage of every sample.

All hooks of a process are closures over one set of local variables, because a local variable is
the cheapest thing in Python: no attribute, no global, no lookup. A hook writes one word when its
stage begins and one, in a `finally`, when it ends (`tests/benchmarks/span_cost.py` prints what that
costs). CPU time is read by swapping the clock, so that stages which do not read it pay nothing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from operator import index as as_number
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stallscope.eventlog import CODE_SHIFT, INDEX_OFFSET, MOST_CODES, TAG_SHIFT, Header, Tag

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.eventlog import LogWriter

_NOTHING: Final = object()


@dataclass
class Pace:
    """What changes while samples go by."""

    samples: int = 0
    """Samples so far."""
    cpu_every: int = 8
    """CPU time is read for one sample in this many."""


class Clocks(NamedTuple):
    """Where the time comes from."""

    wall: Callable[[], int]
    """ns, monotonic, the same in every process of the machine."""
    cpu: Callable[[], int]
    """CPU time of this thread, ns."""


class HotPath(NamedTuple):
    """The functions that record; they belong to the thread that made them."""

    method: Callable[..., Callable[..., Any]]
    """`(original, first, key, key_of)`: a method that records."""
    call: Callable[..., Callable[..., Any]]
    """`(original, key, seen)`: a function that records."""
    sample: Callable[..., Any]
    """`(get, index)`: makes one sample and records it."""
    in_sample: Callable[[], bool]
    """Whether a sample is at work."""
    read_cpu: Callable[..., None]
    """`(on=)`: whether the hooks read CPU time, too."""
    enter_batch: Callable[[int], int]
    """`(number)`: a batch begins; returns the place of its first word."""
    clock_with_cpu: Callable[[], int]
    """The clock; writes the CPU time into the log first."""
    failed: Callable[[Any, int], None]
    """`(index, key)`: a sample of a batch that is not recorded has failed in this stage."""
    retire: Callable[[], None]
    """From now on every hook only calls its original."""


def word(tag: Tag, payload: int = 0) -> int:
    """A word that is not an enter or an exit."""
    return tag << TAG_SHIFT | payload


def hot_path(  # noqa: C901, PLR0915 - the hooks must share one set of variables
    log: LogWriter,
    clocks: Clocks,
    pace: Pace,
    key_of_code: dict[object, int],
    keys: tuple[int, int],
) -> HotPath:
    """Make the functions that record into a log.

    Args:
        log: of the thread that calls.
        clocks: where the time comes from.
        pace: counts the samples; may be changed from outside.
        key_of_code: gets the key of each hooked function, by its code object.
        keys: of the stages `getitem` and `batch`.
    """
    words, place, header = log.words, log.place, log.header
    born, home = header[Header.BORN_NS], get_ident()
    clock, cpu_clock = clocks
    now = clock
    getitem_key, batch_key = keys
    sample_end = word(Tag.SAMPLE_END)
    in_sample = False

    def clock_with_cpu() -> int:
        words[place()] = word(Tag.CPU, cpu_clock())
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
        key_of_code[getattr(original, "__code__", None)] = key

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
        key_of_code[getattr(original, "__code__", None)] = key

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
        pace.samples += 1
        if pace.samples % pace.cpu_every == 0:
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
            if now is not clock:
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

    return HotPath(
        method, call, sample, inside, read_cpu, enter_batch, clock_with_cpu, failed, retire
    )


def _sample_word(index: Any) -> int:
    """The word that begins a sample; an index that is not a whole number is not kept."""
    try:
        number = as_number(index)
    except Exception:  # noqa: BLE001 - whatever a user's sampler gives, the sample goes on
        return word(Tag.UNINDEXED)
    known = abs(number) < INDEX_OFFSET
    return word(Tag.SAMPLE, number + INDEX_OFFSET) if known else word(Tag.UNINDEXED)
