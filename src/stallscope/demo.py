"""Two published pipelines, A and B, for the notebooks, and both beside their authors' numbers.

Case A: tar shards read by webdataset (2022; 12 workers, batches of 512). Case B: five transforms,
one needlessly slow: "Solving Bottlenecks on the Data Input Pipeline with PyTorch Profiler" (2023; 8
vCPUs, batches of 256). Batches are smaller here, so that a minute is enough. The code is in a
module because a spawned worker imports code by name and cannot find classes of a notebook cell.
"""

from __future__ import annotations

import atexit
import io
import tarfile
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from stallscope.errors import TargetError
from stallscope.files import workspace
from stallscope.loops.cached_values import leaves
from stallscope.machine import usable_cores
from stallscope.targets.images import evaluation_pipeline, torchvision_transforms, worker_settings
from stallscope.targets.sample import photographs
from stallscope.targets.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import polars as pl

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
CROP: Final = 256
Order = Literal["published", "crop_first"]
_SIDE: Final = 32
"""Side of the images that `SlowStep` trains on, in pixels."""

CROSS: Final = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]])
"""A pixel and its four neighbours."""


def case_a() -> Target:
    """Return the loader of the tar shards. Creates the shards in a temporary folder.

    Raises:
        TargetError: webdataset, torchvision or the sample data is missing.
    """
    return Target(case_a_loader(_shards()), name="case A: tar shards")


def beside_case_a(run: Run) -> str:
    """Return a recording of case A beside its author's numbers, as a Markdown table."""
    stages, samples = run.stages().to_dicts(), max(run.samples().height, 1)
    got, changed = (
        sum(stage["busy_s"] for stage in stages if stage["kind"] in kinds) / samples
        for kinds in (("fetch", "decode"), ("transform",))
    )
    times = f"{got / changed:.1f}" if changed else "no transform was seen"
    return _beside(
        ("read, unpack and decode the image", f"{FETCH_A_S * 1e3:.0f} ms", f"{got * 1e3:.1f} ms"),
        ("transforms", f"{TRANSFORMS_A_S * 1e3:.0f} ms", f"{changed * 1e3:.1f} ms"),
        ("ratio of the two", f"{FETCH_A_S / TRANSFORMS_A_S:.0f}", times),
    )


def beside_case_b(orders: Orders) -> str:
    """Return the gains of case B (and its faster mask) beside its author's, as a Markdown table."""
    as_it_is, other_mask, crop_first = STEP_B_S
    same = orders.table().filter(equivalence="identical")
    return _beside(
        ("another mask", f"{as_it_is / other_mask:.2f}×", _gain(same, "alternative")),
        ("and the crop first", f"{as_it_is / crop_first:.2f}×", _gain(same, "together")),
    )


def _beside(*rows: tuple[str, str, str]) -> str:
    heads = [("", "published", "here"), ("---", "---", "---")]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*heads, *rows])


def _gain(trials: pl.DataFrame, kind: str) -> str:
    """Return the best trial of a kind: its measured speedup, else the predicted."""
    rows = trials.filter(kind=kind).sort("speedup", descending=True, nulls_last=True)
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


class RandomMask:
    """Set random pixels and their four neighbours to 0; the neighbours the slow way."""

    def __init__(self, size: int = CROP, ratio: float = 0.25) -> None:
        self.size = size
        self.ratio = ratio
        # Imported with the pipeline, so that the first sample does not take longer
        from scipy.signal import convolve2d

        self._convolve2d = convolve2d

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Mask an image of shape (channels, size, size), drawing from torch's generator."""
        mask = torch.rand(self.size, self.size) < self.ratio
        return image.masked_fill(self.dilate(mask), 0)

    def dilate(self, mask: torch.Tensor) -> torch.Tensor:
        """Add the four neighbours to a bool mask, by a 2-D convolution."""
        hits = self._convolve2d(mask.numpy(), CROSS, mode="same")
        return torch.from_numpy(hits > 0)


class FasterRandomMask(RandomMask):
    """The same output as `RandomMask` on the same draws; the neighbours by shifted masks."""

    def dilate(self, mask: torch.Tensor) -> torch.Tensor:
        """Add the four neighbours to a bool mask, by a boolean or of shifted masks."""
        wide = mask.clone()
        wide[1:] |= mask[:-1]
        wide[:-1] |= mask[1:]
        wide[:, 1:] |= mask[:, :-1]
        wide[:, :-1] |= mask[:, 1:]
        return wide


class ConvertColor:
    """RGB to YUV: a matrix product over all pixels, and an offset for each channel."""

    def __init__(self) -> None:
        # BT.601, the analogue form
        self.matrix = torch.tensor(
            [[0.299, 0.587, 0.114], [-0.14713, -0.28886, 0.436], [0.615, -0.51499, -0.10001]]
        )
        self.offset = torch.tensor([[0.0], [128.0], [128.0]])

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Convert an image of shape (3, height, width), values 0 to 255, to float32."""
        return (self.matrix @ image.float().flatten(1) + self.offset).view(image.shape)


class Scale:
    """Division by 255."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Convert values 0 to 255 to float32 values 0 to 1."""
        return image / 255


class SlowStep:
    """A training step with typical slow habits, for the notebooks; it trains on any batch.

    It reads the loss after each step, sets gradients to zero, and its optimizer updates one weight
    after the other. It uses a GPU if there is one.
    """

    def __init__(self) -> None:
        self.where = "cuda" if torch.cuda.is_available() else "cpu"
        wide, pool = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.MaxPool2d(2)
        deep, last = torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.Linear(64, 10)
        relu, mean = torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
        layers = (wide, relu, pool, deep, relu, mean, torch.nn.Flatten(), last)
        self.model = torch.nn.Sequential(*layers).to(self.where)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        self.last_loss = 0.0

    def __call__(self, batch: Any) -> torch.Tensor:
        """Train on the first floats of a batch, of any shape, as small images."""
        self.optimizer.zero_grad(set_to_none=False)
        tensors = (leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor))
        floats = next(leaf for leaf in tensors if leaf.is_floating_point() and leaf.ndim > 1)
        rows = floats.to(self.where, non_blocking=True).flatten(1).unsqueeze(1)
        pixels: Any = torch.nn.functional.adaptive_avg_pool1d(rows, 3 * _SIDE**2)
        loss: Any = self.model(pixels.view(-1, 3, _SIDE, _SIDE)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.last_loss = loss.item()
        detached: torch.Tensor = loss.detach()
        return detached


class OneImageManyTimes(Dataset[Any]):
    """`entries` samples that are all the same file, opened and (being lazy) not yet decoded."""

    def __init__(self, path: str, entries: int, transform: Callable[[Any], Any]) -> None:
        self.path = path
        self.entries = entries
        self.transform = transform

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(Image.open(self.path)), 0


def case_b_pipeline(
    order: Order = "published", mask: type[RandomMask] = RandomMask
) -> Callable[[Any], Any]:
    """Return the five transforms: PIL image, at least 256 by 256, to float32 (3, 256, 256).

    Args:
        order: as published, or with the crop moved before the conversion to a tensor.
        mask: `RandomMask` as published, or `FasterRandomMask`.

    Raises:
        TargetError: there is no such order, or torchvision is missing.
    """
    v2 = torchvision_transforms()
    orders = {
        "published": [v2.PILToTensor(), v2.RandomCrop(CROP)],
        "crop_first": [v2.RandomCrop(CROP), v2.PILToTensor()],
    }
    if order not in orders:
        raise TargetError(f"there is no order {order!r} of case B: take {' or '.join(orders)}")
    return v2.Compose([*orders[order], mask(), ConvertColor(), Scale()])  # type: ignore[no-any-return]


def case_b_loader(
    order: Order = "published",
    mask: type[RandomMask] = RandomMask,
    *,
    num_workers: int | None = None,
    batch_size: int = 32,
    entries: int = 10_000,
) -> DataLoader[Any]:
    """Return the published loader of case B, with smaller batches: its 256 need 200 MB each.

    Batches of float32 images, shape (batch_size, 3, 256, 256), and int64 labels.

    Args:
        order: see `case_b_pipeline`.
        mask: see `case_b_pipeline`.
        num_workers: None takes four, or as many as there are CPUs.
        batch_size: samples in a batch.
        entries: length of the dataset.

    Raises:
        TargetError: there is no such order, or torchvision or the sample data is missing.
    """
    dataset = OneImageManyTimes(photographs()[0].path, entries, case_b_pipeline(order, mask))
    workers = min(4, usable_cores()) if num_workers is None else num_workers
    return DataLoader(dataset, batch_size, shuffle=True, **worker_settings(workers))
