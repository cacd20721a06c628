"""Every benchmark starts and ends; only its own run says what it measures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stallscope

FOLDER = Path(__file__).parent / "benchmarks"
COMMANDS = {file.name for file in FOLDER.glob("*.py")}
LONG = {
    *("notebooks.py", "power.py", "prediction.py", "soak.py", "storage_truth.py"),
    "third_party_scripts.py",
}
"""Benchmarks whose `--smoke` takes minutes: not in CI."""
LAUNCHER = """
import json, os, runpy, sys
from pathlib import Path
import matplotlib.figure, polars, scipy.stats  # once for all of them: that alone takes seconds
import torchvision.transforms.v2

folder, out, *names = sys.argv[1:]
as_new = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
codes = {}
for name in names * 2:  # what fails is tried twice: in so short a run a sampler may meet nothing
    if codes.get(name) == 0:
        continue
    if pid := os.fork():
        codes[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        continue
    for number, ending in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(out, f"{name}.{ending}"), as_new), number)
    sys.argv = [str(Path(folder, name)), "--smoke"]
    sys.path[0] = folder  # as Python does for a script
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()
print(json.dumps(codes))
"""


@pytest.mark.thorough
@pytest.mark.flaky(reruns=0)  # minutes long, and it tries again itself
def test_every_benchmark_runs_to_its_end(tmp_path):
    """With `--smoke` each ends well, warns once that its numbers mean nothing, and prints them."""
    pytest.importorskip("torchvision")
    commands = sorted(COMMANDS - LONG)
    package = str(Path(stallscope.__file__).parents[1])
    out, here = tmp_path / "out", tmp_path / "here"
    out.mkdir()
    here.mkdir()
    launched = subprocess.run(
        [sys.executable, "-c", LAUNCHER, str(FOLDER), str(out), *commands],
        stdout=subprocess.PIPE,
        text=True,
        cwd=here,
        env={**os.environ, "PYTHONPATH": package},
        check=True,
    )

    failed = {
        name: (out / f"{name}.err").read_text()[-2000:]
        for name, code in json.loads(launched.stdout).items()
        if code
    }
    assert not failed, "\n".join(f"{name}:\n{error}" for name, error in failed.items())
    for name in commands:
        lines = (out / f"{name}.out").read_text().splitlines()
        assert lines.count("smoke: too short to mean anything") == 1, name
        assert len(lines) > 3 or "no CUDA device: nothing measured" in lines, name
    assert not [*here.iterdir()], "a benchmark left a file"


@pytest.mark.slow
def test_a_tool_is_asked_and_judged():
    """The runner of the questions takes any command; here the cause is right, the place is not."""
    answer = {"code": "collate", "title": "slow", "next_step": "vectorize it"}
    asked = subprocess.run(
        [
            *(sys.executable, FOLDER.parent / "real_questions", "--only", "graph-batches"),
            *("--tool", f"echo '{json.dumps(answer)}'".replace("{", "{{").replace("}", "}}")),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1 0 0 1" == " ".join(asked.stdout.splitlines()[-1].split()[1:5])
