"""A benchmark as a command: its options, `--smoke`, and its tables."""

import argparse
import atexit
import json
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from benchkit import TESTS

SMOKE = "smoke: too short to mean anything"


RESULTS = Path(TESTS).parent / "docs" / "results"
"""A folder for each benchmark, a file for each saved run."""
SAVING = "save the tables for docs/how_right.md, with a note on the machine, as 'quiet'"


class Option(NamedTuple):
    """An option of the command line, `--its-name`."""

    default: Any
    """Default value, whose type is the option's; False: a flag."""
    smoke: Any
    """Its value under `--smoke`: the same code in a few seconds."""
    help: str
    """Help text; the default is added."""


def arguments(doc: str, **options: Option) -> argparse.Namespace:
    """Parse the command line; options on it override also those of `--smoke`.

    Args:
        doc: of the benchmark's module.
        options: by their names.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="only see in seconds that it runs")
    parser.add_argument("--save", default="", metavar="NOTE", help=SAVING)
    for name, option in options.items():
        flag, default = f"--{name.replace('_', '-')}", option.default
        settings: dict[str, Any] = {"help": option.help, "default": argparse.SUPPRESS}
        if default is False:
            parser.add_argument(flag, action="store_true", **settings)
            continue
        is_list = isinstance(default, list)
        shown = "all" if is_list and len(default) > 3 else default
        settings["help"] += f" ({' '.join(map(str, shown)) if isinstance(shown, list) else shown})"
        settings["nargs"] = "+" if is_list else None
        parser.add_argument(flag, type=type(default[0] if is_list else default), **settings)
    values = parser.parse_args()
    for name, option in options.items():
        if name not in values:
            setattr(values, name, option.smoke if values.smoke else option.default)
    if values.smoke:
        print(SMOKE, flush=True)
    if values.save:
        import torch  # noqa: F401 - at the process's end it is too late to import it

        atexit.register(_save, values.save)
    return values


_tables: list[dict[str, Any]] = []
"""Tables that this process has printed."""


def _save(note: str) -> None:
    """Write the tables of this run, with what a reader needs to run it again."""
    import torch

    import stallscope as ss

    name = Path(sys.argv[0]).stem
    now = datetime.now(timezone.utc)
    git = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    result = {
        "benchmark": name,
        "command": " ".join(["python", f"tests/benchmarks/{name}.py", *sys.argv[1:]]),
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "version": ss.__version__,
        "commit": git.stdout.strip(),
        "machine": f"{_cores()} cores, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, torch {torch.__version__}",
        "note": note,
        "tables": _tables,
    }
    folder = RESULTS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{now:%Y%m%d-%H%M}.json").write_text(json.dumps(result, indent=1) + "\n")


def _cores() -> int:
    from stallscope.machine import usable_cores

    return usable_cores()


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Text columns: the first to the left, all others to the right."""
    _tables.append({"head": head, "rows": rows})
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]

    def line(cells: tuple[str, ...]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *padded[1:]])

    rule = "-" * len(line(head))
    return "\n".join([line(head), rule, *(line(row) for row in rows)])


def met(yes: bool) -> str:
    """Return the words for a target that is met or missed."""
    return "met" if yes else "MISSED"


def ms(seconds: float | None) -> str:
    """Seconds as milliseconds."""
    return "-" if seconds is None else f"{seconds * 1e3:.2f} ms"
