"""Is it found why a training loop stands still? Loops with a planted reason, run for real.

For each loop: for which share of its time it stalls, what the stalls consist of, what no span
explains of them, and which pattern is found, with its period and the chance that it is an accident.
A loop whose reason is its own use of the batches hardly stands still; then the longest part of that
is shown. What must be found stands in `tests/support/stalling_loops.py`.

    python tests/benchmarks/planted_loops.py
"""

from __future__ import annotations

import warnings

from benchkit.command import Option, arguments, table
from support.stalling_loops import PLANTS, Found, Plant, find, wrong
from tqdm import tqdm

HEAD = ("loop", "stalled", "longest parts", "unattributed", "pattern, period, chance", "right")
SHOWN = 3
"""So many parts of a stall are printed."""


def main() -> None:
    """Run the loops, and print the table."""
    given = arguments(
        __doc__,
        only=Option("", "collate slow", "those with this in their name"),
        times=Option(1, 1, "run each so many times"),
    )
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    plants = [plant for plant in PLANTS if given.only in plant.name]
    rows, faults = [], []
    bar = tqdm(plants, desc="loops", unit="loop", leave=False)
    for plant in bar:
        bar.set_postfix_str(plant.name)
        for _ in range(given.times):
            found = find(plant)
            errors = wrong(plant, found)
            rows.append(_row(plant, found, right=not errors))
            faults += [f"{plant.name}: {error}" for error in errors]
    print(table(HEAD, rows))
    print("\n".join(["", *faults, f"{_right(rows)} of {len(rows)} are right"]))


def _row(plant: Plant, found: Found, *, right: bool) -> tuple[str, ...]:
    return (
        plant.name,
        f"{found.stalled_share:.1%}",
        _parts(found),
        f"{found.unattributed_share:.1%}" if found.stands else "",
        _pattern(found),
        "yes" if right else "NO",
    )


def _parts(found: Found) -> str:
    if not found.stands:
        return f"(the loop: {found.use})"
    longest = found.parts.head(SHOWN).iter_rows(named=True)
    return ", ".join(f"{row['part']} {row['share']:.1%}" for row in longest)


def _pattern(found: Found) -> str:
    """The pattern that explains most."""
    if found.patterns.is_empty():
        return "none"
    first = found.patterns.row(0, named=True)
    numbers = [first["pattern"], "-" if first["period"] is None else str(first["period"])]
    if first["chance"] is not None:
        numbers.append(f"{first['chance']:.0e}")
    return ", ".join(numbers)


def _right(rows: list[tuple[str, ...]]) -> int:
    return sum(row[-1] == "yes" for row in rows)


if __name__ == "__main__":
    main()
