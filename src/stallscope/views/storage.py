"""What storage gives in a notebook and a terminal: the answer, ways of reading, where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.storage.reads import COLD
from stallscope.storage.result import notes_of, sentence, way_of
from stallscope.units import count, printable, seconds, share, size
from stallscope.views.document import CellBar, Document, Heading, Notes, Table
from stallscope.views.document import as_json as document_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.storage.result import Storage


WHOSE: Final = "a measurement of storage"
KINDS: Final = {
    "samples": "samples a second by readers, cold and warm, and what the step asks (the default)",
    "pieces": "bytes a second of small and large pieces, anywhere and in order",
}
CHARTS: Final = {kind: ("storage", f"{kind}_figure") for kind in KINDS}
HEADS: Final = (
    "read",
    "readers",
    "state",
    "one takes",
    "95th percentile",
    "a second",
    INTERVAL,
    "bytes/s",
    "in cache",
)
_KEY: Final = (
    "in cache: share of what was asked for that lay in the page cache just before; a cold reading "
    "that was not cold is left out"
)


def document(storage: Storage) -> Document:
    """The answer, every way of reading, and where the files lie."""
    rows = storage.table().to_dicts()
    bars = [
        CellBar(row["bytes_per_s"], COLOURS["fetch" if row["state"] == COLD else "other"])
        for row in rows
    ]
    places = [
        (
            printable(f"{row['path']} ({row['device']})", 60),
            *(row["system"], row["medium"], count(row["files"], "file"), size(row["bytes"])),
            share(row["resident_share"]),
        )
        for row in storage.places.to_dicts()
    ]
    return Document(
        "storage",
        [
            Heading(printable(sentence(storage), 400)),
            Table(HEADS, [cells(row) for row in rows], bars, _KEY),
            Table(("where", "system", "medium", "looked at", "bytes", "in cache"), places),
            Notes([printable(note, 600) for note in notes_of(storage)]),
        ],
    )


def as_json(storage: Storage) -> str:
    """The answer, the ways of reading and the places, for programs."""
    return document_json(
        answer=sentence(storage),
        reads=storage.table().to_dicts(),
        places=storage.places.to_dicts(),
        circumstances=vars(storage.circumstances),
        notes=storage.notes,
    )


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table in words; `HEADS`."""
    low, high = row["requests_low_per_s"], row["requests_high_per_s"]
    return (
        way_of(row),
        str(row["readers"]),
        row["state"],
        seconds(row["latency_s"]),
        seconds(row["latency_p95_s"]),
        f"{row['requests_per_s']:,.0f}",
        "—" if low is None else f"{low:,.0f} to {high:,.0f}",
        f"{size(row['bytes_per_s'])}/s",
        share(row["cached_share"]),
    )
