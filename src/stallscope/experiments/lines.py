"""`ss.lines`: how long each line of the dataset, its transforms and its collate function takes.

Some samples are made in this process by torch's own fetcher, three times: once to see which
functions take the time, and then in turn with their lines timed and without, which tells what the
timing costs.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

from stallscope.errors import ArgumentError, StallscopeError
from stallscope.experiments.choice import as_list
from stallscope.experiments.reading import Reading
from stallscope.measure import target as targets
from stallscope.measure.attributes import bindings_kept
from stallscope.measure.cache.loaders import check_plain
from stallscope.measure.callables import Parts
from stallscope.measure.distributed import alone
from stallscope.measure.inner import loaders_of, private
from stallscope.measure.onethread import one_thread
from stallscope.measure.snapshot import as_before

if TYPE_CHECKING:
    from stallscope.listings import Lines


def lines(target: Any, *, functions: Any = None, samples: int = 32) -> Lines:
    """Time the lines of the code that makes a loader's samples, with line_profiler.

    Makes the samples in this process with one torch thread, in smaller batches than the loader's.
    Afterwards all random generators and the samplers are as they were, the attributes of the
    dataset and its transforms hold what they held, and nothing of line_profiler is left on any
    function; a debugger or another profiler that was on is on again. An exception of the dataset's
    passes unchanged; its attribute `lines` holds what was measured before.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        functions: names ("RandomMask", "RandomMask.dilate", "collate") or functions, one or
            several; by default the user's own that cost most: `__getitem__` (or `__iter__`), the
            transforms, what these call, and the collate function.
        samples: how many to make with their lines timed. As many are made without, and some more
            before.

    Raises:
        ArgumentError: `samples` is no number that can be used, or `functions` names nothing.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: there is not one DataLoader in it that torch's own code iterates, or this
            process is one of several ranks.
    """
    if not isinstance(samples, Integral) or isinstance(samples, bool) or samples < 1:
        raise ArgumentError(f"samples={samples!r}: give a whole number, 1 or more")
    wanted = as_list(functions)
    alone()
    aim = targets.target(target)
    check_plain(aim.loader, "its samples cannot be made one by one in this process")
    with private(aim.loader) as mine, as_before(aim.loader), one_thread():
        loader = loaders_of(mine)[0]
        parts = Parts(loader)
        with bindings_kept(parts.holders()):
            reading = Reading(aim, loader, parts, int(samples))
            try:
                reading.look(wanted)
                reading.measure()
            except StallscopeError:
                raise
            except BaseException as error:
                reading.leave_with(error)
                raise
            return reading.result()
