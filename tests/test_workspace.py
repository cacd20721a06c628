"""The private folder of a recording."""

import os
import subprocess
import sys
import tempfile

import pytest

from stallscope.errors import WorkspaceError
from stallscope.files import temporary_folder, workspace


def test_it_is_private_and_gone_afterwards(tmp_path):
    with pytest.raises(ZeroDivisionError), workspace(tmp_path) as folder:
        assert 0o700 == folder.stat().st_mode & 0o777
        (folder / "log").write_text("x")
        raise ZeroDivisionError

    assert [] == list(tmp_path.iterdir())


def test_the_folder_of_a_killed_process_is_deleted(tmp_path):
    code = (
        "import os, pathlib, signal, sys\n"
        "from stallscope.files import workspace\n"
        "with workspace(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert 1 == len(list(tmp_path.iterdir()))
    (tmp_path / "stallscope-of-mine").mkdir()

    with workspace(tmp_path) as folder, workspace(tmp_path) as second:
        assert {folder, second, tmp_path / "stallscope-of-mine"} == set(tmp_path.iterdir())


def test_a_forked_child_leaves_its_parents_folder(tmp_path):
    with workspace(tmp_path) as folder:
        if (pid := os.fork()) == 0:
            os._exit(_leave(folder))
        os.waitpid(pid, 0)
        assert folder.exists()


def _leave(folder) -> int:
    context = workspace(folder)
    context.__enter__()
    return 0


def test_a_folder_that_cannot_be_made(tmp_path):
    """The error has the system's reason, which need not be a want of space."""
    reason = r"cannot be written into .*none \(No such file or directory\): set TMPDIR"
    with pytest.raises(WorkspaceError, match=reason), workspace(tmp_path / "none"):
        pass


def test_no_folder_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])

    with pytest.raises(WorkspaceError, match=r"No usable temporary directory.*: set TMPDIR"):
        temporary_folder()
