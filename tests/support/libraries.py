"""Other people's libraries, where they are installed, and whether their batches are the same."""

from typing import Any

import numpy as np
import pytest
import torch

PACKAGES = {"Hugging": "datasets", "MONAI": "monai", "fastai": "fastai.vision.all"}
"""Module names of libraries, where they differ from the usual name; importing must move no
generator in between."""


def called(name: str) -> str:
    return name.partition(" ")[0].partition("'")[0].strip(",")


def library(name: str) -> str:
    """Return the library of a loader; skip the test where it is not installed."""
    pytest.importorskip(PACKAGES.get(called(name), called(name)))
    return called(name)


def same(a: Any, b: Any) -> bool:
    """Return True for equal batches, to the last bit and in their types."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
