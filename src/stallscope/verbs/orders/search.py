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
from dataclasses import replace
from functools import cache
from math import factorial
from typing import TYPE_CHECKING, NamedTuple

from stallscope.loops.cached_values import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from stallscope.verbs.orders.equivalence import State
    from stallscope.verbs.orders.run_ops import OpInput, Outcome

    OrdersByDigest = dict[str, list[tuple[float, tuple[int, ...]]]]


class SearchNode(NamedTuple):
    """Set of applied ops, and the state of the samples after them."""

    applied: frozenset[int]
    state: State

    def after(self, position: int, state: State) -> SearchNode:
        """Return the node that an op leads to."""
        return SearchNode(self.applied | {position}, state)


class OrderGraph:
    """Graph of ops that may exchange places: those that were tried in each node.

    Args:
        positions: of the ops, in the original order.
        samples: before any op.
        state: of these samples.
        attempt: tries an op, by its position, after others, on samples.
        again: runs an op again that was tried on these samples.

    Attributes:
        start: the node before any op.
        edges: the ops that were tried in each node, without their results.
        reached_by: the first order that reached each node.
        unexplored: number of untried ops in nodes that were reached.
    """

    def __init__(
        self,
        positions: tuple[int, ...],
        samples: Sequence[OpInput],
        state: State,
        attempt: Callable[[int, Sequence[int], Sequence[OpInput]], Outcome],
        again: Callable[[int, Sequence[OpInput]], tuple[OpInput, ...]],
    ) -> None:
        self.positions = positions
        self.start = SearchNode(frozenset(), state)
        self.edges: dict[SearchNode, dict[int, Outcome]] = {}
        self.reached_by: dict[SearchNode, tuple[int, ...]] = {self.start: ()}
        self.unexplored = 0
        self._samples, self._attempt, self._again = samples, attempt, again
        self._visited: set[SearchNode] = set()

    @property
    def measurements(self) -> int:
        """Number of ops that were tried in a node."""
        return sum(map(len, self.edges.values()))

    @property
    def exhaustive(self) -> int:
        """Number of ops to try if each order were tried alone."""
        return len(self.positions) * factorial(len(self.positions))

    def search(self, first: Sequence[tuple[int, ...]], is_over: Callable[[], bool]) -> None:
        """Try the ops in all orders that differ, until the time is used up.

        The orders `first` are tried in any case.
        """
        for order in first:
            self.walk(order)
        self._visit(self.start, self._samples, is_over)

    def walk(self, order: Sequence[int]) -> None:
        """Try the ops in this order, which may have others, up to the first that raises."""
        node, samples = self.start, self._samples
        for position in self._own(order):
            tried = self._step(node, position, samples)
            if tried.state is None:
                return
            node, samples = node.after(position, tried.state), tried.results

    def _own(self, order: Sequence[int]) -> list[int]:
        return [position for position in order if position in self.positions]

    def _visit(
        self, node: SearchNode, samples: Sequence[OpInput], is_over: Callable[[], bool]
    ) -> None:
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
                self._visit(after, tried.results, is_over)

    def _step(self, node: SearchNode, position: int, samples: Sequence[OpInput]) -> Outcome:
        """Try an op in a node, or run it again there."""
        edges, applied = self.edges.setdefault(node, {}), self.reached_by[node]
        if position not in edges:
            tried = self._attempt(position, applied, samples)
            edges[position] = replace(tried, results=())
        else:
            tried = edges[position]
            if tried.state is not None:
                tried = replace(tried, results=self._again(position, samples))
        if tried.state is not None:
            self.reached_by.setdefault(node.after(position, tried.state), (*applied, position))
        return tried

    def _left_in(self, node: SearchNode) -> list[int]:
        """Return the ops that are left: the next in the original order, then the cheapest first.

        So an op that shrinks the samples is tried early, which makes later ops cheap.
        """
        left = [position for position in self.positions if position not in node.applied]
        cost = {p: t.seconds for edges in self.edges.values() for p, t in edges.items()}
        return sorted(left, key=lambda position: (position != left[0], cost.get(position, 0.0)))

    def follow(self, order: Sequence[int]) -> Iterator[tuple[int, Outcome | None]]:
        """Yield the graph's ops in an order and their results; None: not tried."""
        node: SearchNode | None = self.start
        for position in self._own(order):
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
                if tried.state is None:
                    continue
                for digest, rest in to_go(node.after(position, tried.state)).items():
                    orders.setdefault(digest, []).extend(
                        (tried.seconds + seconds, (position, *order)) for seconds, order in rest
                    )
            return {digest: heapq.nsmallest(most, all_) for digest, all_ in orders.items()}

        return to_go(self.start)

    def failures(self) -> list[tuple[int, ...]]:
        """Return beginnings of orders that fail, the shortest for each reason."""
        shortest: dict[tuple[int, str], tuple[int, ...]] = {}
        for node, edges in sorted(self.edges.items(), key=lambda item: len(item[0].applied)):
            for position, tried in edges.items():
                if tried.state is None:
                    order = (*self.reached_by[node], position)
                    shortest.setdefault((position, tried.why_not), order)
        return sorted(shortest.values())


def usual_orders(
    group: Sequence[int],
    inputs_of: Mapping[int, Sequence[OpInput]],
    outcomes: Mapping[int, Outcome],
) -> list[tuple[int, ...]]:
    """Return orders with first what shrinks samples, and then last what grows them."""
    growth = {
        position: bytes_of([result.value for result in outcomes[position].results])
        - bytes_of([op_input.value for op_input in inputs_of[position]])
        for position in group
    }
    small_first = sorted(group, key=lambda op: growth[op] >= 0)
    large_last = sorted(small_first, key=lambda op: growth[op] > 0)
    return [tuple(small_first), tuple(large_last)]
