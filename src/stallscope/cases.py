"""The published pipeline of case A as a target, and both cases beside their authors' numbers.

Case A: tar shards read by webdataset (2022; 12 workers, batches of 512). Case B: five transforms
(2023; 8 vCPUs, batches of 256), see `stallscope.demo`. Batches are smaller here, so that a minute
is enough.
"""

from __future__ import annotations

import atexit
import io
import tarfile
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import torch
from PIL import Image
from torch.utils.data import DataLoader

from stallscope.errors import TargetError
from stallscope.files import workspace
from stallscope.machine import usable_cores
from stallscope.targets.images import evaluation_pipeline, worker_settings
from stallscope.targets.sample import photographs
from stallscope.targets.target import Target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stallscope.run.result import Run
    from stallscope.verbs.orders.result import Orders


FETCH_A_S: Final = 0.13
TRANSFORMS_A_S: Final = 0.013
"""Published seconds to read and decode an image, and to transform it."""
STEP_B_S: Final = (1.17, 0.78, 0.72)
"""Published seconds of a step with eight workers: original, faster mask, and crop first, too."""
SHARDS: Final = 4
IMAGES: Final = 48
"""Images per shard."""
PASSES: Final = 20
"""Reads of each shard per epoch: a short epoch would be all start-up."""
BATCH: Final = 16
_WIDE: Final = 2
"""Factor on the photographs' width and height, which makes files of the published size."""
_GRAIN: Final = 0.1
"""Share of noise in the enlarged image, which else decodes faster than a photograph."""
_QUALITY: Final = 80


def case_a() -> Target:
    """Return the loader of the tar shards. Creates the shards in a temporary folder.

    Raises:
        TargetError: webdataset, torchvision or the sample data is missing.
    """
    return Target(case_a_loader(_shards()), name="case A: tar shards")


def beside_case_a(run: Run) -> str:
    """Return a recording of case A beside its author's numbers, as a Markdown table."""
    busy_s, samples = pl.col("busy_s").sum(), max(run.samples().height, 1)
    got, changed = (
        run.stages().filter(pl.col("kind").cast(pl.String).is_in(kinds)).select(busy_s).item()
        / samples
        for kinds in (["fetch", "decode"], ["transform"])
    )
    times = f"{got / changed:.1f}" if changed else "no transform was seen"
    return _beside(
        ("get the image: read, unpack, decode", f"{FETCH_A_S * 1e3:.0f} ms", f"{got * 1e3:.1f} ms"),
        ("transforms", f"{TRANSFORMS_A_S * 1e3:.0f} ms", f"{changed * 1e3:.1f} ms"),
        ("the one over the other", f"{FETCH_A_S / TRANSFORMS_A_S:.0f}", times),
    )


def beside_case_b(orders: Orders) -> str:
    """Return the gains of case B (and its faster mask) beside its author's, as a Markdown table."""
    as_it_is, other_mask, crop_first = STEP_B_S
    same = orders.table().filter(pl.col("equivalence") == "identical")
    return _beside(
        ("another mask", f"{as_it_is / other_mask:.2f}×", _gain(same, "alternative")),
        ("and the crop first", f"{as_it_is / crop_first:.2f}×", _gain(same, "together")),
    )


def _beside(*rows: tuple[str, str, str]) -> str:
    heads = [("", "published", "here"), ("---", "---", "---")]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*heads, *rows])


def _gain(trials: pl.DataFrame, kind: str) -> str:
    """Return the best trial of a kind: its measured speedup, else the predicted."""
    rows = trials.filter(pl.col("kind") == kind).sort("speedup", descending=True, nulls_last=True)
    if not rows.height:
        return "not found"
    row = rows.row(0, named=True)
    if row["speedup"] is None:
        return f"{row['predicted_speedup']:.2f}× predicted"
    return f"{row['speedup']:.2f}× ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})"


def case_a_loader(
    shards: Sequence[str], *, num_workers: int | None = None, batch_size: int = BATCH
) -> DataLoader[Any]:
    """Return a loader that resizes and crops the images in shards, decoded by webdataset.

    Batches of float32 images, shape (batch_size, 3, 224, 224); JSON and text are read and unused.

    Args:
        shards: paths of archives, for example from `make_shards`.
        num_workers: None takes one per core and shard, as the authors did with their 12 cores.
        batch_size: samples in a batch.

    Raises:
        TargetError: webdataset or torchvision is missing.
    """
    try:
        import webdataset
    except ImportError as error:
        raise TargetError("case A needs webdataset: pip install webdataset") from error
    samples = (
        webdataset.WebDataset(list(shards) * PASSES, shardshuffle=False, empty_check=False)
        .decode("pil")
        .to_tuple("jpg")
        .map_tuple(evaluation_pipeline())
    )
    workers = min(12, usable_cores(), len(shards)) if num_workers is None else num_workers
    return DataLoader(samples, batch_size, **worker_settings(workers))


def make_shards(folder: Path, shards: int = SHARDS, images: int = IMAGES) -> list[str]:
    """Write archives of `key.jpg` (enlarged photographs), `key.json` and `key.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [_enlarged(photograph.path) for photograph in photographs()[:images]]
    paths = [folder / f"case-a-{number:03}.tar" for number in range(shards)]
    about = {"json": b'{"label": 0}', "txt": b"a photograph"}
    for number, path in enumerate(paths):
        with tarfile.open(path, "w") as archive:
            for place, image in enumerate(files):
                for suffix, data in {"jpg": image, **about}.items():
                    member = tarfile.TarInfo(f"{number:03}{place:05}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return [str(path) for path in paths]


def _enlarged(path: str) -> bytes:
    """Return a photograph of twice the size, with grey noise that is always the same."""
    stream = io.BytesIO()
    with Image.open(path) as image:
        wide = image.convert("RGB").resize((image.width * _WIDE, image.height * _WIDE))
    values = torch.randn(wide.height, wide.width, generator=torch.Generator().manual_seed(0))
    grain = Image.fromarray((128 + 60 * values).clamp(0, 255).byte().numpy()).convert("RGB")
    Image.blend(wide, grain, _GRAIN).save(stream, "JPEG", quality=_QUALITY)
    return stream.getvalue()


@cache
def _shards() -> list[str]:
    """Return the shards of this process, deleted at its end."""
    stack = ExitStack()
    atexit.register(stack.close)
    return make_shards(stack.enter_context(workspace()))
