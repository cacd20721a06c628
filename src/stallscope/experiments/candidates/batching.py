"""Ops on the whole batch, in the collate function, instead of on each sample.

Only the last ops of a pipeline can wait for the batch, and only those that draw no random numbers:
on a batch they would draw once for all samples. An op that cannot take a batch is vectorised by
torch (`torch.vmap`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import default_collate

from stallscope.experiments.candidates.protocol import Proposal
from stallscope.experiments.ordering.recipe import Recipe
from stallscope.measure.cache.values import fresh
from stallscope.orderings import IDENTICAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.experiments.candidates.protocol import Situation
    from stallscope.experiments.ordering.judge import Judge
    from stallscope.experiments.ordering.workbench import Workbench

_ROUNDS: Final = 5


def proposals(situation: Situation) -> Iterator[Proposal]:
    """Each number of ops at the end, from one to all that draw nothing."""
    bench = situation.bench
    why_not = _why_not(situation)
    if why_not:
        situation.notes.append(f"no op was tried on whole batches: {why_not}")
        return
    recipe = Recipe(tuple(range(len(bench.ops))))
    for position in reversed(recipe.positions):
        outcome = bench.outcomes[position]
        if outcome.is_random or outcome.unsteady or not _are_tensors(bench, position):
            return
        recipe = _one_more(situation.judge, recipe, position)
        names = ", ".join(bench.ops[p].name for p in recipe.on_batch)
        vectorised = ", ".join(bench.ops[p].name for p in sorted(recipe.by_vmap))
        yield Proposal(
            "batch",
            recipe,
            f"{names} on the whole batch, in the collate function",
            f"{vectorised} vectorised by torch.vmap" if vectorised else "",
            _saved_s(bench, recipe),
        )


def _why_not(situation: Situation) -> str:
    if situation.loader.collate_fn is not default_collate:
        return "the loader has a collate function of its own, which may need finished samples"
    if situation.loader.batch_sampler is None:
        return "the loader makes no batches of samples"
    if situation.bench.site.where is None:
        return "the dataset does more with what comes out of its pipeline"
    return ""


def _are_tensors(bench: Workbench, position: int) -> bool:
    """Whether all samples that an op gets are tensors of one shape, so that they can be stacked."""
    values = _before(bench, position)
    shapes = {tuple(value.shape) for value in values if isinstance(value, torch.Tensor)}
    return len(shapes) == 1 and all(isinstance(value, torch.Tensor) for value in values)


def _before(bench: Workbench, position: int) -> list[Any]:
    givens = bench.outcomes[position - 1].givens if position else bench.givens
    return [given.value for given in givens]


def _one_more(judge: Judge, recipe: Recipe, position: int) -> Recipe:
    """The recipe with one more op on the batch, vectorised where it is not identical without."""
    plain = replace(recipe, on_batch=(position, *recipe.on_batch))
    if judge.compare(plain).equivalence == IDENTICAL:
        return plain
    by_vmap = replace(plain, by_vmap=recipe.by_vmap | {position})
    return by_vmap if judge.compare(by_vmap).equivalence != "fails" else plain


def _saved_s(bench: Workbench, recipe: Recipe) -> float | None:
    """What the ops cost on each sample, less what they cost on the batch."""
    column = torch.stack(_before(bench, recipe.on_batch[0]))
    alone = sum(bench.outcomes[position].seconds for position in recipe.on_batch)
    best_s = float("inf")
    try:
        for _ in range(_ROUNDS):
            given = fresh(column)
            began_ns = time.perf_counter_ns()
            for position in recipe.on_batch:
                op = recipe.op(bench.site.chain, position)
                given = torch.vmap(op)(given) if position in recipe.by_vmap else op(given)
            best_s = min(best_s, (time.perf_counter_ns() - began_ns) / 1e9)
    except Exception:  # noqa: BLE001 - an op that takes no batch; the comparison says so
        return None
    return alone - best_s / len(column)
