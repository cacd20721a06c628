"""Computing with polars in a child: the result comes back, and this process is unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from stallscope import apart as apart_module
from stallscope.apart import apart


@pytest.fixture
def childlike(monkeypatch):
    """Put this process in the state before polars is used, with workers to fork."""
    monkeypatch.setattr(apart_module, "polars_runs", lambda: False)
    monkeypatch.setattr(apart_module, "_forks_workers", lambda: True)


@pytest.mark.usefixtures("childlike")
class TestAChild:
    def test_of_this_process(self):
        """The child computes with all the memory of this process."""
        frame = pl.DataFrame({"a": [1, 2, 3]})

        pid, selected = apart(lambda: (os.getpid(), frame.select("a")))

        assert pid != os.getpid()
        assert frame.equals(selected)

    def test_that_asks_for_another(self):
        outer, inner = apart(lambda: (os.getpid(), apart(os.getpid)))

        assert outer == inner

    def test_that_raises(self):
        with pytest.raises(ZeroDivisionError) as caught:
            apart(lambda: 1 / 0)

        assert "<lambda>" == caught.traceback[-1].name


class TestHere:
    def test_where_polars_threads_run(self, monkeypatch):
        """With polars' threads already running, the result is computed in this process."""
        monkeypatch.setattr(apart_module, "_forks_workers", lambda: True)
        pl.DataFrame({"a": [1]}).filter(pl.col("a") > 0)

        assert apart_module.polars_runs()
        assert os.getpid() == apart(os.getpid)

    def test_where_workers_are_spawned(self, monkeypatch):
        """Workers that are spawned do not have this process's threads, so no child is needed."""
        monkeypatch.setattr(apart_module, "polars_runs", lambda: False)
        monkeypatch.setattr(apart_module.multiprocessing, "get_start_method", lambda **_: "spawn")

        assert os.getpid() == apart(os.getpid)


FORKS = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are spawned")


PROGRAM = """
from support.faulty_datasets import UsesPolars
from torch.utils.data import DataLoader
import stallscope as ss
from stallscope.apart import polars_runs
from stallscope.lab.story import Story

loader, step = DataLoader(UsesPolars(), 2, num_workers=2), ss.simulated_step(0.001)
"""
TWO_RECORDINGS = """
run = ss.record(loader, batches=4)
str(run), run.samples(), run.stages(), run.exposed(), run.plot("naive")
story = Story.open(ss.target(loader))
story._save([{"change": "crop first", "gain_factor": 2.0, "says": "faster"}])
str(story), story.table()
print(polars_runs(), ss.record(loader, batches=4).samples().height)
"""


@FORKS
@pytest.mark.slow
def test_a_dataset_that_uses_polars_is_measured_again(tmp_path):
    """Tables, text, pictures and a notebook's story leave no polars thread in between."""
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM + TWO_RECORDINGS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )

    assert not process.returncode, process.stderr[-2000:]
    assert "False 8\n" == process.stdout
