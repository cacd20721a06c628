"""Parts that several questions use."""

import http.server
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info


def compute(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        sum(range(500))


class PlainSamples(Dataset):
    """Samples that wait a little and compute a little."""

    def __init__(self, wait_s: float, compute_s: float) -> None:
        self.wait_s, self.compute_s = wait_s, compute_s

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        time.sleep(self.wait_s)
        compute(self.compute_s)
        return torch.zeros(3, 32, 32)


def noise(*shape: int) -> np.ndarray:
    """Eight times as large as what is drawn in both last directions, so that it compresses."""
    *whole, height, width = shape
    drawn = (*whole, height // 8, width // 8)
    small = np.random.default_rng(0).integers(0, 255, drawn, dtype=np.uint8)
    return small.repeat(8, -2).repeat(8, -1)


def blocks(*shape: int) -> np.ndarray:
    """Draw an image of large pixels, which compresses as photographs do."""
    height, width, *channels = shape
    small = np.random.default_rng(0).integers(
        0, 255, (height // 8, width // 8, *channels), dtype=np.uint8
    )
    return small.repeat(8, 0).repeat(8, 1)


def own_part(items: list) -> list:
    """Take what falls to this worker."""
    worker = get_worker_info()
    return items[worker.id :: worker.num_workers] if worker else items


class Samples(Dataset):
    """Samples whose epoch does not end while a tool looks on."""

    def __len__(self) -> int:
        return 200_000


class _Store(http.server.SimpleHTTPRequestHandler):
    """Answers each request for a file, or for a range of its bytes, after a delay."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, delay_s: float, *request, **settings) -> None:
        self.delay_s = delay_s
        super().__init__(*request, **settings)

    def do_GET(self) -> None:
        time.sleep(self.delay_s)
        wanted = self.headers["Range"]
        if wanted is None:
            super().do_GET()
            return
        start, end = map(int, wanted.removeprefix("bytes=").split("-"))
        with open(self.translate_path(self.path), "rb") as file:  # noqa: PTH123
            file.seek(start)
            contents = file.read(end - start + 1)
        self.send_response(206)
        self.send_header("Content-Length", str(len(contents)))
        self.end_headers()
        self.wfile.write(contents)

    def log_message(self, *_args) -> None:
        pass


def store(folder: Path, delay_s: float) -> int:
    """Serve the files of a folder as a far store does; return the port."""
    handler = partial(_Store, delay_s, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port
