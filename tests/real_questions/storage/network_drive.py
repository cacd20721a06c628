from __future__ import annotations

import http.client
import http.server
import io
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import Question

if TYPE_CHECKING:
    from pathlib import Path


class _Share(http.server.SimpleHTTPRequestHandler):
    """A drive that is some way off."""

    def do_GET(self) -> None:
        start, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        time.sleep(0.006)
        with open(self.translate_path(self.path), "rb") as file:  # noqa: PTH123
            file.seek(start)
            contents = file.read(end - start + 1)
        self.send_response(206)
        self.send_header("Content-Length", str(len(contents)))
        self.end_headers()
        self.wfile.write(contents)

    def log_message(self, *_args) -> None:
        pass


class NetworkFile(io.RawIOBase):
    """A file of such a drive."""

    def __init__(self, port: int, name: str, size: int) -> None:
        self.port, self.name, self.size, self.place = port, name, size, 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that one can go to a place in it."""
        return True

    def tell(self) -> int:
        """Say where one is."""
        return self.place

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def readinto(self, buffer) -> int:
        """Read from there."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        last = self.place + len(buffer) - 1
        headers = {"Range": f"bytes={self.place}-{last}"}
        connection.request("GET", f"/{self.name}", headers=headers)
        contents = connection.getresponse().read()
        connection.close()
        buffer[: len(contents)] = contents
        self.place += len(contents)
        return len(contents)


class Hdf5Dataset(Dataset):
    """Images of shapes, each of which is read when it is asked for."""

    def __init__(self, port: int, name: str, size: int) -> None:
        self.port, self.name, self.size = port, name, size
        self.data = None

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index):
        import h5py

        if self.data is None:
            self.data = h5py.File(NetworkFile(self.port, self.name, self.size), "r")["data"]
        image = self.data[index % len(self.data)]
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255


def shapes_on_drive(folder: Path) -> DataLoader:
    """Read images one by one, over a network."""
    import h5py

    draw = np.random.default_rng(0)
    path = folder / "dsprites.h5"
    with h5py.File(path, "w") as file:
        file["data"] = draw.integers(0, 255, (2000, 64, 64, 3), dtype=np.uint8)
    handler = partial(_Share, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    dataset = Hdf5Dataset(server.server_port, path.name, path.stat().st_size)
    return DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2)


QUESTION = Question(
    name="network-drive",
    source="disent #49",
    report="HDF5 is read for every sample, a network drive's latency is too high; a copy",
    make=shapes_on_drive,
    step_s=0.01,
    causes=("storage-latency",),
    place=r"\bread|[Nn]etwork|[Ss]torage|h5py|Hdf5|[Ss]ocket|getresponse|__getitem__",
    lever=r"memory|local|\bcop(y|ied|ies)|\bcache|prefetch|thread|more workers|num_workers|fewer",
)
