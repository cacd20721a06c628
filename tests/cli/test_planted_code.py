"""No code of a folder is run because a command is run in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stallscope

SOURCE = Path(stallscope.__file__).parents[1]
AS_COMMAND = "import sys; sys.path[0] = '/nowhere'; from stallscope.cli.main import main; main()"
"""What the installed command does: its own folder is where Python looks first."""
NAMES = ("polars", "torch", "numpy", "PIL", "psutil", "typer", "matplotlib", "line_profiler")
OF_PYTHON = (
    *("multiprocessing", "pickle", "signal", "socket", "json", "random", "secrets", "tempfile"),
    *("typing", "pathlib", "dataclasses", "inspect", "logging"),
)
PLANTED = "import sys; print('PLANTED', __name__, file=sys.stderr); sys.exit(9)"


@pytest.fixture
def downloaded(tmp_path):
    """A folder of images, and modules with the names of what stallscope imports."""
    from PIL import Image

    (tmp_path / "imgs").mkdir()
    for number in range(6):
        Image.new("RGB", (8, 8)).save(tmp_path / "imgs" / f"{number}.png")
    for name in NAMES + OF_PYTHON:
        (tmp_path / f"{name}.py").write_text(PLANTED)
    return tmp_path


def run_in(folder, *arguments, way=("-c", AS_COMMAND)):
    environment = {name: value for name, value in os.environ.items() if "PYTHONSAFEPATH" != name}
    return subprocess.run(
        [sys.executable, *way, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**environment, "PYTHONPATH": str(SOURCE)},
    )


FEW = ("--batches", "1", "--warmup", "0")


@pytest.mark.slow
def test_a_folder_of_images_runs_nothing(downloaded):
    """The folder holds what is measured; its modules are nobody's target."""
    done = run_in(downloaded, "record", *FEW, "imgs")

    assert "PLANTED" not in done.stderr
    assert 0 == done.returncode, done.stderr
