"""What the README says can be done."""

from __future__ import annotations

import re

import pytest
import readme_examples


@pytest.mark.thorough
def test_the_example_runs():
    """The README's Python prints a table and the slowest samples."""
    printed = readme_examples.output()

    assert "RandomResizedCrop" in printed
    assert "slowest" in printed


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


def test_its_pictures_are_there():
    """All that it shows are made by the command, and lie where it says."""
    shown = re.findall(r"!\[[^]]+]\(([^)]+)\)", readme_examples.README.read_text())

    assert {f"notebooks/pictures/{name}.png" for name in readme_examples.PICTURES} == set(shown)
    assert all((readme_examples.ROOT / path).is_file() for path in shown)
