"""A script runs as plain Python would run it: its environment, its output and its end."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import stallscope

SOURCE = str(Path(stallscope.__file__).parents[1])
DRIVER = '''
"""Script that runs a script as the command does; every entering and leaving is a line in a file."""
import os
import sys
from contextlib import contextmanager

from stallscope.errors import StallscopeError
from stallscope.run.script import end_with, run_script

def say(word):
    with open(os.environ["WATCHED"], "a") as log:
        print(word, file=log)

@contextmanager
def watching():
    say("in")
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == process:  # not in a process that the script forked
            say("out")
            trouble()

def trouble():
    match os.environ.get("TROUBLE"):
        case "refused":
            raise StallscopeError("no room: free some")
        case "mistake":
            raise OSError(28, "no room")

def main():
    module = sys.argv[1] == "-m"
    script, *args = sys.argv[1 + module:]
    try:
        error = run_script(script, args, module=module, watching=watching)
    except StallscopeError as refused:
        sys.exit(f"refused: {refused}")
    end_with(error)

if __name__ == "__main__":
    main()
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Go to an empty folder; the driver lies beside it."""
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "driver.py").write_text(DRIVER)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("WATCHED", str(tmp_path / "watched"))
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE}{os.pathsep}{tmp_path / 'driver'}")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return tmp_path / "here"


def python(*command, stdin="", flags=(), **variables):
    """Return what a new Python prints, and its exit code."""
    done = subprocess.run(
        [sys.executable, *flags, *command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **variables},
    )
    return done.stdout, done.stderr, done.returncode


def watched():
    """Return the driver's events since the last call."""
    log = Path(os.environ["WATCHED"])
    words = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return words


def ours(*command, **options):
    """Run the same by the driver, started as the program is, or for a module by `python -m`."""
    program = str(Path("../driver/driver.py").resolve())
    start = ["-m", "driver"] if command[0] == "-m" else [program]
    return *python(*start, *command, **options), watched()


def same(*command, words=("in", "out"), **options):
    """Assert that a script ends as under plain Python, with the same output and exit code."""
    plain = python(*command, **options)
    *outcome, seen = ours(*command, **options)
    assert tuple(outcome) == plain
    assert tuple(seen) == words
    return plain


def write(name, text):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return name


SEEN = """
    "The docstring."
    import sys, __main__
    print(sys.argv, sys.path, __name__, __file__, __package__, __doc__)
    print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent))
    print(vars(__main__) is globals(), sys.exc_info(), sys.excepthook is sys.__excepthook__)
"""
SPAWNS = """
    import multiprocessing, os, pickle, sys
    if len(sys.argv) > 3:  # forked, as a worker is
        multiprocessing.set_start_method("fork")

    class Thing:
        def __init__(self, value): self.value = value

    def double(thing):
        return Thing(thing.value * 2), __name__ == "__main__"

    if __name__ == "__main__":
        assert pickle.loads(pickle.dumps(Thing(3))).value == 3
        assert b"__main__" in pickle.dumps(Thing)
        with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
            print([(t.value, main) for t, main in pool.map(double, [Thing(1), Thing(2)])])
"""


class TestWhatAScriptSees:
    @pytest.mark.parametrize("path", ["see.py", "linked.py"])
    def test_file(self, here, path):
        """Arguments, import path and names are those that plain Python gives a file."""
        write("sub/see.py", SEEN)
        write("see.py", SEEN)
        Path("linked.py").symlink_to("sub/see.py")

        out, _, _ = same(path, "--lr", "1", "-m", "--", "--help")

        assert f"[{path!r}, '--lr', '1', '-m', '--', '--help'] [" in out

    @pytest.mark.parametrize("name", ["see", "pack"])
    def test_module(self, here, name):
        """Modules, also in a package, and a package with __main__.py see what they do in Python."""
        for file in ("see.py", "pack/see.py", "pack/__main__.py", "pack/sub/__main__.py"):
            write(file, SEEN)
        write("pack/__init__.py", "import sys; print('package', sys.argv)")

        same("-m", name, "--lr", "1")

    @pytest.mark.parametrize("flags", [["-O"], ["-Werror"]])
    def test_flags_of_python(self, here, flags):
        write("see.py", SEEN + "    print(sys.flags, sys.warnoptions, __debug__)\n")

        same("see.py", flags=flags)

    def test_siblings_relative_imports_and_the_input(self, here):
        """A script finds the modules beside it and in its package, and reads its own input."""
        write("sibling.py", "value = 1")
        write("pack/__init__.py", "")
        write("pack/other.py", "value = 2")
        write("pack/go.py", "import sys, sibling; from . import other; print(other, input())")
        write("go.py", "import sys, sibling; print(sibling, input(), sys.stdin.read())")

        same("go.py", stdin="one\ntwo\nthree")
        same("-m", "pack.go", stdin="one\ntwo\nthree")

    def test_the_name_in_its_help(self, here):
        write("train.py", "import argparse; argparse.ArgumentParser().parse_args()")

        assert "usage: train.py" in same("train.py", "--help")[0]
        assert same("train.py", "--no")[2] == 2
        same("-m", "train", "--no")

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_processes_of_its_own(self, here, method):
        """A pool works with classes of the script, whose main part runs only once."""
        write("pool.py", SPAWNS)
        write("pack/__init__.py", "")
        write("pack/pool.py", SPAWNS)

        out, _, _ = same("pool.py", method)
        same("-m", "pack.pool", method)

        assert out == f"[(2, {method == 'fork'}), (4, {method == 'fork'})]\n"

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_a_child_that_dies_at_its_start(self, here, method):
        write("dies.py", DIES)

        assert same("dies.py", method)[0] == "7\n"


DIES = """
    import multiprocessing, os, sys
    if __name__ == "__main__":
        child = multiprocessing.get_context(sys.argv[1]).Process(target=os._exit, args=(7,))
        child.start()
        child.join()
        print(child.exitcode)
"""


ENDS = {
    "an exit code": "import sys; sys.exit(3)",
    "exit with words": "import sys; print(1); sys.exit('no such data')",
    "an error": "def f():\n    return 1 / 0\nf()",
    "an error in a thread": """
        import threading
        threading.Thread(target=int, args=("x",)).start()
    """,
    "its own hook for errors": """
        import sys, traceback
        def hook(*error):
            print("mine", len(traceback.extract_tb(error[2])))
        sys.excepthook = hook
        1 / 0
    """,
    "a syntax error": "print(1)\nx = (\n",
    "an import error": "import no_such_module",
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
    "what it does at exit": """
        import atexit, sys
        atexit.register(lambda: print("at exit", sys.modules["__main__"].__name__))
        raise SystemExit(4)
    """,
}
FORKS = {"with an exit code": "sys.exit(3)", "by os._exit": "os._exit(5)"}


MODULES_TOO = ("an exit code", "an error")


class TestHowAScriptEnds:
    @pytest.mark.parametrize(
        ("case", "module"),
        [*((case, False) for case in ENDS), *((case, True) for case in MODULES_TOO)],
    )
    def test_same(self, here, case, module):
        write("go.py", ENDS[case])

        compiles = case != "a syntax error"
        words = ("in", "out") if module or compiles else ()
        same(*(["-m", "go"] if module else ["go.py"]), words=words)

    @pytest.mark.parametrize("case", FORKS)
    def test_forks_by_itself(self, here, case):
        """A forked process of the script ends as ever; only the first one leaves the watching."""
        write(
            "go.py",
            f"""
            import atexit, os, sys
            atexit.register(lambda: print("at exit"))
            child = os.fork()
            if not child:
                {FORKS[case]}
            else:
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            """,
        )

        same("go.py", flags=["-u"])

    def test_ends_at_once(self, here):
        """After os._exit or SIGTERM no code of ours runs."""
        write("exit.py", "import os; print('x', flush=True); os._exit(5)")
        write("term.py", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")

        assert same("exit.py", words=("in",))[2] == 5
        assert same("term.py", words=("in",))[2] == -signal.SIGTERM

    def test_interrupted_from_outside(self, here):
        """Ctrl-C ends the script by the signal, after the watching was left."""
        write("go.py", "print('on', flush=True)\nimport time\ntime.sleep(60)")
        with subprocess.Popen(
            [sys.executable, "-m", "driver", "go.py"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60)

        assert process.returncode == -signal.SIGINT
        assert error.startswith(f'Traceback (most recent call last):\n  File "{here}/go.py", line ')
        assert watched() == ["in", "out"]


class TestLeaving:
    @pytest.mark.parametrize(
        ("trouble", "message"),
        [
            ("refused", "stallscope: no room: free some\n"),
            ("mistake", "stallscope: the run may not be saved completely\n"),
        ],
    )
    @pytest.mark.parametrize("end", ["sys.exit(3)", "1 / 0"])
    def test_changes_nothing(self, here, trouble, message, end):
        """The error is printed, and the script's own end stays the same."""
        write("go.py", f"import sys\n{end}")
        plain = python("go.py")

        out, error, code, _ = ours("go.py", TROUBLE=trouble)

        assert (out, code) == (plain[0], plain[2])
        assert message in error
        assert error.endswith(plain[1])


class TestRefused:
    @pytest.mark.parametrize(
        ("command", "sentence"),
        [
            (["no.py"], "there is no script 'no.py'"),
            (["secret.py"], "script 'secret.py' cannot be read (Permission denied)"),
            (["-m", "no_such.module"], "there is no module 'no_such.module' (no 'no_such' in "),
            (["-m", "./train.py"], "there is no module './train.py'"),
        ],
    )
    def test_a_missing_script_is_refused(self, here, command, sentence):
        write("secret.py", "")
        Path("secret.py").chmod(0)
        if command == ["secret.py"] and os.access("secret.py", os.R_OK):
            pytest.skip("root may read everything")

        out, error, code, words = ours(*command)

        assert (out, code, words) == ("", 1, [])
        assert error.startswith(f"refused: {sentence}")


def test_loads_nothing_heavy(here):
    """A script that sets OMP_NUM_THREADS before it imports torch has the effect."""
    write("go.py", "import sys; print({'torch', 'numpy', 'polars'} & set(sys.modules))")

    assert same("go.py")[0] == "set()\n"


@pytest.mark.slow
def test_ranks_of_torchrun(here):
    write(
        "go.py",
        """
        import sys, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.tensor(dist.get_rank() + 1.0)
        dist.all_reduce(total)
        sys.stdout.write(f"{dist.get_rank()} {total.item()} {sys.argv} {__name__}\\n")
        dist.destroy_process_group()
        """,
    )
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    plain = python(*run, "go.py", "x")

    recorded = python(*run, "-m", "driver", "go.py", "x")

    assert sorted(recorded[0].splitlines()) == sorted(plain[0].splitlines())
    assert recorded[2] == plain[2] == 0
    assert sorted(watched()) == ["in", "in", "out", "out"]
