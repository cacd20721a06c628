"""What the README and the pages beside it say can be done."""

from __future__ import annotations

import re

import pytest
import readme_examples


@pytest.mark.thorough
def test_the_example_runs():
    """The README's Python prints a verdict with its next step, and the gain that was measured."""
    printed = readme_examples.output()

    assert "next: " in printed
    assert "measured" in printed


def test_ci_runs_the_command_of_the_readme():
    """`.ci/run` runs the very test command that the README gives; its extra contains that one's."""
    commands = re.findall(r"```sh\n(.*?)\n```", readme_examples.README.read_text(), re.DOTALL)
    script = (readme_examples.ROOT / ".ci" / "run").read_text()

    (tests,) = (command for command in commands if "pytest" in command)
    venv, install, run = (part.strip() for part in tests.split("&&"))
    assert venv in script
    assert install.replace("[test]", "[ci]") in script
    assert f"\n{run}  #" in script
    assert '"stallscope[test]"' in (readme_examples.ROOT / "pyproject.toml").read_text()


def test_it_is_short():
    """The README is read to its end: 150 lines at most."""
    assert len(readme_examples.README.read_text().splitlines()) <= 150


def test_every_file_that_is_named_is_there():
    """Files and links of the pages exist, and a file holds the name that is given after it."""
    root = readme_examples.ROOT
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").glob("*.md")]
    for page in pages:
        text = page.read_text()
        for path in re.findall(r"]\((?!https?:)([^)#]+)\)", text):
            assert (page.parent / path).exists(), f"{page.name}: {path}"
        for path, name in re.findall(r"`([\w/]+\.py)`(?:: `(\w+)`)?", text):
            places = (root / path, root / "src/stallscope" / path, root / "tests/benchmarks" / path)
            there = [place for place in places if place.is_file()]
            assert there, f"{page.name}: {path}"
            assert not name or re.search(rf"\b{name}\b", there[0].read_text()), f"{path}: {name}"


def test_its_pictures_are_there():
    """All that it shows are made by the command, and lie where it says."""
    shown = re.findall(r"!\[[^]]+]\(([^)]+)\)", readme_examples.README.read_text())

    assert {f"notebooks/pictures/{name}.png" for name in readme_examples.PICTURES} == set(shown)
    assert all((readme_examples.ROOT / path).is_file() for path in shown)
