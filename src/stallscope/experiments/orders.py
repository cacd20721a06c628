"""`ss.orders`: the fastest order of the transforms that gives the same data, and what else helps.

First, in this process, on samples that are drawn once: what each op costs, which orders give the
original's data, and what other changes would save. Then the most promising are measured for real,
in the loader's own workers, in turn with the loader as it is.
"""

from __future__ import annotations

import time
from numbers import Integral
from typing import TYPE_CHECKING, Any

from stallscope.errors import ArgumentError, StallscopeError
from stallscope.experiments.failure import note
from stallscope.experiments.ordering.quest import Quest
from stallscope.experiments.ordering.untouched import untouched
from stallscope.measure import target as targets
from stallscope.measure.cache.loaders import check_plain
from stallscope.measure.distributed import alone
from stallscope.measure.inner import loaders_of, private
from stallscope.measure.onethread import one_thread
from stallscope.measure.replay import check_budget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.orderings import Orders


def orders(
    target: Any,
    *,
    alternatives: Mapping[Any, Any] | None = None,
    samples: int = 16,
    budget_s: float = 60.0,
) -> Orders:
    """Look for a faster pipeline that gives the same data.

    Makes samples in this process, and batches with copies of the loader in its own workers.
    Afterwards all random generators and the samplers are as they were, and the attributes of the
    dataset and its transforms hold what they held. An exception of the dataset's passes unchanged.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        alternatives: rewrites of the pipeline's ops, by the op's name or position
            (`{"RandomMask": MyFasterMask()}`), one or several for each; compared on the same draws.
        samples: on how many samples pipelines are compared and ops timed; fewer where they are
            large.
        budget_s: it is over after this time, seconds, and the batch that is under way then.

    Raises:
        ArgumentError: a number that cannot be used, or a rewrite of an op that is not there.
        NoPipelineError: the dataset calls no transforms that could be put in another order.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: there is not one DataLoader in it that torch's own code iterates, its
            dataset is a stream, or this process is one of several ranks.
    """
    began_ns = time.perf_counter_ns()
    allowed_s = check_budget(budget_s)
    _check(samples, alternatives)
    alone()
    aim = targets.target(target)
    check_plain(aim.loader, "its pipeline cannot be run by itself")
    original = loaders_of(aim.loader)[0]
    with private(original) as loader, untouched(original), one_thread():
        quest = Quest(loader, aim, began_ns, allowed_s)
        try:
            quest.look(int(samples), alternatives)
            quest.race()
        except StallscopeError:
            raise
        except Exception as error:
            note(error, ["stallscope: raised while ss.orders made samples of this loader"])
            raise
        return quest.result(original)


def _check(samples: object, alternatives: object) -> None:
    if not isinstance(samples, Integral) or isinstance(samples, bool) or samples < 1:
        raise ArgumentError(f"samples={samples!r}: give a whole number, 1 or more")
    if alternatives is not None and not isinstance(alternatives, dict):
        raise ArgumentError(
            f"alternatives={alternatives!r:.80}: give a dictionary of an op's name and its rewrite"
        )
