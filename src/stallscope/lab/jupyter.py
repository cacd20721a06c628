"""JupyterLab as a child of `server.py`: it also ends if its parent is killed.

This is the only module of stallscope in that process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def main() -> None:
    """Run JupyterLab until it ends, or until the other end of stdin is closed."""
    parent = os.dup(0)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - else Jupyter asks "shut down? (y/n)"
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from jupyterlab.labapp import main as run

    sys.exit(run())


def _end_with(parent: int) -> None:
    """End this process and its kernels when the parent is gone, even if it was killed."""
    os.read(parent, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
