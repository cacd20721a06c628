"""Lines with planted times."""

from __future__ import annotations

from typing import Any

import polars as pl

from stallscope.lines.result import CALLS, FUNCTIONS, PAIRS, SOURCES, TIMES, Lines, LinesConditions

PLANTED = {
    "Items.__getitem__": [("def __getitem__(self, index):", None), ("return self.t(index)", 0.9)],
    "Mask.__call__": [("def __call__(self, image):", None), ("return self.dilate(image)", 0.7)],
    "Mask.dilate": [
        ("def dilate(self, mask):", None),
        ("# a comment", None),
        ("hits = conv2d(mask)", 0.6),
        ("return hits > 0", 0.01),
    ],
}
CALLED = (("Items.__getitem__", 2, "Mask.__call__"), ("Mask.__call__", 2, "Mask.dilate"))


def some_lines(
    planted: dict[str, list[tuple[str, float | None]]] | None = None,
    calls: tuple[tuple[str, int, str], ...] = CALLED,
    pairs: tuple[tuple[float, float], ...] = ((1.1, 1.0), (1.12, 1.0), (1.08, 1.0)),
    notes: tuple[str, ...] = (),
    why_not: str | None = None,
    **circumstances: Any,
) -> Lines:
    """Lines.

    Args:
        planted: for each function its lines from 1 on, and the seconds that they took, if they ran.
        calls: caller, line and function, whose whole time is spent there.
        pairs: seconds with and without.
        notes: of the lines.
        why_not: why no source can be shown.
        circumstances: fields of `Circumstances`.
    """
    planted = PLANTED if planted is None else planted
    told = {"name": "planted", "samples": 32, "wall_s": 1.0, **circumstances}
    functions = [(name, f"/home/x/{name}.py", 1, name, "transform", why_not) for name in planted]
    rows = [
        (name, place, text, took)
        for name, lines in planted.items()
        for place, (text, took) in enumerate(lines, 1)
    ]
    return Lines(
        pl.DataFrame(functions, FUNCTIONS, orient="row"),
        pl.DataFrame(
            [(name, place, 32, took) for name, place, _, took in rows if took is not None],
            TIMES,
            orient="row",
        ),
        pl.DataFrame([(*call, 1.0) for call in calls], CALLS, orient="row"),
        pl.DataFrame([] if why_not else [row[:3] for row in rows], SOURCES, orient="row"),
        pl.DataFrame(list(pairs), PAIRS, orient="row"),
        LinesConditions(**told),
        notes,
    )
