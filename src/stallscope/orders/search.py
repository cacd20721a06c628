"""The search for orders: which sets of ops can be applied, to which data, at which cost.

A node is (the set of ops applied, the state of the samples). Orders that come to the same node
merge, because whatever follows costs the same and gives the same; orders that come to other data
stay apart. An op in a node is tried once: n times 2^(n-1) times where all ops commute, instead of
n times n!. The walk goes deep first, so that only the samples along one order are in memory, and
the order as it is comes first.

(Bellman, "Dynamic Programming Treatment of the Travelling Salesman Problem", 1962, and Held and
Karp, 1962, for sets instead of orders; the state of the data is what is added here.)
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import factorial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Attempt = Callable[[int, Sequence[int], Any, "State"], "TriedOp"]
    """Tries an op (its position) after others (theirs, in order) on samples in a state."""
    Ways = dict[str, list[tuple[float, tuple[int, ...]]]]


class State(NamedTuple):
    """The samples at some point of their way."""

    digest: str
    """Equal for equal data."""
    layout: str = ""
    """Equal for data that lies alike in memory, which the next op's cost depends on."""


class TriedOp(NamedTuple):
    """What an op did in a node."""

    seconds: float | None
    """Per sample; None where it raised."""
    state: State | None
    """What it made; None where it raised."""
    value: Any = None
    """The samples themselves; only the walk holds them."""
    why_not: str = ""
    """Why it cannot be applied here."""


class SearchNode(NamedTuple):
    """A point that orders can come to."""

    applied: frozenset[int]
    state: State

    def after(self, position: int, state: State) -> SearchNode:
        """The point that an op leads to."""
        return SearchNode(self.applied | {position}, state)


@dataclass
class SearchResult:
    """All that a search has tried."""

    n: int
    """How many ops there are."""
    start: SearchNode
    edges: dict[SearchNode, dict[int, TriedOp]] = field(default_factory=dict)
    """For each node the ops that were tried there; their `value` is gone."""
    reached_by: dict[SearchNode, tuple[int, ...]] = field(default_factory=dict)
    """For each node the first order that came to it."""
    unexplored: int = 0
    """Ops that the time was over for, in nodes that were reached."""

    @property
    def measurements(self) -> int:
        """Ops that were tried in a node."""
        return sum(map(len, self.edges.values()))

    @property
    def exhaustive(self) -> int:
        """Ops that would be tried, if each order were tried by itself."""
        return self.n * factorial(self.n)

    def after(self, positions: Sequence[int]) -> Iterator[tuple[int, TriedOp | None]]:
        """Follow an order: each op and what it did, None from where nothing was tried."""
        node: SearchNode | None = self.start
        for position in positions:
            tried = self.edges.get(node, {}).get(position) if node else None
            yield position, tried
            state = tried.state if tried else None
            node = node.after(position, state) if node and state else None

    def keep(self, node: SearchNode, position: int, tried: TriedOp) -> None:
        """Keep what an op did, without the samples."""
        self.edges.setdefault(node, {})[position] = tried._replace(value=None)


def search(
    first: Sequence[tuple[int, ...]],
    start: tuple[State, Any],
    attempt: Attempt,
    is_over: Callable[[], bool],
) -> SearchResult:
    """Try the ops in all orders that differ, until the time is over.

    Args:
        first: orders of all ops, known by 0 to n - 1, that are tried whatever time is left; that
            as it is first.
        start: the samples before any op, and what they are.
        attempt: tries an op.
        is_over: asked before each other op is tried.
    """
    state, samples = start
    found = SearchResult(len(first[0]), SearchNode(frozenset(), state))
    walker = _Walker(found, samples, attempt, is_over)
    for order in first:
        walker.walk(order)
    walker.visit(found.start, (), samples)
    return found


@dataclass
class _Walker:
    """Tries ops, and has the samples at hand that they made."""

    found: SearchResult
    samples: Any
    attempt: Attempt
    is_over: Callable[[], bool]
    visited: set[SearchNode] = field(default_factory=set)
    ahead: dict[tuple[SearchNode, int], Any] = field(default_factory=dict)
    """Samples along the first orders, so that none of their ops is tried a second time."""

    def walk(self, order: tuple[int, ...]) -> None:
        """Try the ops in this order, up to one that raises."""
        found, node, value = self.found, self.found.start, self.samples
        for place, position in enumerate(order):
            found.reached_by.setdefault(node, order[:place])
            if position not in found.edges.get(node, {}):
                tried = self._try(node, order[:place], position, value)
                self.ahead[node, position] = tried.value
            state = found.edges[node][position].state
            if state is None:
                return
            value = self.ahead[node, position]
            node = node.after(position, state)
        found.reached_by.setdefault(node, order)

    def visit(self, node: SearchNode, applied: tuple[int, ...], value: Any) -> None:
        """Try every op that is not yet applied, and go on from what it makes."""
        found = self.found
        self.visited.add(node)
        found.reached_by.setdefault(node, applied)
        for position in _left_in(found, node):
            known = found.edges.get(node, {}).get(position)
            if known is None and self.is_over():
                found.unexplored += 1
                continue
            tried = known or self._try(node, applied, position, value)
            if tried.state is None:
                continue
            after = node.after(position, tried.state)
            result = self.ahead.pop((node, position), None) if known else tried.value
            if after not in self.visited and result is not None:
                self.visit(after, (*applied, position), result)

    def _try(
        self, node: SearchNode, applied: tuple[int, ...], position: int, value: Any
    ) -> TriedOp:
        tried = self.attempt(position, applied, value, node.state)
        self.found.keep(node, position, tried)
        return tried


def _left_in(found: SearchResult, node: SearchNode) -> list[int]:
    """The ops that are left; behind the one that comes next as it is, the cheapest first.

    An op that makes samples small is found early this way: it makes all behind it cheap.
    """
    left = [position for position in range(found.n) if position not in node.applied]
    cost = {p: t.seconds or 0.0 for e in found.edges.values() for p, t in e.items()}
    return sorted(left, key=lambda position: (position != left[0], cost.get(position, 0.0)))


def cheapest(found: SearchResult, most: int) -> Ways:
    """Find, for each data that comes out at the end, the cheapest orders that give it.

    Args:
        found: by a search.
        most: orders of one digest.

    Returns:
        By the digest of the final data: seconds per sample and the order, the cheapest first.
    """
    memory: dict[SearchNode, Ways] = {}

    def to_go(node: SearchNode) -> Ways:
        """For each final digest the cheapest ways from here on."""
        if node in memory:
            return memory[node]
        if len(node.applied) == found.n:
            return {node.state.digest: [(0.0, ())]}
        ways: Ways = {}
        for position, tried in found.edges.get(node, {}).items():
            if tried.state is None or tried.seconds is None:
                continue
            for digest, rest in to_go(node.after(position, tried.state)).items():
                ways.setdefault(digest, []).extend(
                    (tried.seconds + seconds, (position, *order)) for seconds, order in rest
                )
        memory[node] = {digest: heapq.nsmallest(most, all_) for digest, all_ in ways.items()}
        return memory[node]

    return to_go(found.start)


def failures(found: SearchResult) -> list[tuple[tuple[int, ...], str]]:
    """List beginnings of orders that fail, the shortest for each reason, and why."""
    shortest: dict[tuple[int, str], tuple[int, ...]] = {}
    for node, edges in found.edges.items():
        for position, tried in edges.items():
            if tried.state is None:
                order = (*found.reached_by.get(node, ()), position)
                key = (position, tried.why_not)
                if key not in shortest or len(order) < len(shortest[key]):
                    shortest[key] = order
    return [(order, why) for (_, why), order in sorted(shortest.items(), key=lambda one: one[1])]
