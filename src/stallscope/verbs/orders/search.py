"""Search for orders: sets of ops that can be applied, their data, and their cost.

A node is (the set of ops applied, the state of the samples). Orders that reach the same node merge,
because the cost and data of the following ops are the same; orders with other data stay separate.
An op is tried once per node: n times 2^(n-1) times if all ops commute, instead of n times n!. The
search is depth-first, so that only the samples along one order are in memory, and starts with the
original order.

(Bellman, "Dynamic Programming Treatment of the Travelling Salesman Problem", 1962, and Held and
Karp, 1962, use sets instead of orders; the state of the data is our addition.)
"""

from __future__ import annotations

import heapq
from contextlib import suppress
from functools import cache
from itertools import groupby
from math import factorial
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stallscope.loops.cached_values import bytes_of
from stallscope.units import said_by
from stallscope.verbs.orders.equivalence import State, compare_outputs, described
from stallscope.verbs.orders.run_ops import (
    OpInput,
    Outcome,
    Stream,
    digest_of,
    own_value,
    state_of,
)
from stallscope.verbs.orders.variant import DIFFERENT, IDENTICAL, Grade, Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stallscope.verbs.orders.pipeline import Op

    OrdersByDigest = dict[str, list[tuple[float, tuple[int, ...]]]]

_SEARCHED: Final = 5
"""Most samples on which orders are searched; the orders are then compared on all samples, and timed
on others."""
LONGEST: Final = 160
"""Characters of an error's text."""


class TriedOp(NamedTuple):
    """Result of an op in a node."""

    seconds: float | None
    """Seconds per sample; None: it raised."""
    state: State | None
    """State of its results; None: it raised."""
    value: Any = None
    """The samples; only the search holds them."""
    why_not: str = ""
    """Reason why the op cannot be applied here."""


class SearchNode(NamedTuple):
    """Set of applied ops, and the state of the samples after them."""

    applied: frozenset[int]
    state: State

    def after(self, position: int, state: State) -> SearchNode:
        """Return the node that an op leads to."""
        return SearchNode(self.applied | {position}, state)


class OrderGraph:
    """Graph of ops that may exchange places: those that were tried in each node.

    Attributes:
        start: the node before any op.
        edges: the ops that were tried in each node, without the samples.
        reached_by: the first order that reached each node.
        unexplored: number of untried ops in nodes that were reached.
    """

    def __init__(self, positions: Sequence[int], state: State, row: OpRow) -> None:
        self.positions = tuple(positions)
        self.start = SearchNode(frozenset(), state)
        self.edges: dict[SearchNode, dict[int, TriedOp]] = {}
        self.reached_by: dict[SearchNode, tuple[int, ...]] = {self.start: ()}
        self.unexplored = 0
        self._row = row
        self._visited: set[SearchNode] = set()

    @property
    def measurements(self) -> int:
        """Number of ops that were tried in a node."""
        return sum(map(len, self.edges.values()))

    @property
    def exhaustive(self) -> int:
        """Number of ops to try if each order were tried alone."""
        return len(self.positions) * factorial(len(self.positions))

    def search(
        self, first: Sequence[tuple[int, ...]], samples: Any, is_over: Callable[[], bool]
    ) -> None:
        """Try the ops in all orders that differ, until the time is used up.

        The orders `first` are tried in any case.
        """
        for order in first:
            self.walk(order, samples)
        self._visit(self.start, samples, is_over)

    def walk(self, order: Sequence[int], samples: Any) -> None:
        """Try the ops in this order, up to the first that raises."""
        node = self.start
        for position in order:
            tried = self._step(node, position, samples)
            if tried.state is None:
                return
            node, samples = node.after(position, tried.state), tried.value

    def _visit(self, node: SearchNode, samples: Any, is_over: Callable[[], bool]) -> None:
        """Try every op that is not yet applied, then visit the nodes it leads to."""
        self._visited.add(node)
        for position in self._left_in(node):
            if position not in self.edges.get(node, {}) and is_over():
                self.unexplored += 1
                continue
            tried = self._step(node, position, samples)
            if tried.state is None:
                continue
            after = node.after(position, tried.state)
            if after not in self._visited and len(after.applied) < len(self.positions):
                self._visit(after, tried.value, is_over)

    def _step(self, node: SearchNode, position: int, samples: Any) -> TriedOp:
        """Try an op in a node, or run it again there."""
        edges, applied = self.edges.setdefault(node, {}), self.reached_by[node]
        if position not in edges:
            tried = self._row.attempt(position, applied, samples)
            edges[position] = tried._replace(value=None)
        else:
            tried = edges[position]
            if tried.state is not None:
                tried = tried._replace(value=self._row.again(position, samples))
        if tried.state is not None:
            self.reached_by.setdefault(node.after(position, tried.state), (*applied, position))
        return tried

    def _left_in(self, node: SearchNode) -> list[int]:
        """Return the ops that are left: the next in the original order, then the cheapest first.

        So an op that shrinks the samples is tried early, which makes later ops cheap.
        """
        left = [position for position in self.positions if position not in node.applied]
        cost = {p: t.seconds or 0.0 for edges in self.edges.values() for p, t in edges.items()}
        return sorted(left, key=lambda position: (position != left[0], cost.get(position, 0.0)))

    def follow(self, order: Sequence[int]) -> Iterator[tuple[int, TriedOp | None]]:
        """Yield each op of an order and its result; None: not tried."""
        node: SearchNode | None = self.start
        for position in order:
            tried = self.edges.get(node, {}).get(position) if node else None
            yield position, tried
            state = tried.state if tried else None
            node = node.after(position, state) if node and state else None

    def cheapest(self, most: int) -> OrdersByDigest:
        """Return, by digest of the final data, the cheapest orders with their seconds."""

        @cache
        def to_go(node: SearchNode) -> OrdersByDigest:
            if len(node.applied) == len(self.positions):
                return {node.state.digest: [(0.0, ())]}
            orders: OrdersByDigest = {}
            for position, tried in self.edges.get(node, {}).items():
                if tried.state is None or tried.seconds is None:
                    continue
                for digest, rest in to_go(node.after(position, tried.state)).items():
                    orders.setdefault(digest, []).extend(
                        (tried.seconds + seconds, (position, *order)) for seconds, order in rest
                    )
            return {digest: heapq.nsmallest(most, all_) for digest, all_ in orders.items()}

        return to_go(self.start)

    def failures(self) -> list[tuple[tuple[int, ...], str]]:
        """Return beginnings of orders that fail, the shortest for each reason, and the reason."""
        failed = [
            ((*self.reached_by[node], position), tried.why_not)
            for node, edges in self.edges.items()
            for position, tried in edges.items()
            if tried.state is None
        ]
        failed.sort(key=lambda failure: len(failure[0]))
        shortest: dict[tuple[int, str], tuple[int, ...]] = {}
        for order, why in failed:
            shortest.setdefault((order[-1], why), order)
        return sorted((order, why) for (_, why), order in shortest.items())


class NotComparableError(Exception):
    """An op that keeps a state gets another input than in the original pipeline."""


class OpRow:
    """Ops, each called on the result of the one before, and the input samples.

    Attributes:
        groups: positions of the ops that may exchange places.
        outcomes: of each op in the original pipeline, by position.
        inputs_of: inputs of each op in the original pipeline, by position.
        original: outputs of the original pipeline.
        graphs: the ops of each group that were tried; `OrderEvaluator.predict` extends them.
        grades: grade by digest of a group's output, on the searched samples.
        searched: number of samples on which orders are searched.
        idle: names of random ops that changed no sample in any draw.
    """

    def __init__(self, ops: Sequence[Op], inputs: Sequence[OpInput]) -> None:
        self.ops, self.inputs = tuple(ops), list(inputs)
        groups = groupby(self.ops, lambda op: op.group)
        self.groups = [tuple(op.position for op in group) for _, group in groups]
        self.as_it_is = tuple(range(len(self.ops)))
        self.outcomes: dict[int, Outcome] = {}
        self.inputs_of: dict[int, list[OpInput]] = {}
        self.original: list[OpInput] = []
        self.graphs: list[OrderGraph] = []
        self.grades: dict[str, str] = {}
        self.searched = min(_SEARCHED, len(self.inputs))
        self.idle: list[str] = []
        # the object keeps its `id`, which is part of the key
        self.streams: dict[tuple[int, int], tuple[Stream, Any]] = {}
        self._again: list[OpInput] = []
        for position in self.as_it_is:
            self.stream(position)

    def stream(self, position: int, op: Any = None) -> Stream:
        """Return the stream of an op, or of an object that replaces it, with the same draws."""
        key = (position, id(op))
        if key not in self.streams:
            stream = Stream(self.ops[position], op)
            if op is not None:
                stream.telling = self.stream(position).telling
            self.streams[key] = stream, op
        return self.streams[key][0]

    def run_original(self, is_over: Callable[[], bool]) -> None:
        """Run the original ops, before any other method."""
        inputs = self.inputs
        for position, op in enumerate(self.ops):
            stream = self.stream(position)
            outcome = stream.measure(inputs)
            if outcome.is_random and not outcome.unsteady:
                acting = stream.find_telling_draws(inputs, outcome.results, is_over)
                if stream.telling:
                    outcome = stream.measure(inputs)
                if not acting:
                    self.idle.append(op.name)
            self.outcomes[position], self.inputs_of[position] = outcome, inputs
            inputs = list(outcome.results)
        for group in self.groups:
            start = self._start_of(group)
            graph = OrderGraph(group, state_of(start), self)
            graph.walk(group, start)  # uses the outcomes; calls no op
            self.graphs.append(graph)
        self.original = inputs

    # ---- orders, op by op ---------------------------------------------------------------------

    def _start_of(self, group: tuple[int, ...]) -> list[OpInput]:
        """Return the searched samples before the ops of a group."""
        return self.inputs_of[group[0]][: self.searched]

    def search(self, is_over: Callable[[], bool]) -> None:
        """Try the ops of each group in all orders that differ, until the time is used up."""
        for graph in self.graphs:
            group = graph.positions
            graph.search(self._usual_orders(group), self._start_of(group), is_over)

    def walk(self, order: Sequence[int]) -> None:
        """Try the ops in this order."""
        for graph in self.graphs:
            mine = [position for position in order if position in graph.positions]
            graph.walk(mine, self._start_of(graph.positions))

    def _usual_orders(self, group: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return orders with first what shrinks samples, and then last what grows them."""
        growth = {
            position: bytes_of([result.value for result in self.outcomes[position].results])
            - bytes_of([op_input.value for op_input in self.inputs_of[position]])
            for position in group
        }
        small_first = sorted(group, key=lambda op: growth[op] >= 0)
        large_last = sorted(small_first, key=lambda op: growth[op] > 0)
        return [tuple(small_first), tuple(large_last)]

    def attempt(self, position: int, applied: Sequence[int], value: Any) -> TriedOp:
        """Try an op on samples; `applied` are the ops of its group before it."""
        op, outcome = self.ops[position], self.outcomes[position]
        group = next(group for group in self.groups if position in group)
        if tuple(applied) == group[: group.index(position)]:
            return _tried(outcome.first(self.searched))
        before = self.inputs_of[position][: self.searched]
        if outcome.unsteady and digest_of(value) != digest_of(before):
            return TriedOp(None, None, why_not=f"not comparable: {outcome.unsteady}")
        try:
            tried = _tried(self.stream(position).measure(value))
        except Exception as error:  # noqa: BLE001 - an op may raise anything on unusual input
            text = said_by(error) or "no text"
            sample = described(own_value(op, value[0])) if value else "nothing"
            why = f"{op.name} raises {type(error).__name__} on {sample}: {text[:LONGEST]}"
            return TriedOp(None, None, why_not=why)
        if len(applied) == len(group) - 1:
            self._grade(tried, self.outcomes[group[-1]].results[: self.searched])
        return tried

    def again(self, position: int, value: Any) -> Any:
        """Run an op again that was tried on these samples."""
        return self.stream(position).outputs(value)

    def _grade(self, tried: TriedOp, original: Sequence[OpInput]) -> None:
        """Compare the output of a group's order with the original's."""
        if tried.state is not None and tried.state.digest not in self.grades:
            with suppress(Exception):  # values of the user's own kind; they count as different
                self.grades[tried.state.digest] = _compared(original, tried.value).equivalence

    def op_seconds(self, order: Sequence[int]) -> Iterator[tuple[int, TriedOp | None, float]]:
        """Yield each op of an order, its result, and its cost on all samples.

        The other samples may be larger than the searched ones, so an op's time is scaled by the
        ratio of both in the original pipeline.
        """
        for graph in self.graphs:
            mine = [position for position in order if position in graph.positions]
            for position, tried in graph.follow(mine):
                times_s = self.outcomes[position].times_s
                searched_s = fmean(times_s[: self.searched])
                took_s = (tried and tried.seconds) or 0.0
                yield (
                    position,
                    tried,
                    took_s * fmean(times_s) / searched_s if searched_s else took_s,
                )

    # ---- whole rows of ops: their data ----------------------------------------------------------

    def outputs(self, variant: Variant, inputs: Sequence[OpInput], turn: int = 0) -> list[OpInput]:
        """Run a variant's ops on samples, in turn 0 on the draws on which pipelines are compared.

        Raises:
            NotComparableError: an op that keeps a state gets another input than the original's.
        """
        values = list(inputs)
        for position in variant.per_sample:
            unsteady = self.outcomes[position].unsteady
            usual = self.inputs_of[position][: len(values)]
            if unsteady and not turn and digest_of(values) != digest_of(usual):
                raise NotComparableError(f"not comparable: {unsteady}")
            stream = self.stream(position, variant.replaced.get(position))
            values = stream.outputs(values, turn)
        return values

    def graded(self, new: list[OpInput], outputs: Callable[[int], list[OpInput]]) -> Grade:
        """Grade the outputs of a pipeline; `outputs` returns those of another turn."""
        n, original = len(new), self.original[: len(new)]
        unsteady = "; ".join(filter(None, (each.unsteady for each in self.outcomes.values())))
        if digest_of(new) == digest_of(original):
            if unsteady or not any(outcome.is_random for outcome in self.outcomes.values()):
                return Grade(IDENTICAL, compared=n)
            self._again = self._again or self.outputs(Variant(self.as_it_is), self.inputs, 1)
            original, new = self._again[:n], outputs(1)
            if digest_of(original) == digest_of(new):
                return Grade(IDENTICAL, compared=2 * n, why=self.idle_text)
        elif unsteady:
            return Grade(DIFFERENT, compared=n, why=f"not comparable: {unsteady}")
        return _compared(original, new)._replace(compared=n)

    @property
    def idle_text(self) -> str:
        """Sentence on random ops that changed no sample in any draw; "": there are none."""
        names = ", ".join(self.idle)
        return f"{names} changed no sample in any draw that was tried" if names else ""


def _tried(outcome: Outcome) -> TriedOp:
    return TriedOp(outcome.seconds, outcome.state, list(outcome.results))


def _compared(original: Sequence[OpInput], new: Sequence[OpInput]) -> Grade:
    return compare_outputs(*([op_input.value for op_input in row] for row in (original, new)))
