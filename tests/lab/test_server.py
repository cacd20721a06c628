"""JupyterLab listens on this machine only, wants its token, and is gone afterwards."""

import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.build_notebook import a_notebook, write

import stallscope
from stallscope.files import sweep

SOURCE = Path(stallscope.__file__).parents[1]
OPEN = (
    "import sys; sys.path[0] = '/nowhere'; from pathlib import Path; "
    "from stallscope.lab.notebooks import open_lab; "
    "folder, say = Path(sys.argv[1]), lambda address: print(address, flush=True); "
    "open_lab(folder, folder / 'a b.ipynb', browser=False, announce=say)"
)
CARELESS = "c.IdentityProvider.token = ''; c.ServerApp.ip = '0.0.0.0'; c.ServerApp.password = ''\n"


def careless(place, monkeypatch):
    """Return a folder with a notebook of a user who turned all of Jupyter's locks off."""
    (place / "x").mkdir()
    write(a_notebook(), place / "x" / "a b.ipynb")
    for name in ("config", "runtime"):
        (place / name).mkdir()
        monkeypatch.setenv(f"JUPYTER_{name.upper()}_DIR", str(place / name))
    for name in ("jupyter_server_config.py", "jupyter_lab_config.py"):
        (place / "config" / name).write_text(CARELESS)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    return place / "x"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder of a user without Jupyter's locks."""
    return careless(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Yield the process and the address of that user's JupyterLab."""
    place = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch, running(careless(place, patch)) as opened:
        yield opened


@contextmanager
def running(folder):
    """Yield the process that runs JupyterLab, and the address that it announces."""
    command = [sys.executable, "-c", OPEN, str(folder)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate(timeout=90)


def status(address, method="GET", token=None):
    headers = {"Authorization": f"token {token}"} if token else {}
    request = urllib.request.Request(address, method=method, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, answer.geturl()
    except urllib.error.HTTPError as error:
        return error.code, address


def test_only_the_token_opens_it(lab):
    _, address = lab
    bare, _, token = address.partition("?token=")

    assert len(token) >= 40
    assert bare.endswith("/lab/tree/a%20b.ipynb")
    assert status(address) == (200, address)
    assert "/login?" in status(bare)[1]
    assert status(bare.replace("/lab/tree/", "/api/contents/"))[0] == 403


def test_asks_no_question_over_the_answer(lab):
    """JupyterLab's offer of news from the network is turned off."""
    with urllib.request.urlopen(lab[1], timeout=60) as answer:  # noqa: S310
        page = answer.read().decode()

    assert '"news": {"disabled": true}' in page


def test_listens_on_this_machine_only(lab):
    process, address = lab
    server = psutil.Process(process.pid)
    heard = [c.laddr for c in server.net_connections("tcp") if c.status == "LISTEN"]

    assert heard
    assert {place.ip for place in heard} == {"127.0.0.1"}
    assert f"127.0.0.1:{heard[0].port}/" in address


def test_the_token_is_on_no_command_line(lab):
    """Other users of the machine, who can read command lines, do not learn the token."""
    process, address = lab
    token = address.partition("?token=")[2]
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]

    assert not [member for member in family if token in " ".join(member.cmdline())]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_leaves_no_process(folder, number):
    """Ctrl-C ends JupyterLab and its kernels; so does `kill -9`, where no code of ours runs."""
    with running(folder) as (process, address):
        bare, _, token = address.partition("/lab/tree/a%20b.ipynb?token=")
        assert status(f"{bare}/api/kernels", "POST", token)[0] == 201
        family = psutil.Process(process.pid).children(recursive=True)
        assert family

        process.send_signal(number)
        process.wait(timeout=90)

        assert psutil.wait_procs(family, timeout=60)[1] == []
    sweep(Path(tempfile.gettempdir()))  # as the next start does


@pytest.mark.slow
def test_runs_no_code_of_the_current_folder(folder, monkeypatch):
    """Neither modules with the names of Jupyter's own, nor settings that are code."""
    here, ran = folder.parent, folder.parent / "ran"
    for name in ("tornado", "jupyterlab", "jupyter_server", "traitlets", "jupyter_lab_config"):
        (here / f"{name}.py").write_text(f"open({str(ran)!r}, 'w').close()")
    monkeypatch.chdir(here)
    with running(folder) as (_, address):
        assert status(address)[0] == 200

    assert not ran.exists()
