"""The folder of a run: a new one for one process, a shared one for several ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stallscope
from stallscope.errors import ArgumentError, RunFormatError
from stallscope.run.script import out_folder

SOURCE = str(Path(stallscope.__file__).parents[1])
SAYS = "from stallscope.run.script import out_folder; print(out_folder('a/train.py', None))"
LAUNCHES = f"""
import os, subprocess, sys, time
for rank in "01":
    variables = {{**os.environ, "RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}}
    command = [sys.executable, "-c", {SAYS!r}]
    time.sleep(1.1 * int(rank))
    subprocess.run(command, env=variables, check=True)
"""
VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty current folder, and no launcher."""
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def be(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


class TestOneProcess:
    @pytest.mark.parametrize(
        ("script", "name"),
        [
            ("a/train.py", "train"),
            ("pack.train", "pack.train"),
            ("a/", "a"),
            ("./a/b.pyz", "b.pyz"),
        ],
    )
    def test_takes_a_new_folder(self, here, script, name):
        """The name of the folder has the script and the time; it is there at once."""
        folder = out_folder(script, None)

        assert re.fullmatch(rf"{re.escape(name)}-\d{{8}}-\d{{6}}", folder.name)
        assert folder.parent == here / "stallscope-runs"
        assert folder.is_dir()

    def test_takes_the_given_folder(self, here):
        """A folder that the user asked for is neither created nor read here."""
        assert out_folder("train.py", Path("mine")) == here / "mine"
        assert not (here / "mine").exists()

    def test_says_that_none_can_be_made(self, here):
        """A place that cannot be written is an error that says what to do."""
        (here / "stallscope-runs").write_text("")

        with pytest.raises(RunFormatError, match=r"stallscope-runs .*: choose a folder with --out"):
            out_folder("train.py", None)


class TestRanks:
    @pytest.mark.slow
    def test_agree_without_communication(self, here):
        """The ranks of a launch take one folder, at whatever times they ask."""
        environment = {**os.environ, "PYTHONPATH": SOURCE}

        folders = [
            subprocess.run(
                [sys.executable, "-c", LAUNCHES],
                capture_output=True,
                text=True,
                check=True,
                env=environment,
            ).stdout.split()
            for _ in range(2)
        ]

        for ranks in folders:
            assert [Path(folder).name for folder in ranks] == ["rank0", "rank1"]
        assert [len({Path(folder).parent for folder in ranks}) for ranks in folders] == [1, 1]
        assert Path(folders[0][0]).parent != Path(folders[1][0]).parent

    def test_take_the_folder_that_is_given(self, here, monkeypatch):
        """Each rank has its own folder in the given one; a restart by torchrun has another."""
        be(monkeypatch, RANK=3, WORLD_SIZE=4)
        assert out_folder("train.py", Path("mine")) == here / "mine" / "rank3"

        be(monkeypatch, TORCHELASTIC_RESTART_COUNT=1)
        assert out_folder("train.py", Path("mine")) == here / "mine-restart1" / "rank3"

    def test_of_several_machines(self, here, monkeypatch):
        """Machines share the launch's id, if there is one; else they ask."""
        be(monkeypatch, RANK=3, WORLD_SIZE=4, LOCAL_WORLD_SIZE=2, TORCHELASTIC_RUN_ID="job/7")
        assert out_folder("train.py", None).parent.name == "train-job-7"

        be(monkeypatch, TORCHELASTIC_RUN_ID="none")
        with pytest.raises(
            ArgumentError, match=r"these 4 ranks .* --out, or give torchrun an --rdzv-id"
        ):
            out_folder("train.py", None)
