"""JupyterLab as a child of this process: on this machine only, behind a token, and ended with it.

Every user of the machine can read a command line, so the token is in a private settings file, which
also outranks a user's settings that turn the token off.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

from stallscope.errors import StallscopeError
from stallscope.files import workspace
from stallscope.interrupts import ended_politely

if TYPE_CHECKING:
    from collections.abc import Callable


_START_S: Final = 60.0
_STOP_S: Final = 15.0
"""JupyterLab ends its kernels first, which can take some seconds."""


def open_lab(
    folder: Path,
    notebook: Path,
    *,
    browser: bool = True,
    port: int | None = None,
    announce: Callable[[str], object] = lambda _: None,
) -> None:
    """Start JupyterLab with a notebook, and wait until it ends or this process is interrupted.

    Ctrl-C, SIGTERM and SIGHUP end JupyterLab and its kernels before this process; if this process
    is killed, they end themselves.

    Args:
        folder: root of JupyterLab's file browser.
        notebook: is opened; a file in that folder.
        browser: let JupyterLab open the user's browser.
        port: the only one to try; None: the first free one from 8888.
        announce: is called with the address, which holds the token, once it answers.

    Raises:
        StallscopeError: JupyterLab does not start; its own output says why.
    """
    with workspace() as private, ended_politely():
        process = subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
            _command(folder, notebook, browser=browser, port=port),
            env=_environment(private),
            cwd=private,  # with -m Python looks there first, and the current folder is anybody's
            stdin=subprocess.PIPE,  # closed when this process is no more, see `lab.jupyter`
            start_new_session=True,  # the terminal's Ctrl-C reaches this process alone
        )
        try:
            announce(_address(process, notebook.relative_to(folder)))
            process.wait()
        finally:
            _stop(process)


def _command(folder: Path, notebook: Path, *, browser: bool, port: int | None) -> list[str]:
    fixed = [] if port is None else [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    return [
        *(sys.executable, "-m", "stallscope.lab.jupyter"),
        *("--log-level=WARN", "--LabApp.log_level=WARN"),
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.allow_root=True",  # root is the usual user of a container
        f"--ServerApp.open_browser={browser}",
        f"--ServerApp.root_dir={folder}",
        *fixed,
        str(notebook),
    ]


def _environment(private: Path) -> dict[str, str]:
    """Return the user's environment, with the token and this interpreter's kernel first.

    JupyterLab starts in another folder, so relative paths are made absolute.
    """
    settings = json.dumps(
        {
            "IdentityProvider": {"token": secrets.token_hex(24)},
            "LabApp": {"news_url": None},  # else it asks, over the answer, whether to fetch news
        }
    )
    for name in ("jupyter_server_config.json", "jupyter_lab_config.json"):
        (private / name).write_text(settings, encoding="utf-8")
    theirs = os.environ.get("JUPYTER_CONFIG_PATH")
    path = os.pathsep.join([str(private), *([theirs] if theirs else [])])
    modules = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {
        **os.environ,
        "JUPYTER_CONFIG_PATH": path,
        "JUPYTER_PREFER_ENV_PATH": "1",
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, modules)),
    }


def _address(process: subprocess.Popen[Any], notebook: Path) -> str:
    """Return the address of the notebook, as soon as JupyterLab answers there."""
    from jupyter_core.paths import jupyter_runtime_dir

    place = Path(jupyter_runtime_dir()) / f"jpserver-{process.pid}.json"
    direct = build_opener(ProxyHandler({}))
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        # what the server has written down about itself, shortly before its port can be reached;
        # who started at the same moment may have taken that, and does not know the token
        with suppress(OSError, ValueError):
            found = json.loads(place.read_text(encoding="utf-8"))
            direct.open(f"{found['url']}api/status?token={found['token']}", timeout=5).close()
            return f"{found['url']}lab/tree/{quote(notebook.as_posix())}?token={found['token']}"
        time.sleep(0.05)
    code = process.returncode
    why = (
        f"not within {_START_S:.0f} s" if code is None else f"exit code {code}, its output is above"
    )
    raise StallscopeError(f"JupyterLab did not start ({why}); the copied notebooks are there")


def _stop(process: subprocess.Popen[Any]) -> None:
    """End JupyterLab, which ends its kernels; kill it when that takes too long."""
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    finally:  # also after a second Ctrl-C
        process.kill()
        process.wait()
