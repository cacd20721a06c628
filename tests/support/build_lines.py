"""Lines with planted times."""

from typing import Any

import polars as pl

from stallscope.verbs.lines.result import FUNCTIONS, LINES, SOURCES, Lines, LinesConditions

PLANTED = {
    "Items.__getitem__": [
        ("def __getitem__(self, index):", None),
        ("return self.t(index)", (0.9, 0.2)),
    ],
    "Mask.__call__": [
        ("def __call__(self, image):", None),
        ("return self.dilate(image)", (0.7, 0.09)),
    ],
    "Mask.dilate": [
        ("def dilate(self, mask):", None),
        ("# a comment", None),
        ("hits = conv2d(mask)", (0.6, 0.6)),
        ("return hits > 0", (0.01, 0.01)),
    ],
}
REACH = 0.02
"""Half-width of a share's interval."""


def some_lines(
    planted: dict[str, list[tuple[str, tuple[float, float] | None]]] | None = None,
    notes: tuple[str, ...] = (),
    why_not: str | None = None,
    **circumstances: Any,
) -> Lines:
    """Make lines of functions: of each line that ran, its share and its own share."""
    planted = PLANTED if planted is None else planted
    fields = {"name": "planted", "samples": 32, "wall_s": 1.0, "looks": 2_000, **circumstances}
    functions = [(name, f"/home/x/{name}.py", 1, name, "transform", why_not) for name in planted]
    rows = [
        (name, place, text, shares)
        for name, lines in planted.items()
        for place, (text, shares) in enumerate(lines, 1)
    ]
    return Lines(
        pl.DataFrame(functions, FUNCTIONS, orient="row"),
        pl.DataFrame(
            [
                (name, place, 32, *shares, max(shares[1] - REACH, 0.0), shares[1] + REACH)
                for name, place, _, shares in rows
                if shares is not None
            ],
            LINES,
            orient="row",
        ),
        pl.DataFrame([] if why_not else [row[:3] for row in rows], SOURCES, orient="row"),
        LinesConditions(**fields),
        notes,
    )
