"""Loaders of stacks beside torch's: MosaicML streaming, LitData, Grain, Ray Data, DALI and others.

CI does not install them. Each builder needs nothing and returns a small loader whose samples take
some milliseconds.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from support.loaders import SLOW_OP_S
from support.planted_costs import busy
from support.third_party_loaders import ENTRIES, SIDE, SIZE, WORKERS, photographs, scratch


def speckled(image: Any) -> torch.Tensor:
    """Return an image as floats, with noise."""
    busy(SLOW_OP_S)
    return torch.from_numpy(np.asarray(image, np.float32)) + torch.rand(())


def _image(entry: int) -> dict[str, Any]:
    return {"image": np.full((SIDE, SIDE, 3), entry % 256, np.uint8)}


def _speckled_batch(items: list[dict[str, Any]]) -> torch.Tensor:
    return torch.stack([speckled(item["image"]) for item in items])


def mosaic() -> Any:
    """Return MosaicML's streaming dataset of local MDS shards in torch's loader."""
    from streaming import MDSWriter, StreamingDataset

    class Shards(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return speckled(super().__getitem__(index)["image"])

    folder = str(scratch() / "mds")
    with MDSWriter(out=folder, columns={"image": "ndarray"}) as writer:
        for entry in range(ENTRIES):
            writer.write(_image(entry))
    return DataLoader(Shards(local=folder, batch_size=SIZE), SIZE, num_workers=WORKERS)


def litdata() -> Any:
    """Return Lightning's streaming dataset of optimized chunks in its own loader."""
    import litdata as lit

    folder = str(scratch() / "litdata")
    lit.optimize(_image, list(range(ENTRIES)), folder, num_workers=1, chunk_bytes="1MB")
    chunks = lit.StreamingDataset(folder)
    return lit.StreamingDataLoader(
        chunks, batch_size=SIZE, num_workers=WORKERS, collate_fn=_speckled_batch
    )


def grain() -> Any:
    """Return Google's loader, which has processes of its own."""
    import grain.python as google

    class Speckled(google.MapTransform):
        def map(self, element: Any) -> Any:
            return speckled(element["image"]).numpy()

    order = google.IndexSampler(ENTRIES, google.NoSharding(), shuffle=True, num_epochs=1, seed=0)
    return google.DataLoader(
        data_source=[_image(entry) for entry in range(ENTRIES)],
        sampler=order,
        operations=[Speckled(), google.Batch(SIZE)],
        worker_count=0,  # threads of this process read
    )


class RayBatches:
    """Batches of a Ray dataset, which processes of Ray's make."""

    def __iter__(self) -> Iterator[Any]:
        import ray

        ray.init(num_cpus=WORKERS, log_to_driver=False, ignore_reinit_error=True)
        images = ray.data.from_items([_image(entry) for entry in range(ENTRIES)])
        noisy = images.map(lambda item: {"image": speckled(item["image"]).numpy()})
        yield from noisy.iter_torch_batches(batch_size=SIZE)


def dali() -> Any:
    """Return NVIDIA's iterator, whose threads read and decode on the CPU."""
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=SIZE, num_threads=WORKERS, device_id=None)
    def pipeline() -> Any:
        files, labels = fn.readers.file(file_root=str(photographs()), name="reader")
        return fn.decoders.image(files), labels

    return DALIGenericIterator(pipeline(), ["image", "label"], reader_name="reader")


def forecasting() -> Any:
    """Return pytorch-forecasting's loader of windows of time series."""
    import pandas as pd
    from pytorch_forecasting import TimeSeriesDataSet

    rows = pd.DataFrame({"time": range(ENTRIES * SIZE), "value": 0.5, "group": "one"})
    windows = TimeSeriesDataSet(
        rows, "time", "value", ["group"], max_encoder_length=8, max_prediction_length=2,
        time_varying_unknown_reals=["value"],
    )  # fmt: skip
    return windows.to_dataloader(batch_size=SIZE, num_workers=WORKERS)


def torchio() -> Any:
    """Return torchio's queue of patches, whose own loader has workers."""
    import torchio as tio

    scans = [tio.Subject(scan=tio.ScalarImage(tensor=torch.rand(1, 8, 8, 8))) for _ in range(9)]
    dataset = tio.SubjectsDataset(scans, transform=tio.Compose([tio.RandomNoise()]))
    queue = tio.Queue(dataset, 8, SIZE, tio.UniformSampler(4), num_workers=WORKERS)
    return tio.SubjectsLoader(queue, batch_size=SIZE)


OTHER_STACKS: dict[str, Callable[[], Any]] = {
    "MosaicML streaming (MDS shards)": mosaic,
    "LitData": litdata,
    "Grain": grain,
    "Ray Data": RayBatches,
    "NVIDIA DALI, on the CPU": dali,
    "pytorch-forecasting": forecasting,
    "torchio's Queue": torchio,
}
