"""Flames with a known truth: stacks that were never sampled."""

import numpy as np
import polars as pl

from stallscope.verbs.flame.result import SAMPLES, Flame, FlameConditions

SITE = "/opt/venv/lib/python3.12/site-packages"
LOOP = (
    "<module> (train.py:3);main (/home/me/train.py:9);__iter__ "
    f"({SITE}/torch/utils/data/dataloader.py:400);_bootstrap (/usr/lib/python3.12/multiprocessing/"
    f"process.py:314);_worker_loop ({SITE}/torch/utils/data/_utils/worker.py:349);"
)
GETITEM = (
    LOOP + f"fetch ({SITE}/torch/utils/data/_utils/fetch.py:52);__getitem__ (/home/me/data.py:12)"
)
DILATE = GETITEM + ";dilate (/home/me/data.py:30)"
CONV = DILATE + f";conv2d ({SITE}/torch/nn/functional.py:50)"
JPEG = GETITEM + f";load ({SITE}/PIL/ImageFile.py:300)"
CROP = (
    GETITEM + f";crop (/home/me/data.py:40);crop ({SITE}/torchvision/transforms/v2/functional.py:1)"
)
COLLATE = LOOP + f"default_collate ({SITE}/torch/utils/data/_utils/collate.py:398)"
FEED = (
    "_bootstrap_inner (/usr/lib/python3.12/threading.py:1073);"
    "_feed (/usr/lib/python3.12/multiprocessing/queues.py:266)"
)
STAGES = {
    CONV: "RandomMask",
    DILATE: "RandomMask",
    JPEG: "decode",
    CROP: "crop",
    COLLATE: "collate",
}
SHARES = {CONV: 0.3, DILATE: 0.11, JPEG: 0.25, CROP: 0.14, COLLATE: 0.15, FEED: 0.05}
"""The planted truth: `dilate` takes 41%."""
HOSTILE = "<img src=x onerror=window.broken=1>"


def a_flame(
    shares=None, *, workers=2, windows=10, per_window=25, seed=0, stages=None, **circumstances
) -> Flame:
    """Draw each window's samples from the shares, apart for each worker."""
    shares = SHARES if shares is None else shares
    rng = np.random.default_rng(seed)
    rows = []
    for worker in range(workers):
        for window in range(windows):
            drawn = rng.multinomial(per_window, np.array(list(shares.values())))
            rows += [
                (worker, 1000 + worker, window, (stages or STAGES).get(stack), stack, int(hits))
                for stack, hits in zip(shares, drawn, strict=True)
                if hits
            ]
    conditions = FlameConditions(
        **{"name": "planted", "seconds": 5.0, "num_workers": workers, **circumstances}
    )
    return Flame(pl.DataFrame(rows, SAMPLES, orient="row"), conditions)


def many_stacks(number: int, depth: int = 24, seed: int = 0) -> Flame:
    """Return a flame of distinct stacks that branch like real programs: few first frames."""
    rng = np.random.default_rng(seed)
    choices = np.minimum(rng.geometric(0.35, (number, depth)), 8)
    rows = []
    for place, path in enumerate(choices):
        names = [
            f"f{level}_{choice} (/home/me/m{level % 7}.py:{choice})"
            for level, choice in enumerate(path)
        ]
        rows.append((place % 4, place % 4, 0, None, ";".join(names), 1))
    conditions = FlameConditions(name="many", seconds=5.0, num_workers=4)
    return Flame(pl.DataFrame(rows, SAMPLES, orient="row"), conditions)


def named(text: str) -> Flame:
    """Make a flame whose function, file and stage have this name."""
    stack = (
        f"{LOOP}fetch ({SITE}/torch/utils/data/_utils/fetch.py:52);{text} (/home/me/{text}.py:1)"
    )
    return a_flame({stack: 0.6, JPEG: 0.4}, stages={stack: text, JPEG: "decode"})
