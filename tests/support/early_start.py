"""Commands of stallscope that begin with its imports made: forked by a process that has made them.

`python -m support.early_start` reads orders from stdin, a JSON object a line, and answers each with
a line: {"argv", "cwd", "env", "out", "err"} starts one in a session of its own and gives its pid;
{"pid"} asks how it ended: the status as of `os.waitpid`, or null.
"""

import importlib
import json
import os
import sys
import tempfile

COSTLY = [
    "torch.utils.data",
    "stallscope",
    *(f"stallscope.{one}" for one in ("cli", "diagnose.diagnose", "orders.orders", "lines.lines")),
    *("stallscope.views.report", "stallscope.lab.server", "matplotlib.pyplot"),
]


def serve():
    """Answer until stdin ends; also returns in each command's process, with its arguments set."""
    for line in sys.stdin:
        order = json.loads(line)
        if "pid" in order:
            pid, status = os.waitpid(order["pid"], os.WNOHANG)
            print(json.dumps(status if pid else None), flush=True)
        elif pid := os.fork():
            print(pid, flush=True)
        else:
            become(order)
            return True
    return False


def become(order):
    """Be the process of a command, as if a shell had started it."""
    os.setsid()
    os.chdir(order["cwd"])
    os.environ.update(order["env"])
    tempfile.tempdir = None
    write = os.O_WRONLY | os.O_CREAT
    for number, path in enumerate((os.devnull, order["out"], order["err"])):
        file = os.open(path, write if number else os.O_RDONLY)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["stallscope", *order["argv"]]


if __name__ == "__main__":
    for name in COSTLY:
        importlib.import_module(name)
    if serve():
        from stallscope.cli.main import main

        main()
