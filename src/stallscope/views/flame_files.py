"""A flamegraph as a file that others can open: HTML, SVG, speedscope's JSON, collapsed stacks."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stallscope.flame.tree import of_difference, of_flame
from stallscope.names import worker_name
from stallscope.views.document import write
from stallscope.views.flame_viewer import page

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from stallscope.flame.result import Flame, FlameDifference


SPEEDSCOPE: Final = "https://www.speedscope.app/file-format-schema.json"
"""The name of the format, which its files carry; nothing is fetched from there."""


def export(flame: Flame, path: str | Path) -> Path:
    """Write a flamegraph; an older file is written over.

    Args:
        flame: what was sampled.
        path: `.html` (zooms and searches in a browser), `.svg` (a picture), `.json` (speedscope)
            or `.txt` (collapsed stacks).

    Returns:
        The path.

    Raises:
        ExportError: another ending, or it cannot be written there.
    """
    makers: dict[str, Callable[[], str]] = {
        ".html": lambda: page(of_flame(flame), flame._repr_mimebundle_()["text/html"]),
        ".svg": lambda: _svg(flame.plot()),
        ".json": lambda: json.dumps(speedscope(flame), separators=(",", ":")),
        ".txt": lambda: collapsed(flame.stacks()),
    }
    return write(Path(path), makers)


def export_difference(found: FlameDifference, path: str | Path) -> Path:
    """Write a difference as `.html` or `.svg`, see `export`."""
    makers: dict[str, Callable[[], str]] = {
        ".html": lambda: page(of_difference(found), found._repr_mimebundle_()["text/html"]),
        ".svg": lambda: _svg(found.plot()),
    }
    return write(Path(path), makers)


def collapsed(stacks: pl.DataFrame) -> str:
    """One line a stack and its hits, as Brendan Gregg's flamegraph.pl and speedscope read them."""
    merged: dict[str, int] = {}
    for stack, hits in stacks.select("stack", "hits").iter_rows():
        line = " ".join(stack.splitlines())
        merged[line] = merged.get(line, 0) + hits
    return "".join(f"{stack} {hits}\n" for stack, hits in merged.items())


def speedscope(flame: Flame) -> dict[str, Any]:
    """The whole recording and, where there are several, each worker's, in speedscope's format.

    (https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources)
    """
    stacks = flame.stacks()
    places: dict[str, int] = {}
    name = flame.circumstances.name or "workers"
    profiles = [_profile(f"{name}: all", stacks, places)]
    parts = stacks.partition_by("worker", maintain_order=True)
    if len(parts) > 1:
        parts.sort(key=lambda part: (part["worker"][0] is None, part["worker"][0]))
        profiles += [_profile(worker_name(part["worker"][0]), part, places) for part in parts]
    return {
        "$schema": SPEEDSCOPE,
        "shared": {"frames": [_speedscope_frame(text) for text in places]},
        "profiles": profiles,
        "name": name,
        "activeProfileIndex": 0,
        "exporter": "stallscope",
    }


def _profile(name: str, stacks: pl.DataFrame, places: dict[str, int]) -> dict[str, Any]:
    samples = [
        [places.setdefault(text, len(places)) for text in stack.split(";")]
        for stack in stacks["stack"]
    ]
    weights = stacks["hits"].to_list()
    return {
        "type": "sampled",
        "name": name,
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _speedscope_frame(text: str) -> dict[str, Any]:
    function, _, rest = text.removesuffix(")").rpartition(" (")
    if not function:
        return {"name": text}
    file, _, line = rest.rpartition(":")
    if not line.isdecimal():
        return {"name": function, "file": rest}
    return {"name": function, "file": file, "line": int(line)}


def _svg(sheet: Any) -> str:
    stream = io.BytesIO()
    sheet.savefig(stream, format="svg", metadata={"Date": None, "Creator": "stallscope"})
    return stream.getvalue().decode("utf-8")
