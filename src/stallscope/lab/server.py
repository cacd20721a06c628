"""JupyterLab as a child process: local to this machine, with a token, and ended with its parent.

Every user of the machine can read a command line, so the token is in a private settings file. This
file also overrides user settings that turn the token off.
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
"""Time limit for a stop: JupyterLab ends its kernels first, which can take some seconds."""


def open_lab(
    folder: Path,
    notebook: Path,
    *,
    browser: bool = True,
    port: int | None = None,
    announce: Callable[[str], object] = lambda _: None,
) -> None:
    """Start JupyterLab with a notebook, and wait until it ends or this process is interrupted.

    Ctrl-C, SIGTERM and SIGHUP end JupyterLab and its kernels before this process. After a kill of
    this process, JupyterLab ends itself.

    Args:
        folder: root of JupyterLab's file browser.
        notebook: file in that folder to open.
        browser: let JupyterLab open the user's browser.
        port: port of JupyterLab; None: the first free port from 8888.
        announce: called with the address and token as soon as JupyterLab answers.

    Raises:
        StallscopeError: JupyterLab does not start; its output shows the reason.
    """
    with workspace() as private, ended_politely():
        process = subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
            _command(folder, notebook, browser=browser, port=port),
            env=_environment(private),
            cwd=private,  # -m searches here first; the current folder may hide modules
            stdin=subprocess.PIPE,  # closes with this process, see `lab.jupyter`
            start_new_session=True,  # the terminal's Ctrl-C only reaches this process
        )
        try:
            announce(_address(process, notebook.relative_to(folder)))
            process.wait()
        finally:
            _stop(process)


def _command(folder: Path, notebook: Path, *, browser: bool, port: int | None) -> list[str]:
    port_options = (
        [] if port is None else [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    )
    return [
        *(sys.executable, "-m", "stallscope.lab.jupyter"),
        *("--log-level=WARN", "--LabApp.log_level=WARN"),
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.allow_root=True",  # root is the usual user of a container
        f"--ServerApp.open_browser={browser}",
        f"--ServerApp.root_dir={folder}",
        *port_options,
        str(notebook),
    ]


def _environment(private: Path) -> dict[str, str]:
    """Return the user's environment, with the token and this interpreter's kernel first.

    JupyterLab starts in another folder, so relative paths are made absolute.
    """
    settings = json.dumps(
        {
            "IdentityProvider": {"token": secrets.token_hex(24)},
            "LabApp": {"news_url": None},  # else a dialog offers news and covers the page
        }
    )
    for name in ("jupyter_server_config.json", "jupyter_lab_config.json"):
        (private / name).write_text(settings, encoding="utf-8")
    user_path = os.environ.get("JUPYTER_CONFIG_PATH")
    path = os.pathsep.join([str(private), *([user_path] if user_path else [])])
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

    info_file = Path(jupyter_runtime_dir()) / f"jpserver-{process.pid}.json"
    opener = build_opener(ProxyHandler({}))
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        # The server writes this file shortly before its port answers. Another server could have
        # taken the port at the same moment, but it does not accept the token.
        with suppress(OSError, ValueError):
            server = json.loads(info_file.read_text(encoding="utf-8"))
            opener.open(f"{server['url']}api/status?token={server['token']}", timeout=5).close()
            return f"{server['url']}lab/tree/{quote(notebook.as_posix())}?token={server['token']}"
        time.sleep(0.05)
    code = process.returncode
    reason = (
        f"not within {_START_S:.0f} s" if code is None else f"exit code {code}, its output is above"
    )
    raise StallscopeError(f"JupyterLab did not start ({reason}); the notebooks are copied")


def _stop(process: subprocess.Popen[Any]) -> None:
    """End JupyterLab, which ends its kernels; kill it after a time limit."""
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    finally:  # also after a second Ctrl-C
        process.kill()
        process.wait()
