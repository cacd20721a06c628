"""The search over (ops applied, data): what it tries, what it finds, what it leaves."""

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest

from stallscope.verbs.orders.equivalence import State
from stallscope.verbs.orders.run_ops import Outcome
from stallscope.verbs.orders.search import OrderGraph


class Numbers:
    """A bench on which ops are functions of a number, with costs that depend on it.

    Args:
        ops: what each does.
        cost: what each costs, by position and number.
    """

    def __init__(self, ops: Sequence[Callable[[int], int]], cost: Any = None) -> None:
        self.ops = ops
        self.cost = cost or (lambda position, value: 1.0)
        self.tried: list[tuple[int, tuple[int, ...]]] = []

    def attempt(self, position: int, applied: Sequence[int], value: Any) -> Outcome:
        """Apply an op."""
        self.tried.append((position, tuple(applied)))
        try:
            result = self.ops[position](value)
        except ValueError as error:
            return Outcome(why_not=str(error))
        return Outcome(result, State(str(result)), (self.cost(position, value),))

    def again(self, position: int, value: Any) -> Any:
        """Apply an op once more."""
        return self.ops[position](value)

    def found(self, value: int = 7, is_over: Any = lambda: False) -> OrderGraph:
        """Search from a number on."""
        as_it_is = tuple(range(len(self.ops)))
        graph = OrderGraph(as_it_is, value, State(str(value)), self.attempt, self.again)
        graph.search([as_it_is], is_over)
        return graph

    def cost_of(self, positions: Sequence[int], value: int = 7) -> tuple[float, int]:
        """Cost and data of an order, by walking it."""
        whole = 0.0
        for position in positions:
            whole += self.cost(position, value)
            value = self.ops[position](value)
        return whole, value


def adding(*numbers: int) -> list[Callable[[int], int]]:
    """Ops that commute."""
    return [lambda value, number=number: value + number for number in numbers]


def only_even(value: int) -> int:
    """Raises on odd numbers."""
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value // 2


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_ops_that_commute_are_tried_once_for_each_set(n):
    """For n ops that all commute, n times 2^(n-1) trials are enough."""
    bench = Numbers(adding(*(10**place for place in range(n))))

    orders_of = bench.found()

    assert orders_of.measurements == len(bench.tried) == n * 2 ** (n - 1)
    assert 0 == orders_of.unexplored


def test_ops_that_do_not_commute_stay_apart():
    """Orders that give other data are not merged, and each data has its own best order."""
    bench = Numbers([lambda value: value * 3, lambda value: value + 5, lambda value: value**2])

    classes = bench.found().cheapest(1)

    walked = {str(bench.cost_of(order)[1]) for order in permutations(range(3))}
    assert walked == set(classes)


@pytest.mark.parametrize("seed", range(5))
def test_finds_what_trying_every_order_finds(seed):
    """The cheapest order of the original's data is the one that an exhaustive search finds."""
    ops = [*adding(3, 5), lambda value: value * 2, lambda value: value - value % 4]
    bench = Numbers(ops, lambda position, value: 1 + (position * 7 + value * (seed + 3)) % 11)
    whole, data = bench.cost_of(range(4))

    best = bench.found().cheapest(1)[str(data)][0]

    walked = [bench.cost_of(order) for order in permutations(range(4))]
    assert best[0] == min(cost for cost, digest in walked if digest == data) <= whole
    assert bench.cost_of(best[1]) == (best[0], data)


def test_gives_as_many_orders_as_asked_for():
    bench = Numbers(adding(1, 10, 100), lambda position, value: 1 + position * value)

    orders = bench.found().cheapest(4)["118"]

    assert 4 == len({positions for _, positions in orders})
    assert orders == sorted(orders)


def test_an_order_that_raises_is_kept_with_its_reason():
    bench = Numbers([lambda value: value + 1, only_even])

    graph = bench.found()

    assert [(1,)] == graph.failures()
    assert ["7 is odd"] == [tried.why_not for _, tried in graph.follow((1,))]


def test_the_order_as_it_is_comes_first():
    """However little time there is, the original's ops are tried, and what is left is counted."""
    bench = Numbers(adding(1, 2, 3))

    orders_of = bench.found(is_over=lambda: True)

    assert [(0, ()), (1, (0,)), (2, (0, 1))] == bench.tried
    assert 3 == orders_of.unexplored  # ops 1 and 2 in the beginning, op 2 after op 0
