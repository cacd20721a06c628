"""A real JupyterLab, started by `stallscope lab`, and Debian's Chromium to look at it."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser.page import LabPage

import stallscope

SOURCE = Path(stallscope.__file__).parents[1]
SETTINGS = {
    # no window of JupyterLab's own over what the test looks at, and nothing fetched
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
APP = {"LabApp": {"expose_app_in_browser": True, "extension_manager": "readonly"}}
SHORTER = {
    r"\bBUDGET_S = \d+": "BUDGET_S = 8",
    r"\bSTEP_S = [\d.]+": "STEP_S = 0.005",
    r"(ss\.record\(.*\bbudget_s=)BUDGET_S\b": r"\g<1>30",  # its batches end it
    r"\bbatches=50\b": "batches=24",
    r"\bbatches=10\b": "batches=4",
    r"\brange\(24\)": "range(12)",
}
"""Replacements in the notebooks: shorter measurements than a person needs, but long enough for a
busy machine to show something, and a step so quick that it stalls on any machine."""
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
]


def _settings(folder):
    """Return variables for settings of Jupyter in this folder: none of the user's are read."""
    for name, value in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(value))
    (folder / "config").mkdir()
    (folder / "config" / "jupyter_lab_config.json").write_text(json.dumps(APP))
    names = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "IPYTHONDIR": "ipython",
    }
    return {name: str(folder / place) for name, place in names.items()}


@contextmanager
def served(folder, *target):
    """Run `stallscope lab TARGET --no-browser` in a folder; yield the address that it prints."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # others start theirs at this moment
        port = str(server.getsockname()[1])
    command = ["stallscope", "lab", *target, "--no-browser", "--dir", "notebooks", "--port", port]
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, **_settings(folder), "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = process.stdout.readline().strip()
        for file in (folder / "notebooks").glob("[!.]*.*"):  # the notebooks, and `my_target.py`
            text = file.read_text(encoding="utf-8")
            for usual, shorter in SHORTER.items():
                text = re.sub(usual, shorter, text)
            file.write_text(text, encoding="utf-8")
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    """JupyterLab with all notebooks copied, on the sample data."""
    with served(tmp_path_factory.mktemp("lab")) as url:
        yield url


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium with an empty profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=shutil.which("chromium"),
            headless=True,
            args=FLAGS,
            viewport={"width": 1400, "height": 1000},
        )
        yield context
        context.close()


@pytest.fixture
def page(browser):
    """A page without JupyterLab: `asked` are the addresses it asked for, `wrong` its errors."""
    page = browser.new_page()
    page.asked, page.wrong = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on(
        "console",
        lambda message: page.wrong.append(message.text) if message.type == "error" else None,
    )
    yield page
    page.close()


@pytest.fixture
def lab(address, browser):
    page = browser.new_page()
    page.set_default_timeout(120_000)
    yield LabPage(page, address)
    page.close()
