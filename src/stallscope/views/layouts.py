"""Layouts of the same data in a notebook and a terminal: which to use, and what each gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.storage.layout_result import name_of, notes_of, sentence
from stallscope.units import duration, printable, share, size
from stallscope.views.document import CellBar, Code, Document, Heading, Notes, Table
from stallscope.views.document import as_json as document_json

if TYPE_CHECKING:
    from stallscope.storage.layout_result import Layouts


WHOSE: Final = "a comparison of layouts"
KINDS: Final = {"samples": "samples a second of each layout, by order and state (the default)"}
CHARTS: Final = {"samples": ("storage", "layouts_figure")}
HEADS: Final = (
    *("layout", "read", "state", "samples/s", INTERVAL, "as files", INTERVAL, "in the loop"),
    *("bytes", "to convert", "random access", "shuffle"),
)
_KEY: Final = (
    "as files: times as many samples as from the files as they are; shuffle: 100% is uniform; "
    "sizes are those of the samples that were written, the time is for the whole dataset"
)


def document(layouts: Layouts) -> Document:
    """The answer, every layout, and why some were not measured."""
    rows = layouts.table().to_dicts()
    shown = [row for row in rows if row["samples_per_s"] is not None]
    bars = [CellBar(row["samples_per_s"], COLOURS["fetch"]) for row in shown]
    pixels = layouts.circumstances.image_pixels
    cells = [(name_of(row, pixels), *_numbers(row)) for row in shown]
    left_out = [f"not measured: {row['kind']}: {row['why_not']}" for row in rows if row["why_not"]]
    return Document(
        "layouts",
        [
            Heading(printable(sentence(layouts), 400)),
            Table(HEADS, cells, bars, _KEY),
            *_recipe(layouts),
            Notes([printable(note, 600) for note in (*left_out, *notes_of(layouts))]),
        ],
    )


def _recipe(layouts: Layouts) -> list[Code]:
    """Return the conversion of the layout that the heading names, if it names one."""
    row = layouts.best or layouts.nearest
    if row is None:
        return []
    title = f"To convert all files to {name_of(row, layouts.circumstances.image_pixels)}"
    return [Code(f"{title} (replace DATA and OUT)", layouts.recipe())]


def _numbers(row: dict[str, Any]) -> tuple[str, ...]:
    gain, loop = row["gain"], row["loop_gain"]
    return (
        *(row["order"], row["state"], f"{row['samples_per_s']:,.0f}"),
        _ends(row["samples_low_per_s"], row["samples_high_per_s"], ",.0f"),
        "—" if gain is None else f"{gain:.2f}×",
        _ends(row["gain_low"], row["gain_high"], ".2f"),
        "—" if loop is None else f"{loop:.2f}×",
        *(size(row["bytes"]), duration(row["convert_s"] or 0.0)),
        *("yes" if row["random_access"] else "no", share(row["shuffle_share"])),
    )


def _ends(low: float | None, high: float | None, form: str) -> str:
    return "—" if low is None or high is None else f"{low:{form}} to {high:{form}}"


def as_json(layouts: Layouts) -> str:
    """The answer and every layout, for programs."""
    return document_json(
        answer=sentence(layouts),
        best=layouts.best,
        layouts=layouts.table().to_dicts(),
        circumstances=vars(layouts.circumstances),
        notes=layouts.notes,
    )
