"""What this machine takes for work that cannot be told in CPU seconds beforehand."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from stallscope.measure.devices.cpu import Cpu
from stallscope.measure.laps import Loop, started
from stallscope.measure.sample import photographs
from stallscope.planted.building import build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.planted.recipe import Recipe

_PHOTOGRAPHS: Final = 12
_LEAST_S: Final = 0.5
_FEWEST: Final = 8
_LONGEST_S: Final = 5.0


@lru_cache(maxsize=1)
def decode_s() -> float:
    """CPU time of decoding a photograph of the sample data, seconds on average."""
    from PIL import Image

    files = photographs()[:_PHOTOGRAPHS]
    began = 0.0
    for _ in range(2):  # the first time also loads the decoder and fills the caches
        began = time.thread_time()
        for file in files:
            Image.open(file.path).convert("RGB")
    return (time.thread_time() - began) / len(files)


def batch_s(recipe: Recipe) -> float:
    """How long the loader of a recipe takes for a batch that is used at once, seconds."""
    with _batches(recipe) as batches:
        for _ in islice(batches, recipe.workers * (1 + recipe.prefetch)):
            pass
        began, number = time.perf_counter(), 0
        for number, _ in enumerate(batches, 1):
            took_s = time.perf_counter() - began
            if took_s > _LONGEST_S or (number >= _FEWEST and took_s > _LEAST_S):
                break
        return (time.perf_counter() - began) / max(number, 1)


@contextmanager
def _batches(recipe: Recipe) -> Iterator[Any]:
    loader, _ = build(recipe)
    with started(Loop(loader, Cpu())) as batches:
        yield batches
