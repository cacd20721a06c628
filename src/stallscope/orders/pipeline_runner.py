"""A pipeline run in this process: its ops in any state, and what any recipe of it gives.

Everything is done on the captured samples, with one torch thread, and each op on its own stream of
random numbers. The caller puts the global generators back (see `evaluator.guarded`).
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final

import torch

from stallscope.loops.cached_values import fresh
from stallscope.orders import run_ops
from stallscope.orders.digests import described
from stallscope.orders.loader_parts import BatchOps
from stallscope.orders.random_streams import Stream
from stallscope.orders.run_ops import OpInput, Outcome, measure_op
from stallscope.orders.search import SearchNode, State, TriedOp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stallscope.orders.capture import CapturedPipeline
    from stallscope.orders.recipe import Recipe
    from stallscope.orders.search import SearchResult

LONGEST: Final = 160
"""Characters of an error's text."""


class NotComparableError(Exception):
    """An op that keeps a state gets something else than in the pipeline as it is."""


class PipelineRunner:
    """The ops of one pipeline, on the samples that were captured.

    Args:
        captured: the pipeline and the samples.
        batch_size: the loader's.

    Attributes:
        searched: on how many samples orders are searched; what is found is compared on all.
        outcomes: of each op in the pipeline as it is.
        original: what the pipeline gives as it is.
        digest: of that.
    """

    def __init__(self, captured: CapturedPipeline, batch_size: int) -> None:
        self.batch_size = batch_size
        self.site = captured.site
        self.ops = captured.site.chain.ops
        self.as_it_is = tuple(range(len(self.ops)))
        self.samples = captured.samples
        self.inputs = [sample.given for sample in captured.samples]
        self.searched = len(self.inputs)
        self.outcomes: dict[int, Outcome] = {}
        self.original: list[OpInput] = []
        self.digest = ""
        self._idle: list[str] = []
        self._streams: dict[tuple[int, int], Stream] = {}
        self._replaced: list[Any] = []  # an id is only good while its object lives
        for op in self.ops:
            self.stream(op.position)

    def run_original(self, is_over: Callable[[], bool]) -> None:
        """Run the ops of the pipeline as it is; has to come first.

        Args:
            is_over: whether there is no time for more.
        """
        inputs: Sequence[OpInput] = self.inputs
        for op in self.ops:
            stream = self.stream(op.position)
            outcome = measure_op(op, stream, inputs)
            if outcome.is_random and not outcome.unsteady:
                results = outcome.results
                acting = run_ops.find_telling_draws(op, stream, inputs, results, is_over)
                if stream.telling:
                    outcome = measure_op(op, stream, inputs)
                if not acting:
                    self._idle.append(op.name)
            self.outcomes[op.position] = outcome
            inputs = outcome.results
        self.original, self.digest = list(inputs), run_ops.digest_of(inputs)

    def stream(self, position: int, op: Any = None) -> Stream:
        """The stream of an op, or of another object in its place: the same draws."""
        key = (position, id(op))
        if key not in self._streams:
            self._replaced.append(op)
            stream = Stream(self.ops[position].call if op is None else op, position)
            if op is not None:
                stream.telling = self.stream(position).telling
            self._streams[key] = stream
        return self._streams[key]

    def streams(self) -> list[Stream]:
        """All of them."""
        return list(self._streams.values())

    def inputs_of(self, position: int) -> Sequence[OpInput]:
        """What an op gets in the pipeline as it is."""
        return self.outcomes[position - 1].results if position else self.inputs

    @property
    def idle_text(self) -> str:
        """The random ops that did nothing in any draw, in words; "" where there is none."""
        names = ", ".join(self._idle)
        return f"{names} changed no sample in any draw that was looked at" if names else ""

    @property
    def is_random(self) -> bool:
        """Whether any op draws random numbers."""
        return any(outcome.is_random for outcome in self.outcomes.values())

    @property
    def unsteady(self) -> list[str]:
        """Why ops cannot be compared on other inputs."""
        return [outcome.unsteady for outcome in self.outcomes.values() if outcome.unsteady]

    def seconds_of(self, positions: Sequence[int]) -> float:
        """What ops cost in the pipeline as it is, per sample."""
        return sum(self.outcomes[position].seconds for position in positions)

    @property
    def base_s(self) -> float:
        """What all ops cost in the pipeline as it is, per sample."""
        return self.seconds_of(self.as_it_is)

    # ---- one op in a state of the search ------------------------------------------------------

    def start(self) -> tuple[State, list[OpInput]]:
        """The samples on which orders are searched, before any op."""
        inputs = self.inputs[: self.searched]
        return State(run_ops.digest_of(inputs), run_ops.layout_of(inputs)), inputs

    def attempt(self, position: int, applied: Sequence[int], value: Any, state: State) -> TriedOp:
        """Run an op on what others have made of the samples; see `search.Attempt`."""
        op, outcome = self.ops[position], self.outcomes[position]
        if tuple(applied) == self.as_it_is[:position]:
            return _tried(outcome.first(self.searched))
        before = self.inputs_of(position)[: self.searched]
        if outcome.unsteady and state.digest != run_ops.digest_of(before):
            return TriedOp(None, None, why_not=f"not comparable: {outcome.unsteady}")
        try:
            return _tried(measure_op(op, self.stream(position), value))
        except Exception as error:  # noqa: BLE001 - an op may raise anything on what it is not for
            text = " ".join(str(error).split()) or "no text"
            got = described(value[0].value) if value else "nothing"
            kind = type(error).__name__
            why = f"{op.name} raises {kind} on {got}: {text[:LONGEST]}"
            return TriedOp(None, None, why_not=why)

    def scaled_s(self, position: int, seconds: float) -> float:
        """Scale an op's time on the samples of the search to all of them.

        Other samples may be larger: the ratio is that of the op in the pipeline as it is.
        """
        outcome = self.outcomes[position]
        searched_s = outcome.first(self.searched).seconds
        return seconds * outcome.seconds / searched_s if searched_s else seconds

    def explore(self, positions: Sequence[int], found: SearchResult) -> None:
        """Run the ops of an order in the states in which the search has not run them."""
        if all(tried is not None for _, tried in found.after(positions)):
            return
        node = found.start
        values = self.inputs[: self.searched]
        applied: tuple[int, ...] = ()
        for position in positions:
            tried = found.edges.get(node, {}).get(position)
            if tried is None:
                new = self.attempt(position, applied, values, node.state)
                tried = new._replace(value=None)
                found.edges.setdefault(node, {})[position] = tried
                values = new.value
            elif tried.state is not None:
                values = run_ops.run_op(self.ops[position], self.stream(position), values)
            if tried.state is None:
                return
            applied = (*applied, position)
            node = SearchNode(node.applied | {position}, tried.state)
            found.reached_by.setdefault(node, applied)

    # ---- whole pipelines --------------------------------------------------------------------

    def outputs(self, recipe: Recipe, turn: int = 0) -> list[OpInput]:
        """What a pipeline gives for the samples.

        Args:
            recipe: the pipeline.
            turn: 0 for the draws on which pipelines are compared.

        Raises:
            NotComparableError: an op with a state of its own gets something else than as it is.
            Exception: whatever an op raises.
        """
        values = self._decoded_by(recipe)
        for position in recipe.per_sample:
            unsteady = self.outcomes[position].unsteady if self.outcomes else ""
            if unsteady and not turn:
                usual = run_ops.digest_of(self.inputs_of(position))
                if run_ops.digest_of(values) != usual:
                    raise NotComparableError(f"not comparable: {unsteady}")
            stream = self.stream(position, recipe.replaced.get(position))
            values = run_ops.run_op(self.ops[position], stream, values, turn)
        return self._on_batch(recipe, values) if recipe.on_batch else list(values)

    def _decoded_by(self, recipe: Recipe) -> list[OpInput]:
        """What the first op is called with."""
        if recipe.opener is not None:
            images = [recipe.opener(one.lazy.open()) for one in self.samples if one.lazy]
        elif recipe.reader is not None:
            images = [recipe.reader(one.path) for one in self.samples]
        else:
            return self.inputs
        return [OpInput((image,), {}) for image in images]

    def _on_batch(self, recipe: Recipe, inputs: Sequence[OpInput]) -> list[OpInput]:
        """What ops make of a batch, in the size in which the loader makes them.

        A product of matrices may round other than in another size. An epoch may end with a smaller
        batch, so the first sample is taken from a batch of its own.
        """
        values = [given.value for given in inputs]
        column = torch.stack(list(islice(cycle(values), max(self.batch_size, len(values)))))
        work = BatchOps(None, recipe.works(self.site.chain), ()).work
        alone = work(fresh(column[:1]))
        results = [alone[0], *work(column)[1 : len(values)]]
        return [OpInput((result,), {}) for result in results]


def _tried(outcome: Outcome) -> TriedOp:
    state = State(outcome.digest, outcome.layout)
    return TriedOp(outcome.seconds, state, list(outcome.results))
