import http.client
import io

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples, store
from real_questions.question import question


class NetworkFile(io.RawIOBase):
    """A file of such a drive."""

    def __init__(self, port, name, size):
        self.port, self.name, self.size, self.place = port, name, size, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.place

    def seek(self, offset, whence=0):
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def readinto(self, buffer):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        last = self.place + len(buffer) - 1
        headers = {"Range": f"bytes={self.place}-{last}"}
        connection.request("GET", f"/{self.name}", headers=headers)
        contents = connection.getresponse().read()
        connection.close()
        buffer[: len(contents)] = contents
        self.place += len(contents)
        return len(contents)


class Hdf5Dataset(Samples):
    """Images of shapes, each of which is read when it is asked for."""

    def __init__(self, port, name, size):
        self.port, self.name, self.size = port, name, size
        self.data = None

    def __getitem__(self, index):
        import h5py

        if self.data is None:
            self.data = h5py.File(NetworkFile(self.port, self.name, self.size), "r")["data"]
        image = self.data[index % len(self.data)]
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255


@question(
    source="disent #49",
    report="HDF5 is read for every sample, a network drive's latency is too high; a copy",
    step_s=0.01,
    causes=("storage-latency",),
    place=r"\bread|[Nn]etwork|[Ss]torage|h5py|Hdf5|[Ss]ocket|getresponse|__getitem__",
    lever=r"memory|local|\bcop(y|ied|ies)|\bcache|prefetch|thread|more workers|num_workers|fewer",
)
def shapes_on_drive(folder):
    """Read images one by one, over a network."""
    import h5py

    draw = np.random.default_rng(0)
    path = folder / "dsprites.h5"
    with h5py.File(path, "w") as file:
        file["data"] = draw.integers(0, 255, (2000, 64, 64, 3), dtype=np.uint8)
    dataset = Hdf5Dataset(store(folder, 0.006), path.name, path.stat().st_size)
    return DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2)
