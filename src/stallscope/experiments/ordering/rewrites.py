"""The user's rewrites of ops: which op each is meant for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stallscope.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stallscope.measure.pipelines.chain import Op


def rewrites(
    ops: tuple[Op, ...], alternatives: Mapping[Any, Any] | None
) -> Iterator[tuple[int, Any, str]]:
    """Position, object and expression of each rewrite.

    Args:
        ops: of the pipeline.
        alternatives: a rewrite, or several, by an op's name or position.

    Raises:
        ArgumentError: there is no such op, or the rewrite cannot be called.
    """
    known = {op.name: op.position for op in ops}
    for key, value in (alternatives or {}).items():
        position = known.get(key) if isinstance(key, str) else key
        if not isinstance(position, int) or position not in range(len(ops)):
            raise ArgumentError(
                f"alternatives: there is no op {key!r} in this pipeline; there are "
                f"{', '.join(repr(name) for name in known)}"
            )
        several = list(value) if isinstance(value, (list, tuple)) else [value]
        for number, op in enumerate(several):
            if not callable(op) or isinstance(op, type):
                raise ArgumentError(
                    f"alternatives[{key!r}] is {op!r:.80}: give an op that can be called with a "
                    "sample, an object and not its class"
                )
            place = f"[{number}]" if len(several) > 1 else ""
            yield position, op, f"alternatives[{key!r}]{place}"
