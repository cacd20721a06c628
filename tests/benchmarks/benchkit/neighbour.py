"""Another user of the machine: a process that burns a core in bursts of 0.2 to 3 s."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context


@contextmanager
def neighbour() -> Iterator[None]:
    """Burn a core in bursts meanwhile."""
    process = get_context("spawn").Process(target=_bursts, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _bursts() -> None:
    draw, parent = random.Random(os.getpid()), os.getppid()
    while os.getppid() == parent:  # one whose benchmark was killed burned a core for hours
        end_s = time.monotonic() + draw.uniform(0.2, 3.0)
        while time.monotonic() < end_s:
            sum(range(1000))
        time.sleep(draw.uniform(0.2, 3.0))
