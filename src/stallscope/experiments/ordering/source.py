"""Python source for a new pipeline, and the words for what it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stallscope.experiments.ordering.recipe import Recipe, Site
    from stallscope.measure.pipelines.chain import Op


def code_of(recipe: Recipe, site: Site, names: dict[int, str]) -> str:
    """Source that puts a recipe's pipeline in the place of the old one of a `loader`.

    Args:
        recipe: the new pipeline.
        site: where the old one works.
        names: for ops that are replaced, an expression for what replaces them.

    Returns:
        "" for what is more than another row of ops.
    """
    decodes = recipe.opener is not None or recipe.reader is not None
    if recipe.on_batch or decodes or recipe.cached:
        return ""
    ops = site.chain.ops
    lines = [f"    {names.get(p, ops[p].code)},  # {_comment(ops[p])}" for p in recipe.positions]
    old = f"old = loader.{site.place.text}"
    listed = "\n".join(lines)
    made = _made(site, listed, names)
    places = ["loader.dataset" + "".join(map(str, path)) for path in site.place.paths]
    return "\n".join([*made[:1], old, *made[1:], *(f"{place} = new" for place in places)]).strip()


def _made(site: Site, listed: str, names: dict[int, str]) -> list[str]:
    """The lines that make `new`; the first is an import, or empty."""
    kind, value = site.chain.kind, site.chain.value
    if kind == "one op":
        return ["", f"new = {names.get(0, 'old')}"]
    if isinstance(value, list):
        return ["", f"new = [\n{listed}\n]"]
    if isinstance(value, tuple):
        return ["", f"new = (\n{listed}\n)"]
    if kind == "an nn.Sequential":
        return ["from torch import nn", "", f"new = nn.Sequential(\n{listed}\n)"]
    holder = site.chain.holder
    closing = ("(", ")") if isinstance(getattr(value, holder, None), tuple) else ("[", "]")
    return [
        "import copy\n",
        "new = copy.copy(old)",
        f"new.{holder} = {closing[0]}\n{listed}\n{closing[1]}",
    ]


def _comment(op: Op) -> str:
    text = op.settings or op.name
    return text if op.name.partition(" ")[0] in text else f"{op.name}: {text}"


def change_of(positions: Sequence[int], ops: Sequence[Op]) -> str:
    """What an order changes, in as few words as possible: "RandomCrop before PILToTensor"."""
    moved = _moved(tuple(positions))
    if not moved:
        return "as it is"
    said = []
    for position in moved:
        place = list(positions).index(position)
        said.append(
            f"{ops[position].name} before {ops[positions[place + 1]].name}"
            if place + 1 < len(positions)
            else f"{ops[position].name} last"
        )
    return ", ".join(said)


def _moved(positions: tuple[int, ...]) -> list[int]:
    """The fewest ops that have to be moved: those outside of a longest rising row.

    Of several, those are said to move that come earlier than they did.
    """
    best: list[tuple[int, ...]] = []
    for place, position in enumerate(positions):
        rows = [row for row in best[:place] if row[-1] < position]
        longest = max(rows, key=lambda row: (len(row), -row[-1]), default=())
        best.append((*longest, position))
    kept = max(best, key=lambda row: (len(row), sum(map(_came_earlier, [positions], [row]))))
    return [position for position in positions if position not in kept]


def _came_earlier(positions: tuple[int, ...], kept: tuple[int, ...]) -> int:
    """Of the ops that are not kept, how many stand before their old place."""
    return sum(place < position for place, position in enumerate(positions) if position not in kept)


def random_order_changed(positions: Sequence[int], is_random: dict[int, bool]) -> bool:
    """Whether ops that draw random numbers draw them in another order than before."""
    drawing = [position for position in positions if is_random.get(position)]
    return drawing != sorted(drawing)
