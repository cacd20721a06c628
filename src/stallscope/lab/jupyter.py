"""JupyterLab as `server.py` starts it: it ends with the process that started it, however that ends.

Nothing of stallscope but this runs there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def main() -> None:
    """Run JupyterLab until it ends, or until nobody holds the other end of stdin."""
    parent = os.dup(0)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - else it asks "shut down? (y/n)"
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from jupyterlab.labapp import main as run

    sys.exit(run())


def _end_with(parent: int) -> None:
    """End this process and its kernels when the parent is gone; a kill tells nobody."""
    os.read(parent, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
