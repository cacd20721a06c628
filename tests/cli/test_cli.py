"""The command line: output, its streams and exit codes."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from support import trace_format
from support.build_diagnosis import DECODE, HEALTHY, UNKNOWN, a_diagnosis
from support.build_notebook import NAME, install
from support.build_storage import a_storage, some_layouts
from support.build_tuning import a_full_tuning
from support.virtual_loop import a_loop
from typer.main import get_command
from typer.testing import CliRunner

import stallscope
from stallscope import files
from stallscope.cli import output
from stallscope.cli.main import app

COMMANDS = list(get_command(app).commands)
SOURCE = Path(stallscope.__file__).parents[1]
LOADERS = '''
"""A user's module."""
import later_imported_by_the_user
import os
import signal
import time
from torch.utils.data import DataLoader

class Numbers:
    def __init__(self, error=None): self.error = error
    def __len__(self): return 40
    def __getitem__(self, index):
        if isinstance(self.error, int) and index == 25:
            os.kill(os.getpid(), self.error)
        elif self.error and index == 25:
            raise self.error
        return float(index)

class Slow(Numbers):
    def __getitem__(self, index):
        time.sleep(0.01)
        return super().__getitem__(index)

def good(): return DataLoader(Numbers(), batch_size=2)
def slow_and_interrupted(): return DataLoader(Slow(KeyboardInterrupt()), batch_size=2)
def bad(): return DataLoader(Numbers(ZeroDivisionError("of mine")), batch_size=2)
def ended(): return DataLoader(Numbers(EOFError("truncated")), batch_size=2)
def pipe(): return DataLoader(Numbers(BrokenPipeError(32, "my socket")), batch_size=2)
def interrupted(): return DataLoader(Numbers(KeyboardInterrupt()), batch_size=2)
def terminated(): return DataLoader(Numbers(signal.SIGTERM), batch_size=2)
def hung_up(): return DataLoader(Numbers(signal.SIGHUP), batch_size=2)

class Spoils(Numbers):
    def __getitem__(self, index):
        if index == 9 and os.path.isdir("run"):
            os.rmdir("run")
            open("run", "w").close()
        return float(index)

def spoils(): return DataLoader(Spoils(), batch_size=2)
def broken(): raise ValueError("no disk")
def paired(): return good(), print
'''

OPS = """
import time
import torch
from torch.utils.data import DataLoader

class Slow:
    def __call__(self, value):
        time.sleep(0.01)
        return value + 1

class Double:
    def __call__(self, value):
        return value * 2

class Compose:
    def __init__(self, transforms): self.transforms = transforms
    def __call__(self, value):
        for one in self.transforms:
            value = one(value)
        return value

class Numbers:
    def __init__(self): self.transform = Compose([Slow(), Double()])
    def __len__(self): return 40
    def __getitem__(self, index): return self.transform(torch.tensor(float(index)))

class Stops(Numbers):
    asked = 0
    def __getitem__(self, index):
        Stops.asked += 1
        if Stops.asked > 20:  # the samples of this process are made by then
            raise KeyboardInterrupt
        return super().__getitem__(index)

def stops(): return DataLoader(Stops(), batch_size=2)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with a module of the user's, which no other test has imported."""
    (tmp_path / "mine.py").write_text(LOADERS)
    (tmp_path / "later_imported_by_the_user.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield tmp_path
    for name in {"mine", "ops", "later_imported_by_the_user"} - before:
        sys.modules.pop(name, None)


def stallscope_does(*arguments):
    """Run a command in this process."""
    result = CliRunner().invoke(app, arguments)
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


def a_process_of_stallscope(*arguments):
    """Run the program as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "stallscope", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONSAFEPATH": "1"},
    )


class TestHelp:
    @pytest.mark.parametrize(
        "command",
        [[], *([name] for name in COMMANDS if name not in ("run", "show"))],
    )
    def test_shows_examples(self, command):
        shown = CliRunner().invoke(app, [*command, "--help"]).stdout

        assert f"  stallscope {' '.join(command)}" in shown.partition("Examples:\n")[2]

    def test_is_shown_without_a_command(self):
        """Without a command the help is shown, which names every command."""
        shown = CliRunner().invoke(app, []).output

        assert all(f"\n  {name} " in shown for name in COMMANDS)

    def test_loads_no_heavy_library(self):
        """The help appears at once: neither torch nor polars nor Jupyter is loaded for it."""
        code = (
            "import atexit, sys; atexit.register(lambda: print(sorted({'torch', 'polars', "
            "'nbformat', 'matplotlib'} & set(sys.modules)))); "
            "from stallscope.cli.main import app; app(['--help'])"
        )
        out = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        assert out.stdout.splitlines()[-1] == "[]"

    def test_prints_the_version(self):
        shown = CliRunner().invoke(app, ["--version"]).stdout

        assert shown == f"stallscope {stallscope.__version__}\n"


def test_of_two_commands_with_one_folder_the_second_is_refused(here):
    """The first goes on, and its run is saved."""
    command = [sys.executable, "-m", "stallscope", "record", "mine:good", "--out", "both"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    texts = [process.communicate()[1] for process in both]

    assert [0, 2] == sorted(process.returncode for process in both)
    assert "another process saves into" in "".join(texts)
    assert stallscope.load("both").all_steps.height


MISTAKES = [
    (["record", "sample", "--batch", "3"], "--batch"),
    (["notebooks", "x", "--target", "no/where"], "stallscope: there is no 'no/where'"),
    (["diagnose", "mine:none"], "'mine' has no 'none'"),
    (["diagnose", "mine:paired", "--step", "1"], "has its own step"),
    (["diagnose", "mine:good", "--step", "-1"], "give a number of seconds"),
    (["diagnose", "mine:broken", "--html", "r.pdf"], "a name that ends in .html"),
    (["diagnose", "mine:broken", "--html", "no/where.html"], "cannot be written"),
    (["diagnose", "mine:good", "--budget", "0"], "budget_s=0.0"),
    (["diagnose", "mine:good", "--device", "gpu0"], "not a torch device"),
    (["lines", "mine:good", "--function", "Numbrs.__getitem__"], "mean 'Numbers.__getitem__'"),
    (["record", "mine:none", "--out", "new/run"], "stallscope: 'mine:none': 'mine' has no 'none'"),
    (["record", "mine:broken", "--out", "new/run"], "raised ValueError: no disk"),
    (["record", "mine:good", "--out", "used"], "--out used is not empty: give a new folder"),
    (["record", "mine:broken", "--out", "mine.py"], "stallscope: --out mine.py "),
    (["record", "mine:broken", "--out", "mine.py/run"], "stallscope: --out mine.py/run "),
    (["record", "mine:broken", "--out", "/proc/run"], "stallscope: --out /proc/run "),
    (["record", "mine:good", "--budget", "nan"], "budget"),
    (["record", "mine:good", "--budget", "0"], "budget"),
    (["record", "mine:good", "--batches", "0"], "batches"),
    (["trace", "run", "t.txt"], "a trace is .json or .json.gz"),
    (["trace", "nowhere", "t.json"], "is not a saved result: there is no such folder"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_a_mistake_is_one_line(here, arguments, words):
    """The line is on stderr, with exit code 2; nothing is measured or written."""
    a_loop({"decode": 2.0}, workers=2, batches=8).save(here / "run")
    a_loop({"decode": 2.0}, workers=2, batches=8).save(here / "used")
    before = set(here.rglob("*"))

    done = stallscope_does(*arguments)

    assert (2, True) == (done.returncode, words in done.stderr), done.stderr
    by_typer = done.stderr.startswith("Usage: ")
    assert by_typer or 1 == done.stderr.count("\n")
    assert before == {path for path in here.rglob("*") if "__pycache__" not in path.parts}


class TestNotebooks:
    @pytest.fixture(autouse=True)
    def installed(self, here, monkeypatch):
        monkeypatch.setattr(files, "__file__", str(install(here / "site")))

    def test_prints_the_paths_of_the_copies(self, here):
        result = CliRunner().invoke(app, ["notebooks", "x", "--target", "mine:good"])

        assert result.stdout == f"{here / 'x' / NAME}\n"
        assert "mine:good" in (here / "x" / "my_target.py").read_text()

    def test_lab_over_ssh_prints_the_tunnel(self, here, monkeypatch):
        """The browser is on the other machine: none is opened here."""
        asked = {}

        def open_lab(*_, browser, announce, **__):
            asked["browser"] = browser
            announce("http://127.0.0.1:8891/lab?token=t")

        monkeypatch.setenv("SSH_CONNECTION", "10.0.0.2 5555 10.0.0.1 22")
        monkeypatch.setattr("getpass.getuser", lambda: "ada")
        monkeypatch.setattr("stallscope.lab.notebooks.open_lab", open_lab)

        shown = CliRunner().invoke(app, ["lab", "--dir", "y"])

        assert not asked["browser"]
        assert "ssh -N -L 8891:127.0.0.1:8891 ada@10.0.0.1\n" in shown.output

    def test_lab_opens_the_first_notebook(self, here, monkeypatch):
        asked = {}
        monkeypatch.setattr(
            "stallscope.lab.notebooks.open_lab",
            lambda *args, **named: asked.update(named, args=args),
        )

        CliRunner().invoke(app, ["lab", "--dir", "y", "--no-browser", "--port", "8890"])

        assert asked["args"] == (here / "y", here / "y" / NAME)
        assert (asked["browser"], asked["port"]) == (False, 8890)


@pytest.fixture
def answered(monkeypatch):
    """Let a verb answer with a result; the measuring is tested elsewhere."""

    def answer(verb, result):
        """Return the arguments that the verb gets."""
        asked = {}

        def measure(target, **named):
            asked.update(named, target=target)
            return result

        monkeypatch.setattr(stallscope, verb, measure)
        return asked

    return answer


class TestAnswers:
    @pytest.mark.parametrize(
        ("verb", "result", "words"),
        [
            ("tune", a_full_tuning(), "num_workers=4 gives 1.91× the throughput"),
            ("storage", a_storage(), "what the step needs"),
            ("layouts", some_layouts(), ""),
        ],
    )
    def test_prints_the_answer(self, here, answered, verb, result, words):
        asked = answered(verb, result)

        done = stallscope_does(verb, "mine:good", "--step", "0.1", "--budget", "9")

        assert words in done.stdout
        assert (9, 0.1) == (asked["budget_s"], asked["target"].simulated_step_s)

    def test_tuning_as_json(self, here, answered):
        answered("tune", a_full_tuning())

        printed = json.loads(stallscope_does("tune", "mine:good", "--json").stdout)

        assert (4, "recommended") == (printed["best"]["num_workers"], printed["best"]["status"])
        assert len(printed["settings"]) == a_full_tuning().trials.height
        assert "DataLoader(..., num_workers=4)" == printed["code"]

    def test_storage_as_json(self, here, answered):
        """The JSON has every way of reading; `--redact` leaves names out."""
        answered("storage", a_storage())

        plain, redacted = (
            stallscope_does("storage", "mine:good", "--json", *options).stdout
            for options in ([], ["--redact"])
        )

        assert a_storage().table().height == len(json.loads(plain)["reads"])
        assert "/mnt/photos" in plain
        assert "/mnt/photos" not in redacted

    def test_layouts_as_json(self, here, answered):
        asked = answered("layouts", some_layouts())
        options = ["layouts", "mine:good", "--samples", "99", "--folder", "/data"]

        plain = stallscope_does(*options).stdout
        printed = json.loads(stallscope_does(*options, "--json").stdout)

        assert (99, Path("/data"), 60.0) == tuple(
            asked[name] for name in ("samples", "folder", "budget_s")
        )
        assert printed["answer"] in plain.replace("\n", " ")
        assert some_layouts().table().height == len(printed["layouts"])


class TestDiagnose:
    @pytest.fixture
    def answer_with(self, here, answered):
        """Let the command find a verdict."""
        name = str(here / "mine.py")
        return lambda verdict: answered("diagnose", a_diagnosis(verdict, parts=False, name=name))

    @pytest.mark.parametrize(("verdict", "code"), [(HEALTHY, 0), (DECODE, 3), (UNKNOWN, 4)])
    def test_ends_with_a_code_for_programs(self, answer_with, verdict, code):
        """Exit code 0 is healthy, 3 a cause, 4 inconclusive."""
        answer_with(verdict)

        result = CliRunner().invoke(app, ["diagnose", "mine:good"])

        assert (code, verdict.title) == (result.exit_code, result.stdout.splitlines()[0])

    @pytest.mark.slow
    def test_a_signal_still_gives_a_verdict(self, here):
        """The verdict and the report use the measurements so far, and say so."""
        done = stallscope_does("diagnose", "mine:terminated", "--html", "r.html")

        assert 143 == done.returncode, done.stderr
        assert "verdict: " in done.stdout
        assert "ended early, by SystemExit, while " in done.stdout
        assert "ended early" in (here / "r.html").read_text()

    def test_passes_its_options_on(self, answer_with):
        asked = answer_with(HEALTHY)
        options = ["--budget", "7", "--device", "cpu", "--step", "0.2"]

        CliRunner().invoke(app, ["diagnose", "mine:good", *options])

        assert (7.0, "cpu") == (asked["budget_s"], asked["device"])
        assert 0.2 == asked["target"].step.seconds
        assert "mine:good" == asked["target"].name

    def test_writes_a_report(self, here, answer_with):
        answer_with(DECODE)

        result = CliRunner().invoke(app, ["diagnose", "mine:good", "--html", "r.html"])

        assert "stallscope: written to r.html" in result.stderr
        assert DECODE.title in (here / "r.html").read_text()

    @pytest.mark.parametrize("form", [[], ["--json"]])
    def test_can_leave_paths_out(self, here, answer_with, form):
        """`--redact` holds for text, JSON and the report."""
        answer_with(DECODE)
        arguments = ["diagnose", "mine:good", "--html", "r.html", *form]

        shown = CliRunner().invoke(app, arguments).stdout
        hidden = CliRunner().invoke(app, [*arguments, "--redact"]).stdout

        assert str(here) in shown
        assert DECODE.title in hidden
        assert str(here) not in hidden + (here / "r.html").read_text()

    @pytest.mark.slow
    def test_measures_for_real(self, here):
        """The output is the JSON alone; its verdict agrees with the exit code."""
        arguments = ("mine:good", "--budget", "3", "--step", "0.01", "--json")
        done = a_process_of_stallscope("diagnose", *arguments)

        printed = json.loads(done.stdout)
        codes = {"healthy": 0, "inconclusive": 4}
        assert codes.get(printed["verdict"], 3) == done.returncode, done.stderr
        assert 0.01 == printed["circumstances"]["simulated_step_s"]
        assert "Traceback" not in done.stderr


class TestLines:
    def test_prints_the_listings(self, here):
        done = stallscope_does("lines", "mine:good", "--samples", "8", "--budget", "2")

        assert done.returncode == 0, done.stderr
        assert "of `Numbers.__getitem__`" in done.stdout.splitlines()[0]
        assert "return float(index)" in done.stdout

    def test_an_interrupt_keeps_what_was_timed(self, here):
        done = stallscope_does("lines", "mine:slow_and_interrupted", "--samples", "32")

        assert 130 == done.returncode, done.stderr
        assert "of `Slow.__getitem__` takes" in done.stdout.splitlines()[0]


class TestOrders:
    def test_an_interrupt_keeps_what_was_compared(self, here):
        (here / "ops.py").write_text(OPS)
        done = stallscope_does("orders", "ops:stops", "--samples", "2", "--budget", "5")

        assert 130 == done.returncode, done.stderr
        assert "as it is" in done.stdout
        assert "ended early, by KeyboardInterrupt" in done.stdout


class TestRecord:
    def test_prints_a_table_and_saves_the_run(self, here):
        """The table goes to stdout, all else to stderr, and the run can be loaded again."""
        done = stallscope_does("record", "mine:good", "--batches", "5", "--out", "run")

        assert done.returncode == 0, done.stderr
        assert "getitem" in done.stdout
        assert "stallscope: saved in run" in done.stderr
        assert stallscope.load("run").settings.name == "mine:good"

    @pytest.mark.slow
    def test_shows_the_users_exception_with_our_notes(self, here):
        """An exception of the dataset's is a traceback with notes, exit code 1, and a saved run."""
        done = a_process_of_stallscope("record", "mine:bad", "--out", "run")

        assert done.returncode == 1
        assert "ZeroDivisionError: of mine" in done.stderr
        assert 'mine.py", line' in done.stderr
        assert "stallscope: the main process" in done.stderr
        assert "getitem" in done.stdout
        assert "partial result" in done.stderr
        assert stallscope.load("run").all_steps.height == 12

    @pytest.mark.parametrize(
        ("how", "status"), [("interrupted", 130), ("terminated", 143), ("hung_up", 129)]
    )
    def test_a_signal_keeps_what_was_recorded(self, here, how, status):
        """Ctrl-C, SIGTERM and SIGHUP: a table, a saved run and a shell's exit code."""
        done = stallscope_does("record", f"mine:{how}", "--out", "run")

        assert (done.returncode, "Traceback" in done.stderr) == (status, False)
        assert "getitem" in done.stdout
        assert stallscope.load("run").all_steps.height == 12
        assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)


class TestTrace:
    def test_writes_the_file_and_prints_its_name(self, here):
        """The name goes to stdout, the advice on opening it to stderr."""
        a_loop({"decode": 2.0}, workers=2, batches=8).save(here / "run")

        result = CliRunner().invoke(app, ["trace", "run", "new/t.json.gz"])

        assert (result.exit_code, result.stdout) == (0, "new/t.json.gz\n")
        assert "ui.perfetto.dev" in result.stderr
        assert trace_format.faults(trace_format.read(here / "new" / "t.json.gz")) == []

    def test_can_leave_names_out(self, here):
        """`--redact` hides names of a saved run, in a trace and in a terminal."""
        run = a_loop({"decode": 2.0}, workers=2, batches=8)
        replace(run, notes=("left out: /home/me/Secret.heic",)).save(here / "run")

        def shown(*options):
            result = CliRunner().invoke(app, ["show", "run", *options])
            CliRunner().invoke(app, ["trace", "run", "t.json", *options])
            return result.stdout + (here / "t.json").read_text()

        assert 2 == shown().count("Secret.heic")
        assert "Secret" not in shown("--redact")


@pytest.mark.parametrize(
    ("start", "command"),
    [
        (a_process_of_stallscope, ["record", "sample"]),
        (stallscope_does, ["notebooks", "x"]),
        (stallscope_does, ["lab"]),
        (stallscope_does, ["trace", "x", "y.json"]),
    ],
)
def test_a_current_folder_that_is_gone_is_one_sentence(here, monkeypatch, start, command):
    """Each command in a deleted folder says so and does nothing."""
    gone = here / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    done = start(*command)

    assert done.returncode == 2
    assert done.stderr == "stallscope: the current folder is gone: cd to one that exists\n"


class TestReadersThatGoAway:
    @pytest.mark.parametrize("is_stdout", [True, False])
    def test_end_the_command_quietly(self, monkeypatch, is_stdout):
        """The exit code is that of SIGPIPE for a closed pipe, and 1 for a full disk."""
        saved = []
        end, file = os.pipe() if is_stdout else (None, os.open("/dev/full", os.O_WRONLY))
        if end:
            os.close(end)
        with os.fdopen(file, "w") as unread:
            monkeypatch.setattr(sys, "stdout", unread)
            with pytest.raises(SystemExit) as ended, output.report_errors():
                output.show("a table", save=lambda _: saved.append(1) or "saved")

        assert (141 if is_stdout else 1) == ended.value.code
        assert [1] == saved


PLANTED = (
    *("polars", "torch", "numpy", "PIL", "psutil", "typer", "matplotlib", "line_profiler"),
    *("multiprocessing", "pickle", "signal", "socket", "json", "random", "secrets", "tempfile"),
    *("typing", "pathlib", "dataclasses", "inspect", "logging"),
)
"""Modules that stallscope imports."""
AS_COMMAND = "import sys; sys.path[0] = '/nowhere'; from stallscope.cli.main import main; main()"
"""Program of the installed command; Python searches the command's folder first."""


@pytest.mark.slow
def test_a_command_runs_no_code_of_the_folder_that_it_measures(tmp_path):
    """The folder holds the data; its modules are no target."""
    (tmp_path / "imgs").mkdir()
    for number in range(6):
        Image.new("RGB", (8, 8)).save(tmp_path / "imgs" / f"{number}.png")
    for name in PLANTED:
        code = "import sys; print('PLANTED', __name__, file=sys.stderr); sys.exit(9)"
        (tmp_path / f"{name}.py").write_text(code)
    environment = {name: value for name, value in os.environ.items() if "PYTHONSAFEPATH" != name}
    few = ("--batches", "1", "--warmup", "0")

    done = subprocess.run(
        [sys.executable, "-c", AS_COMMAND, "record", "imgs", *few],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**environment, "PYTHONPATH": str(SOURCE)},
    )

    assert "PLANTED" not in done.stderr
    assert 0 == done.returncode, done.stderr
