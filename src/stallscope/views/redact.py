"""Taking paths out of what is shown, for a report that leaves the house.

A file's name can say as much as a picture of it. What was pointed at and what was read is known and
goes first, whatever it looks like; then whatever looks like a path. What is left are names of
functions, transforms and modules.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stallscope.diagnose.result import Diagnosis


LEFT_OUT: Final = "…"
_OURS: Final = " (stallscope's "
_SHORTEST: Final = 4
"""Characters of a known path; anything shorter would be found inside of words."""
_PATH: Final = re.compile(
    r"""
    (?<![\w<])(?:
        (?:~|\.{1,2}|[A-Za-z]:|file:/)?[/\\][^\s'"<>|,;()]+  # from a root, home, here, a drive
      | [\w.+@{}*-]+(?:[/\\][\w.+@{}*-]+)+(?::\d+)?         # folders and a name
      | [\w.{}*-]+\.[A-Za-z]\w{0,6}(?::\d+)?(?![\w.(])       # name.ending:12
    )
    """,
    re.VERBOSE,
)
_RATE: Final = re.compile(r"[A-Za-z]+/(?:s|min|step|sample|batch)")
_GUIDED: Final = re.compile(r"\d\d_[a-z_]+\.ipynb")
_KEPT: Final = ("/dev/shm",)  # noqa: S108 - the name of shared memory, the same on every machine
_ENDINGS: Final = {
    *("py", "pyx", "so", "c", "h", "cpp", "cu", "ipynb", "txt", "json", "csv", "tsv", "yaml"),
    *("yml", "toml", "cfg", "ini", "log", "tar", "gz", "zip", "zst", "parquet", "arrow", "npy"),
    *("npz", "pt", "pth", "pkl", "h5", "hdf5", "lmdb", "mdb", "db", "bin", "rec", "bmp", "jpeg"),
    *("jpg", "pgm", "png", "ppm", "tif", "tiff", "webp", "gif", "svg", "mp4", "avi", "mkv", "mov"),
    *("wav", "flac", "mp3", "ogg", "nii", "dcm", "html", "md", "xml"),
}
"""What a name with a dot ends in when it is a file; `torch.nn` is a module."""


def known_paths(diagnosis: Diagnosis) -> tuple[str, ...]:
    """The paths that are known: what was pointed at, the files that were read, this user's home."""
    paths: set[str] = {str(Path.home()), str(Path.cwd())}
    run = diagnosis.run
    if run is not None and "path" in run.all_samples.columns:
        read = run.all_samples["path"].drop_nulls().unique().to_list()
        paths |= {str(one) for one in read}
        paths |= {str(Path(one).parent) for one in read}
        paths |= {Path(one).name for one in read}
    name = diagnosis.circumstances.name
    if {"/", "\\"} & set(name):
        paths |= {name, name.partition(" (")[0]}
    return tuple(sorted((one for one in paths if len(one) >= _SHORTEST), key=len, reverse=True))


def redacted(diagnosis: Diagnosis) -> Diagnosis:
    """The same without paths in what it says, before anything of that is shortened or wrapped."""
    known = known_paths(diagnosis)

    def plain(value: Any) -> Any:
        return value_without_paths(value, known)

    told = diagnosis.circumstances
    texts = (pl.col(name).map_elements(plain, pl.String) for name in ("phase", "why"))
    return replace(
        diagnosis,
        findings=tuple(
            replace(found, title=plain(found.title), next_step=plain(found.next_step))
            for found in diagnosis.findings
        ),
        spent=diagnosis.spent.with_columns(*texts),
        # A folder may be given without a slash; what is made of one is said to be ours
        circumstances=replace(
            told,
            name=LEFT_OUT if _OURS in told.name else plain(told.name),
            machine=plain(told.machine),
        ),
        notes=tuple(plain(diagnosis.notes)),
    )


def without_paths(told: str, known: Iterable[str] = ()) -> str:
    """A text without paths; rates (samples/s), `/dev/shm` and guided notebooks stay.

    Args:
        told: the text.
        known: paths that are left out whatever they look like, the longest first.
    """
    for path in known:
        if path in told:  # only as a whole: 'train' is not taken out of 'training'
            begins = "" if {"/", "\\"} & set(path) else r"(?<!\w)"
            told = re.sub(rf"{begins}{re.escape(path)}(?!\w)", LEFT_OUT, told)
    return _PATH.sub(_replaced, told)


def _replaced(match: re.Match[str]) -> str:
    found = match[0]
    if _RATE.fullmatch(found) or _GUIDED.fullmatch(found) or found.rstrip(".:") in _KEPT:
        return found
    if not {"/", "\\"} & set(found):
        ending = found.partition(":")[0].rpartition(".")[2].lower()
        return LEFT_OUT if ending in _ENDINGS else found
    return LEFT_OUT


def value_without_paths(value: Any, known: Iterable[str] = ()) -> Any:
    """Plain lists, mappings and texts without paths, for JSON."""
    if isinstance(value, str):
        return without_paths(value, known)
    if isinstance(value, dict):
        return {name: value_without_paths(one, known) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [value_without_paths(one, known) for one in value]
    return value


def html_without_paths(page: str, known: Iterable[str] = ()) -> str:
    """A page whose texts and titles have no paths; its tags and styles stay as they are."""
    cleaner = _Cleaner(tuple(known))
    cleaner.feed(page)
    cleaner.close()
    return "".join(cleaner.parts)


class _Cleaner(HTMLParser):
    """Writes what it reads, with every text cleaned and escaped again."""

    def __init__(self, known: tuple[str, ...]) -> None:
        super().__init__(convert_charrefs=True)
        self.known = known
        self.parts: list[str] = []
        self._raw = False

    def handle_decl(self, decl: str) -> None:
        self.parts.append(f"<!{decl}>")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = "".join(f" {name}{self._value(name, value)}" for name, value in attrs)
        self.parts.append(f"<{tag}{told}>")
        self._raw = tag in {"style", "script"}

    def handle_endtag(self, tag: str) -> None:
        self.parts.append(f"</{tag}>")
        self._raw = False

    def handle_data(self, data: str) -> None:
        if self._raw:
            self.parts.append(data)
        else:
            self.parts.append(escape(without_paths(data, self.known), quote=False))

    def _value(self, name: str, value: str | None) -> str:
        if value is None:
            return ""
        cleaned = without_paths(value, self.known) if name in {"title", "alt"} else value
        return f'="{escape(cleaned)}"'
