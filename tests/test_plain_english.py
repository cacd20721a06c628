"""The package's English stays plain: how docstrings open, names, and the length of sentences."""

import ast
import json
import re
from pathlib import Path

import pytest

import stallscope

ROOT = Path(__file__).parents[1]
LIKE_USERS = "real_questions"
"""Folder that imitates users' code, which has such names."""
SOURCES = [
    *sorted(Path(stallscope.__file__).parent.rglob("*.py")),
    *sorted(path for path in (ROOT / "tests").rglob("*.py") if LIKE_USERS not in path.parts),
]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OPENINGS = {
    *("What", "Whether", "How", "Where", "When", "Which", "Who", "By", "It", "They"),
    *("Of", "So", "That", "As"),
}
"""A docstring begins with a verb (function) or a noun (class, constant), not with these."""
NAMES = {
    *("told", "said", "made", "known", "kept", "found", "given", "stood", "apart", "within"),
    *("one", "thing", "way", "much", "many", "more", "other", "some"),
}
"""Names that say nothing of the value."""
LONGEST = 30
"""Words of a sentence that users read."""
MOST_OPENINGS, MOST_NAMES = 0, 0


def _docstrings(tree):
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body:
            continue
        is_documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        for before, after in zip([None, *body], body, strict=False):
            text = getattr(getattr(after, "value", None), "value", None)
            follows = isinstance(before, (ast.Assign, ast.AnnAssign)) or before is None
            if isinstance(after, ast.Expr) and isinstance(text, str) and follows and is_documented:
                yield after.lineno, text


def _names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def _sentences(path):
    """Return the sentences of a page or a notebook: no code, no tables, no made parts."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        prose = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        text = "\n\n".join(prose)
    text = re.sub(r"(?s)```.*?```|<!-- (\w+):.*?<!-- /\1 -->", "", text)
    paragraphs = re.split(r"\n\s*\n|\n[-#] |\n\|.*", text)
    for paragraph in paragraphs:
        if not paragraph.lstrip().startswith(("|", "#")):
            yield from re.split(r"(?<=[.?!:;])\s+", " ".join(paragraph.split()))


def _places(find, forbidden):
    for path in SOURCES:
        for line, text in find(ast.parse(path.read_text(encoding="utf-8"))):
            first = text.split()[0].strip(",.:;") if text.split() else ""
            if first in forbidden:
                yield f"{path.parent.name}/{path.name}:{line}: {text.split(chr(10))[0]:.60}"


def test_docstrings_open_with_a_verb_or_a_noun():
    places = list(_places(_docstrings, OPENINGS))

    assert len(places) <= MOST_OPENINGS, "\n".join(places)


def test_names_say_what_a_value_is():
    places = list(_places(_names, NAMES))

    assert len(places) <= MOST_NAMES, "\n".join(places)


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: path.name)
def test_sentences_are_short(path):
    too_long = [text for text in _sentences(path) if len(re.findall(r"[\w'-]+", text)) > LONGEST]

    assert not too_long
