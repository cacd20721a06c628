import http.client
from functools import cached_property

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.parts import store
from real_questions.question import question


class Client:
    """Asks a bucket for its objects."""

    def __init__(self, port):
        self.port = port

    @cached_property
    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port)

    def download_single(self, object_name):
        self.connection.request("GET", f"/{object_name}")
        return self.connection.getresponse().read()


class DataFluxMapStyleDataset(Dataset):
    """The objects of a bucket, each of which is a sample."""

    def __init__(self, port, objects):
        self.storage_client, self.objects = Client(port), objects

    def data_format_fn(self, raw):
        return np.frombuffer(raw, np.uint8)

    def __len__(self):
        return 500_000

    def __getitem__(self, idx):
        name = self.objects[idx % len(self.objects)]
        return self.data_format_fn(self.storage_client.download_single(name))

    def __getitems__(self, indices):
        return [self[idx] for idx in indices]


@question(
    source="gcs-connector-for-pytorch #44",
    report="410 s for an epoch of small objects, 31 s with 16 threads",
    step_s=0.05,
    causes=("storage-latency",),
    place=r"[Ss]tor(e|age)|request|latency|network|socket|download|DataFlux|read",
    lever=r"thread|concurren|at once|parallel|together|same time|overlap|more workers|num_workers|"
    r"shard|local|\bcop(y|ied)\b|\bcache|fewer, larger|prefetch",
)
def objects_in_sequence(folder):
    """Ask for small objects, one request after the other."""
    draw = np.random.default_rng(0)
    names = [f"object-{number}.bin" for number in range(300)]
    for name in names:
        (folder / name).write_bytes(draw.bytes(10_000))
    dataset = DataFluxMapStyleDataset(store(folder, 0.015), names)
    return DataLoader(dataset, batch_size=16, num_workers=2, collate_fn=objects_to_batch)


def objects_to_batch(samples):
    return torch.from_numpy(np.stack(samples))
