import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from urllib.request import urlopen

import numpy as np
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Slow(BaseHTTPRequestHandler):
    """Answer each request after 30 ms, as object storage does."""

    def do_GET(self):
        time.sleep(0.03)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(bytes(20_000))

    def log_message(self, *_given):
        """Say nothing."""


def _serve(port):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    port.send(server.server_port)
    server.serve_forever()


class _Objects(Samples):
    """One small object a sample, each a request of its own."""

    def __init__(self, port):
        self.address = f"http://127.0.0.1:{port}"

    def __getitem__(self, index):
        with urlopen(f"{self.address}/{index}") as answer:  # noqa: S310 - our own server
            return np.frombuffer(answer.read(), np.uint8).copy()


@question(
    source="rf-detr #1396",
    report="CPU hardly used",
    step_s=0.05,
    causes=("storage-latency",),
    place=r"wait",
    lever=r"shard|more workers|at once",
)
def object_storage(_folder):
    """Ask for one small file after the other."""
    here, there = get_context("fork").Pipe()
    get_context("fork").Process(target=_serve, args=(there,), daemon=True).start()
    return DataLoader(_Objects(here.recv()), batch_size=8, num_workers=2)
