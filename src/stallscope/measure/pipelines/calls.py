"""Calling an op on what the one before it gave, in the way in which its pipeline does.

A sample on its way is what the next op is called with. One positional argument is replaced by the
result; several are replaced by a tuple of as many; keyword arguments by a dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from stallscope.errors import StallscopeError

if TYPE_CHECKING:
    from stallscope.measure.pipelines.chain import Op


class OpResultError(StallscopeError, TypeError):
    """An op gives something that the next one cannot be called with."""


class Given(NamedTuple):
    """What an op is called with."""

    args: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def value(self) -> Any:
        """The sample itself, as the last op of a pipeline gives it."""
        if self.named:
            return self.named
        return self.args[0] if len(self.args) == 1 else self.args


def called(op: Op, call: Any, given: Given) -> Any:
    """The result of an op, called as its compose would.

    Args:
        op: says how.
        call: what is called: the op, or a copy of it.
        given: with what.
    """
    if op.maps_items and len(given.args) == 1 and isinstance(given.args[0], (list, tuple)):
        return [call(item) for item in given.args[0]]
    return call(*given.args, **given.named)


def passed_on(op: Op, given: Given, result: Any) -> Given:
    """What the next op is called with.

    Raises:
        OpResultError: the result is nothing that it could be called with.
    """
    if result is None:
        raise OpResultError(
            f"{op.name} returns None, so the op after it gets no sample: let its __call__ return "
            "the sample"
        )
    if given.named:
        if not isinstance(result, Mapping):
            raise OpResultError(
                f"{op.name} was called by keyword and returns a {type(result).__name__}: let it "
                "return a dictionary of what it was given"
            )
        return Given((), dict(result))
    if len(given.args) > 1:
        if not isinstance(result, (tuple, list)) or len(result) != len(given.args):
            raise OpResultError(
                f"{op.name} was called with {len(given.args)} values and returns a "
                f"{type(result).__name__}: let it return a tuple of as many"
            )
        return Given(tuple(result), {})
    return Given((result,), {})
