"""`stallscope run`: a script behaves, prints and ends as without it, and leaves a run."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import stallscope as ss
from stallscope.run.load import follow
from stallscope.views.panels import ENDED

SUPPORT = Path(__file__).parents[1] / "support"
SCRIPT = SUPPORT / "training_script.py"
WATCHED = [sys.executable, "-m", "stallscope", "run", "--out", "out"]


def ran(command, where):
    """Run a command; return its exit code, stdout and stderr without stallscope's lines."""
    done = subprocess.run(
        [*map(str, command)], cwd=where, capture_output=True, text=True, timeout=300, check=False
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("stallscope: ")]
    return done.returncode, done.stdout, lines


@pytest.mark.slow
def test_a_script_behaves_as_under_plain_python(tmp_path):
    """Output, traceback and exit code are plain Python's, and the run can be loaded."""
    arguments = [SCRIPT, "--end", "raise", "--by-hand"]

    plain = ran([sys.executable, *arguments], tmp_path)
    assert plain == ran([*WATCHED, *arguments], tmp_path)

    run = ss.load(tmp_path / "out")
    assert 24 == run.all_steps.height
    assert {0, 1} == set(run.all_steps["worker"])
    assert [12] == [other_run.all_steps.height for other_run in run.others]


@pytest.mark.slow
@pytest.mark.parametrize("own", [[], pytest.param(["--own"], marks=pytest.mark.thorough)])
def test_ranks_that_the_script_spawns_are_recorded(tmp_path, own):
    """Each spawned rank has a run of its own; the title names the slow rank."""
    code, printed, _ = ran([*WATCHED, SUPPORT / "spawning_script.py", *own], tmp_path)

    assert (0, "trained\n") == (code, printed)
    ranks = tmp_path / ("out-children" if own else "out")
    assert ["rank0", "rank1"] == sorted(folder.name for folder in ranks.iterdir())
    assert own == [] or (tmp_path / "out" / "run.json").exists()
    diagnosis = ss.diagnose(ranks)
    assert diagnosis.verdict.title.startswith("rank 1, which the others wait for: "), diagnosis
    same = "1 rank read the same samples as rank 0: give the loaders a DistributedSampler"
    assert same in diagnosis.notes


@pytest.mark.slow
def test_is_followed_while_it_runs(tmp_path):
    """A terminal and a panel show the run until it ends; its output is that of a plain run."""
    script, out = [SCRIPT, "--epochs", "8"], tmp_path / "out"
    plain = ran([sys.executable, *script], tmp_path)
    out.mkdir()
    pipes = {"stdout": subprocess.PIPE, "text": True, "cwd": tmp_path}
    show = [sys.executable, "-m", "stallscope", "show", "--follow", "out"]
    with (
        subprocess.Popen([*WATCHED, *script], **pipes) as training,
        subprocess.Popen(show, **pipes) as terminal,
    ):
        run = next(follow(out))
        panel = run.panel("live")
        printed, _ = training.communicate(timeout=120)
        shown, _ = terminal.communicate(timeout=120)

    assert "the process still runs: this is its recording so far" in run.notes
    assert plain[:2] == (training.returncode, printed)
    whole = ss.load(out)
    assert run.all_steps.height < whole.all_steps.height == 96
    assert shown.endswith(f"{whole}\n")
    assert not terminal.returncode
    status, _, below = panel.children
    deadline = time.monotonic() + 60
    while status.value != ENDED and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (ENDED, whole._repr_mimebundle_()["text/html"]) == (status.value, below.value)


@pytest.mark.slow
def test_ends_with_its_verdict(tmp_path):
    """The verdict follows the script's output in a few lines; `--html` writes a report."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time, torch\n"
        "from torch.utils.data import DataLoader\n"
        "class Slow(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 96\n"
        "    def __getitem__(self, i): time.sleep(0.02); return torch.ones(2)\n"
        "for batch in DataLoader(Slow(), 4, num_workers=1): batch.sum()\n"
        "os.chdir('/')\n"
    )

    done = subprocess.run(
        [*WATCHED, "--html", "why.html", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    messages = [line for line in done.stderr.splitlines() if line.startswith("stallscope: ")]
    assert any("verdict: " in line for line in messages)
    assert len(messages) <= 12
    assert "__getitem__" in (tmp_path / "why.html").read_text()


@pytest.mark.slow
def test_what_a_script_has_written_is_left_alone(tmp_path):
    """The script writes into the folder of the run."""
    (tmp_path / "empty.py").write_text("open('out/mine.txt', 'w').write('results')\n")

    subprocess.run([*WATCHED, "empty.py"], cwd=tmp_path, capture_output=True, check=True)

    assert "results" == (tmp_path / "out" / "mine.txt").read_text()


@pytest.mark.parametrize("script", ["no.py", "/dev/null"])
def test_a_missing_script_is_one_sentence(tmp_path, script):
    done = subprocess.run(
        [*WATCHED, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert script in done.stderr


def test_workers_that_die_at_their_start_are_no_missing_loader(tmp_path):
    """The script catches their error and ends as usual; no batch was seen."""
    (tmp_path / "dies.py").write_text(
        "import os\n"
        "from torch.utils.data import DataLoader\n"
        "try: list(DataLoader(range(8), num_workers=1, worker_init_fn=lambda _: os._exit(3),\n"
        "    multiprocessing_context='fork'))\n"
        "except RuntimeError: print('caught')\n"
    )

    done = subprocess.run(
        [*WATCHED, "dies.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert "caught\n" == done.stdout
    assert "nothing was recorded: no batch" in done.stderr
