"""Loaders that other libraries make, small and quick, for the tests of what the kit sees.

Each builder needs nothing and gives a loader whose batches depend on the global generators only:
build it again after `seed()` and it gives the same batches. The libraries are imported inside, so
that a test can skip the ones that are not installed; classes and functions that workers need stand
at the module's level, so that a spawned worker finds them.
"""

import atexit
import functools
import io
import os
import random
import shutil
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from support.loaders import LONGER, SLOW_OP_S, Noise
from support.odd_loaders import PatchQueue
from support.planted_costs import busy

ENTRIES = 64 * LONGER
"""Samples of each dataset."""
SIZE = 4
"""Samples of a batch."""
WORKERS = 2
SIDE = 32
"""Pixels of a finished image, each way."""
SHARDS = 4
STEPS = 6
"""Batches of a training."""


LIBRARIES: dict[str, Callable[[], Any]] = {}
"""Every builder, by the name that the support table gives it."""
OPS: dict[str, str] = {}
"""An op that every sample of a loader goes through, by the name of its stage; "": there is none."""


def library(name: str, op: str = "Speckle") -> Callable[[Any], Any]:
    def register(build: Callable[[], Any]) -> Callable[[], Any]:
        LIBRARIES[name], OPS[name] = build, op
        return build

    return register


def seed(number: int = 0) -> None:
    """Put the global generators to a known place."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


# --- data ---------------------------------------------------------------------------------------


@functools.cache
def jpeg(index: int) -> bytes:
    """A photograph of nothing, encoded."""
    noise = np.random.default_rng(index).integers(0, 255, (40, 48, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG")
    return file.getvalue()


@functools.cache
def scratch() -> Path:
    """A folder that is gone when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="third-party-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    """Remove the folder, unless this is a process that was forked meanwhile."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def photographs() -> Path:
    folder = scratch() / "photographs"
    for index in range(ENTRIES):
        file = folder / ("cat", "dog")[index % 2] / f"{index:03}.jpg"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(jpeg(index))
    return folder


def shards() -> str:
    folder = scratch() / "shards"
    folder.mkdir(parents=True, exist_ok=True)
    each = ENTRIES // SHARDS
    for shard in range(SHARDS):
        if (file := folder / f"photos-{shard:03}.tar").exists():
            continue
        with tarfile.open(file, "w") as tar:
            for index in range(shard * each, (shard + 1) * each):
                _add(tar, f"{index:03}.jpg", jpeg(index))
                _add(tar, f"{index:03}.cls", str(index % 2).encode())
    return f"{folder}/photos-{{000..{SHARDS - 1:03}}}.tar"


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


# --- the user's own ops and datasets ------------------------------------------------------------


class Speckle:
    def __call__(self, image: Any) -> Any:
        busy(SLOW_OP_S)
        return image + torch.rand(()) / 8


class Shift(Speckle):
    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "image": super().__call__(sample["image"])}


def to_tensor(image: Any) -> torch.Tensor:
    """An image as floats, (channels, SIDE, SIDE)."""
    array = np.asarray(image.resize((SIDE, SIDE)), dtype=np.float32)
    return torch.from_numpy(array).permute(2, 0, 1)


def mirror(image: torch.Tensor) -> torch.Tensor:
    return image.flip(-1)


def first(samples: list[Any]) -> Any:
    return samples[0]


def read_image(index: int) -> Image.Image:
    return Image.open(io.BytesIO(jpeg(index)))


class Photographs(Dataset):
    """Images in memory, still encoded, with a class each."""

    def __init__(self, transform: Any = None, entries: int = ENTRIES) -> None:
        self.transform = transform
        self.entries = entries

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> Any:
        image = read_image(index).convert("RGB")
        return (self.transform(image) if self.transform else to_tensor(image)), index % 2


class Vectors(Noise):
    """Samples that depend on every generator a worker has, with the user's op."""

    def __init__(self, entries: int = ENTRIES) -> None:
        super().__init__(entries, Speckle())

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index).repeat(8)


class Arrays(Dataset):
    """Images as arrays, for transforms that are called by keyword."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return ENTRIES

    def __getitem__(self, index: int) -> torch.Tensor:
        image = self.transform(image=np.asarray(read_image(index)))["image"]
        return torch.from_numpy(np.ascontiguousarray(image))


class LateCompose:
    """A batch function as for `set_transform`: builds its pipeline when it is first called."""

    def __init__(self) -> None:
        self.pipeline: Any = None

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, Any]:
        if self.pipeline is None:
            self.pipeline = compose()
        return {
            "image": [self.pipeline(image) for image in batch["image"]],
            "label": batch["label"],
        }


def compose() -> Any:
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(SIDE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            Speckle(),
        ]
    )


def prepare_example(example: dict[str, Any]) -> dict[str, Any]:
    busy(SLOW_OP_S)
    return {"image": to_tensor(example["image"]), "label": example["label"]}


def speckle_examples(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    speckle = Speckle()
    return {"image": [speckle(image) for image in batch["image"]]}


class Streamed(IterableDataset):
    """Iterates a loader inside of a worker, which may not have workers of its own."""

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        inner = DataLoader(Vectors(), batch_size=2, num_workers=0)
        for number, pair in enumerate(inner):
            if info is None or number % info.num_workers == info.id:
                yield from pair


# --- timm ---------------------------------------------------------------------------------------


@library("timm's PrefetchLoader", "RandomResizedCropAndInterpolation")
def timm_prefetch(**options: Any) -> Any:
    from timm.data import create_loader

    return create_loader(
        Photographs(),
        input_size=(3, SIDE, SIDE),
        batch_size=SIZE,
        is_training=True,
        num_workers=WORKERS,
        device=torch.device("cpu"),
        re_prob=0.5,
        **{"persistent_workers": False, **options},
    )


@library("timm's PrefetchLoader, persistent workers", "RandomResizedCropAndInterpolation")
def timm_persistent() -> Any:
    """The same as timm's scripts make it: its workers live on after an epoch."""
    return timm_prefetch(persistent_workers=True)


@library("timm's MultiEpochsDataLoader", "RandomResizedCropAndInterpolation")
def timm_multi_epochs() -> Any:
    """A loader of timm's that keeps one iterator over all epochs, inside of its PrefetchLoader."""
    return timm_prefetch(use_multi_epochs_loader=True)


@library("timm without the prefetcher", "RandomResizedCropAndInterpolation")
def timm_plain() -> Any:
    return timm_prefetch(use_prefetcher=False)


# --- webdataset ---------------------------------------------------------------------------------


def _web_samples() -> Any:
    import webdataset as wds

    return (
        wds.WebDataset(shards(), shardshuffle=SHARDS, seed=0, empty_check=False)
        .shuffle(8, seed=0)
        .decode("pil")
        .map_dict(jpg=to_tensor)
        .to_tuple("jpg", "cls")
        .map_tuple(Speckle())
    )


@library("webdataset's WebLoader")
def web_loader_bare() -> Any:
    """A WebLoader that gives the workers' batches as they are."""
    import webdataset as wds

    dataset = _web_samples().batched(SIZE)
    return wds.WebLoader(dataset, batch_size=None, num_workers=WORKERS)


@library("webdataset's WebLoader, batched again")
def web_loader() -> Any:
    """A WebLoader whose batches are taken apart, shuffled and made again in the main process."""
    import webdataset as wds

    dataset = _web_samples().batched(SIZE)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=WORKERS)
    return loader.unbatched().shuffle(8, seed=0).batched(SIZE)


@library("webdataset in torch's DataLoader")
def web_dataset() -> Any:
    """A WebDataset in torch's own loader, which makes the batches."""
    return DataLoader(_web_samples(), batch_size=SIZE, num_workers=WORKERS)


@library("webdataset's DataPipeline", "_web_image")
def web_pipeline() -> Any:
    import webdataset as wds

    dataset = wds.DataPipeline(
        wds.SimpleShardList(shards()),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.decode("pil"),
        wds.map(_web_image),
        wds.batched(SIZE),
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=WORKERS)


def _web_image(sample: dict[str, Any]) -> torch.Tensor:
    return Speckle()(to_tensor(sample["jpg"]))


# --- Hugging Face -------------------------------------------------------------------------------


def _examples() -> Any:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    entries = [
        {"image": {"bytes": jpeg(index), "path": None}, "label": index % 2}
        for index in range(ENTRIES)
    ]
    return datasets.Dataset.from_list(entries, features=features)


@library("Hugging Face, `set_transform`")
def hf_map() -> Any:
    """Hugging Face's map-style dataset with a transform that is called with whole batches."""
    compose()  # imports torchvision here: the pipeline is built late, in each worker
    dataset = _examples()
    dataset.set_transform(LateCompose())
    return DataLoader(dataset, batch_size=SIZE, shuffle=True, num_workers=WORKERS)


@library("Hugging Face, formatted", "")
def hf_formatted() -> Any:
    dataset = _examples().map(prepare_example, keep_in_memory=True, remove_columns=["image"])
    return DataLoader(dataset.with_format("torch"), batch_size=SIZE, num_workers=WORKERS)


@library("Hugging Face, iterable", "prepare_example")
def hf_stream() -> Any:
    """Hugging Face's iterable dataset in the order of its shards: one mapped function."""
    dataset = _examples().to_iterable_dataset(num_shards=SHARDS).map(prepare_example)
    return DataLoader(dataset, batch_size=SIZE, num_workers=WORKERS)


@library("Hugging Face, iterable and shuffled", "speckle_examples")
def hf_iterable() -> Any:
    """Hugging Face's iterable dataset: two mapped functions and a shuffle buffer.

    The shuffle reads its shards in a pool of threads inside of each worker.
    """
    dataset = _examples().to_iterable_dataset(num_shards=SHARDS)
    dataset = dataset.map(prepare_example).shuffle(seed=0, buffer_size=8)
    dataset = dataset.map(speckle_examples, batched=True, batch_size=SIZE)
    return DataLoader(dataset, batch_size=SIZE, num_workers=WORKERS)


# --- torchdata ----------------------------------------------------------------------------------


@library("torchdata's StatefulDataLoader")
def stateful() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Vectors(), batch_size=SIZE, num_workers=WORKERS)


@library("torchdata's StatefulDataLoader, a stream")
def stateful_stream() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Streamed(), batch_size=SIZE, num_workers=WORKERS)


def _nodes(method: str) -> Any:
    from torchdata import nodes

    node = nodes.IterableWrapper(range(ENTRIES))
    node = nodes.ParallelMapper(node, prepare_index, num_workers=WORKERS, method=method)
    node = nodes.Batcher(node, batch_size=SIZE)
    node = nodes.Mapper(node, default_collate)
    return nodes.Loader(nodes.Prefetcher(node, prefetch_factor=2))


def prepare_index(index: int) -> torch.Tensor:
    """A mapped function of the user's: draws nothing, because threads would share it."""
    busy(SLOW_OP_S)
    return to_tensor(read_image(index)) + index


@library("torchdata's nodes, threads", "prepare_index")
def nodes_threads() -> Any:
    return _nodes("thread")


@library("torchdata's nodes, processes", "prepare_index")
def nodes_processes() -> Any:
    return _nodes("process")


# --- albumentations and MONAI -------------------------------------------------------------------


@library("albumentations", "RandomCrop")
def albumentations() -> Any:
    import albumentations as album

    transform = album.Compose(
        [
            album.RandomCrop(SIDE, SIDE),
            album.HorizontalFlip(p=0.5),
            album.OneOf([album.RandomBrightnessContrast(), album.GaussianBlur()], p=0.9),
            album.Normalize(),
        ],
        seed=0,
    )
    return DataLoader(Arrays(transform), batch_size=SIZE, num_workers=WORKERS)


def _monai_transform() -> Any:
    from monai import transforms

    chain = [
        transforms.ScaleIntensityd(keys="image"),
        transforms.Lambdad(keys="image", func=mirror),
        transforms.ToTensord(keys="image"),
        transforms.RandFlipd(keys="image", prob=0.5, spatial_axis=0),
        Shift(),
    ]
    return transforms.Compose(chain).set_random_state(0)


def _monai_items() -> list[dict[str, Any]]:
    generator = np.random.default_rng(0)
    return [{"image": generator.random((1, SIDE, SIDE), dtype=np.float32)} for _ in range(ENTRIES)]


@library("MONAI", "Shift")
def monai() -> Any:
    from monai import data

    dataset = data.Dataset(_monai_items(), _monai_transform())
    return data.DataLoader(dataset, batch_size=SIZE, num_workers=WORKERS)


@library("MONAI's CacheDataset", "Shift")
def monai_cache() -> Any:
    from monai import data

    dataset = data.CacheDataset(_monai_items(), _monai_transform(), progress=False, num_workers=1)
    return data.DataLoader(dataset, batch_size=SIZE, num_workers=WORKERS)


@library("MONAI's ThreadDataLoader", "Shift")
def monai_threads() -> Any:
    """MONAI's ThreadDataLoader: a thread of the main process makes the batches."""
    from monai import data

    dataset = data.Dataset(_monai_items(), _monai_transform())
    return data.ThreadDataLoader(dataset, batch_size=SIZE, num_workers=0)


@library("MONAI's ThreadDataLoader, thread workers", "Shift")
def monai_thread_workers() -> Any:
    from monai import data

    dataset = data.Dataset(_monai_items(), _monai_transform())
    return data.ThreadDataLoader(
        dataset, batch_size=SIZE, num_workers=WORKERS, use_thread_workers=True
    )


# --- fastai -------------------------------------------------------------------------------------


@library("fastai", "Resize")
def fastai() -> Any:
    return fastai_both().train


def fastai_both() -> Any:
    from fastai.vision import all as fast

    block = fast.DataBlock(
        blocks=(fast.ImageBlock, fast.CategoryBlock),
        get_items=fast.get_image_files,
        get_y=fast.parent_label,
        splitter=fast.RandomSplitter(0.25, seed=0),
        item_tfms=fast.Resize(SIDE),
        batch_tfms=[
            *fast.aug_transforms(size=SIDE),
            fast.Normalize.from_stats(*fast.imagenet_stats),
        ],
    )
    return block.dataloaders(
        photographs(), bs=SIZE, num_workers=WORKERS, device=torch.device("cpu")
    )


# --- Lightning, accelerate, transformers --------------------------------------------------------


def lightning_datamodule() -> Any:
    import lightning

    class Data(lightning.LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader(Vectors(), batch_size=SIZE, shuffle=True, num_workers=WORKERS)

        def val_dataloader(self) -> Any:
            return DataLoader(Vectors(16), batch_size=SIZE, num_workers=1)

    return Data()


@library("Lightning's DataModule")
def lightning_loader() -> Any:
    return lightning_datamodule().train_dataloader()


@library("Lightning's CombinedLoader")
def lightning_combined() -> Any:
    """Lightning's CombinedLoader over two loaders: one wait takes a batch of each."""
    from lightning.pytorch.utilities import CombinedLoader

    module = lightning_datamodule()
    loaders = {"a": module.train_dataloader(), "b": module.val_dataloader()}
    return CombinedLoader(loaders, "max_size_cycle")


@library("accelerate")
def accelerate() -> Any:
    from accelerate import Accelerator

    loader = DataLoader(Vectors(), batch_size=SIZE, shuffle=True, num_workers=WORKERS)
    return Accelerator(cpu=True).prepare(loader)


# --- datasets that own loaders ------------------------------------------------------------------


@library("a dataset that owns a loader")
def inner_loader() -> Any:
    patches = PatchQueue(Vectors(ENTRIES // SIZE), num_workers=WORKERS)
    return DataLoader(patches, batch_size=SIZE, num_workers=0)


@library("a loader inside of the workers")
def inner_loader_in_worker() -> Any:
    return DataLoader(Streamed(), batch_size=SIZE, num_workers=WORKERS)


# --- trainings: the library's own loop ----------------------------------------------------------


def lightning_fit() -> Any:
    import lightning
    from lightning.pytorch.demos.boring_classes import BoringModel

    seed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_steps=STEPS,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=scratch(),
        )
        trainer.fit(BoringModel(), datamodule=lightning_datamodule())
    return trainer


def fastai_fit() -> Any:
    from fastai.vision import all as fast

    seed()
    loaders = fastai_both()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIDE * SIDE, 2))
    learner = fast.Learner(loaders, model, loss_func=torch.nn.functional.cross_entropy)
    with learner.no_bar(), learner.no_logging():
        learner.fit(1)
    return learner


def accelerate_fit() -> Any:
    from accelerate import Accelerator

    seed()
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    loader = DataLoader(Vectors(), batch_size=SIZE, shuffle=True, num_workers=WORKERS)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _, batch in zip(range(STEPS), loader, strict=False):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Labelled(Vectors):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": super().__getitem__(index), "labels": torch.tensor(index % 2)}


class TinyModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def transformers_fit() -> Any:
    from transformers import Trainer, TrainingArguments

    seed()
    arguments = TrainingArguments(
        output_dir=str(scratch() / "transformers"),
        max_steps=STEPS,
        per_device_train_batch_size=SIZE,
        dataloader_num_workers=WORKERS,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model=TinyModel(), args=arguments, train_dataset=Labelled())
    trainer.train()
    return trainer


TRAININGS: dict[str, Callable[[], Any]] = {
    "Lightning's Trainer": lightning_fit,
    "fastai's Learner": fastai_fit,
    "a loop with accelerate": accelerate_fit,
    "transformers' Trainer": transformers_fit,
}
"""Training loops that are not ours, for `instrumented`: each trains a few steps on the CPU."""
