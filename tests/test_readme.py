"""What the README says can be done."""

from __future__ import annotations

import re

import pytest
import readme


@pytest.mark.thorough
def test_the_example_runs():
    """The README's Python prints a table and the slowest samples."""
    printed = readme.output()

    assert "RandomResizedCrop" in printed
    assert "slowest" in printed


def test_ci_runs_the_command_of_the_readme():
    """`.ci/run` ends with the very test command that the README gives."""
    commands = re.findall(r"```sh\n(.*?)\n```", readme.README.read_text(), re.DOTALL)
    script = (readme.ROOT / ".ci" / "run").read_text()

    (tests,) = (command for command in commands if "pytest" in command)
    assert all(part.strip() in script for part in tests.split("&&"))
    assert script.rstrip().endswith(tests.split("&&")[-1].strip())


def test_its_pictures_are_there():
    """All that it shows are made by the command, and lie where it says."""
    shown = re.findall(r"!\[[^]]+]\(([^)]+)\)", readme.README.read_text())

    assert {f"notebooks/pictures/{name}.png" for name in readme.PICTURES} == set(shown)
    assert all((readme.ROOT / path).is_file() for path in shown)
