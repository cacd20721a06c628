"""A pipeline at work in this process: its ops tried in any state, and what it gives.

Everything here is done on the samples that were drawn once, with one torch thread, and each op on
its own stream of random numbers. The caller puts the global generators back.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final

import torch

from stallscope.analyze.orders.search import Node, State, Tried
from stallscope.experiments.ordering.recipe import BatchOps
from stallscope.measure.cache.values import fresh
from stallscope.measure.pipelines import trying
from stallscope.measure.pipelines.calls import Given
from stallscope.measure.pipelines.digests import described
from stallscope.measure.pipelines.draws import Stream
from stallscope.measure.pipelines.inputs import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stallscope.analyze.orders.search import Found
    from stallscope.experiments.ordering.recipe import Recipe
    from stallscope.experiments.ordering.survey import Survey
    from stallscope.measure.pipelines.trying import Outcome

_LONGEST: Final = 160
"""Characters of an error's text."""


class NotComparableError(Exception):
    """An op that keeps a state gets something else than in the pipeline as it is."""


class Workbench:
    """The ops of one pipeline, on the samples that were drawn.

    Args:
        survey: the pipeline and the samples.
        batch_size: the loader's.
    """

    def __init__(self, survey: Survey, batch_size: int) -> None:
        self.batch_size = batch_size
        self.site = survey.site
        self.ops = survey.site.chain.ops
        self.drawn = survey.drawn
        self.givens = [one.given for one in survey.drawn]
        self.idle: list[str] = []
        """Random ops that did nothing in any draw that was looked at."""
        self.outcomes: dict[int, Outcome] = {}
        """Of each op in the pipeline as it is."""
        self._streams: dict[tuple[int, int], Stream] = {}
        self._replaced: list[Any] = []  # an id is only good while its object lives
        for op in self.ops:
            self.stream(op.position)
        self.original: list[Given] = []
        """What the pipeline gives as it is, and its digest."""
        self.digest = ""
        self.searched = len(self.givens)
        """On how many samples orders are searched; what is found is compared on all."""

    def start(self) -> tuple[State, list[Given]]:
        """The samples on which orders are searched, before any op."""
        givens = self.givens[: self.searched]
        return State(trying.digest_of(givens), trying.layout_of(givens)), givens

    def begin(self, is_over: Callable[[], bool]) -> None:
        """Try the ops of the pipeline as it is; has to come first.

        Args:
            is_over: whether there is no time for more.
        """
        givens = list(self.givens)
        for op in self.ops:
            stream = self.stream(op.position)
            outcome = trying.attempt(op, stream, givens)
            if outcome.is_random and not outcome.unsteady:
                acting = trying.tell(op, stream, givens, outcome.givens, is_over)
                if stream.telling:
                    outcome = trying.attempt(op, stream, givens)
                if not acting:
                    self.idle.append(op.name)
            self.outcomes[op.position] = outcome
            givens = list(outcome.givens)
        self.original, self.digest = givens, trying.digest_of(givens)

    def stream(self, position: int, op: Any = None) -> Stream:
        """The stream of an op, or of another object in its place: the same draws."""
        key = (position, id(op))
        if key not in self._streams:
            self._replaced.append(op)
            called = self.ops[position].call if op is None else op
            stream = Stream(called, position)
            if op is not None:
                stream.telling = self.stream(position).telling
            self._streams[key] = stream
        return self._streams[key]

    def streams(self) -> list[Stream]:
        """All of them."""
        return list(self._streams.values())

    @property
    def idle_told(self) -> str:
        """What is idle, in words; '' where nothing is."""
        names = ", ".join(self.idle)
        return f"{names} changed no sample in any draw that was looked at" if names else ""

    @property
    def is_random(self) -> bool:
        """Whether any op draws random numbers."""
        return any(outcome.is_random for outcome in self.outcomes.values())

    def attempt(self, position: int, applied: Sequence[int], value: Any, state: State) -> Tried:
        """Try an op; see `analyze.orders.search.Bench`."""
        op = self.ops[position]
        outcome = self.outcomes[position]
        if tuple(applied) == tuple(range(position)):
            return self._tried(trying.beginning(outcome, self.searched))
        unsteady = outcome.unsteady
        if unsteady and state.digest != self._before(position):
            return Tried(None, None, why_not=f"not comparable: {unsteady}")
        try:
            return self._tried(trying.attempt(op, self.stream(position), value))
        except Exception as error:  # noqa: BLE001 - an op may raise anything on what it is not for
            return Tried(None, None, why_not=self._why(op.name, error, value))

    def _before(self, position: int) -> str:
        """The digest of what an op gets in the pipeline as it is."""
        givens = self.outcomes[position - 1].givens if position else self.givens
        return trying.digest_of(givens[: self.searched])

    @staticmethod
    def _tried(outcome: Outcome) -> Tried:
        state = State(outcome.digest, outcome.layout)
        return Tried(outcome.seconds, state, list(outcome.givens))

    @staticmethod
    def _why(name: str, error: Exception, value: Sequence[Given]) -> str:
        text = " ".join(str(error).split()) or "no text"
        got = described(value[0].value) if value else "nothing"
        return f"{name} raises {type(error).__name__} on {got}: {text[:_LONGEST]}"

    # ---- whole pipelines --------------------------------------------------------------------

    def on_all_samples(self, position: int, seconds: float) -> float:
        """What an op costs, where its time was taken on the samples of the search alone.

        Other samples may be larger: the ratio is that of the op in the pipeline as it is.
        """
        outcome = self.outcomes[position]
        searched_s = trying.beginning(outcome, self.searched).seconds
        return seconds * outcome.seconds / searched_s if searched_s else seconds

    def explored(self, positions: Sequence[int], found: Found) -> None:
        """Try the ops of an order in the states that nobody has tried them in."""
        if all(tried is not None for _, tried in found.after(positions)):
            return
        node: Node = found.start
        values = self.givens[: self.searched]
        applied: tuple[int, ...] = ()
        for position in positions:
            tried = found.edges.get(node, {}).get(position)
            if tried is None:
                new = self.attempt(position, applied, values, node.state)
                tried = new._replace(value=None)
                found.edges.setdefault(node, {})[position] = tried
                values = new.value
            elif tried.state is not None:
                values = trying.run(self.ops[position], self.stream(position), values)
            if tried.state is None:
                return
            applied = (*applied, position)
            node = Node(node.applied | {position}, tried.state)
            found.reached_by.setdefault(node, applied)

    def outputs(self, recipe: Recipe, turn: int = 0) -> list[Given]:
        """What a pipeline gives for the samples.

        Args:
            recipe: the pipeline.
            turn: 0 for the draws on which pipelines are compared.

        Raises:
            Exception: whatever an op raises.
        """
        givens = self._beginning(recipe)
        for position in recipe.per_sample:
            self._check_steady(position, givens, turn)
            stream = self.stream(position, recipe.replaced.get(position))
            givens = trying.run(self.ops[position], stream, givens, turn)
        return self._on_batch(recipe, givens) if recipe.on_batch else list(givens)

    def _check_steady(self, position: int, givens: Sequence[Given], turn: int) -> None:
        """Make sure that an op with a state of its own gets what it gets as it is.

        Raises:
            NotComparableError: it gets something else.
        """
        unsteady = self.outcomes[position].unsteady if self.outcomes else ""
        if not unsteady or turn:
            return
        as_it_is = self.outcomes[position - 1].givens if position else self.givens
        if trying.digest_of(givens) != trying.digest_of(as_it_is):
            raise NotComparableError(f"not comparable: {unsteady}")

    def _on_batch(self, recipe: Recipe, givens: Sequence[Given]) -> list[Given]:
        """What ops make of a batch, in the size in which the loader makes them.

        A product of matrices may round other than in another size. An epoch may end with a smaller
        batch, so the first sample is taken from a batch of its own.
        """
        values = [given.value for given in givens]
        column = torch.stack(list(islice(cycle(values), max(self.batch_size, len(values)))))
        work = BatchOps(None, recipe.works(self.site.chain), ()).work
        alone = work(fresh(column[:1]))
        made = [alone[0], *work(column)[1 : len(values)]]
        return [Given((one,), {}) for one in made]

    def _beginning(self, recipe: Recipe) -> list[Given]:
        """What the first op is called with."""
        if recipe.opener is not None:
            made = [recipe.opener(opened(one.lazy)) for one in self.drawn if one.lazy]
        elif recipe.reader is not None:
            made = [recipe.reader(one.path) for one in self.drawn]
        else:
            return self.givens
        return [Given((one,), {}) for one in made]

    @property
    def unsteady(self) -> list[str]:
        """Why ops cannot be compared on other inputs."""
        return [one.unsteady for one in self.outcomes.values() if one.unsteady]
