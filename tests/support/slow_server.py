"""Servers on the loopback: a folder by HTTP, and a proxy that is as slow as it says.

The proxy holds back each request for a latency, hands answers over at a bandwidth that all share,
and may stop in the middle of an answer, or cut the connection there.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from contextlib import contextmanager, suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class _Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        """Say nothing."""


class _Patient(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """Clients ask for a hundred files at once; those that do not fit in try again after seconds."""


@contextmanager
def folder_server(folder):
    """A folder by HTTP, with a page that lists it; gives the port."""
    server = _Patient(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Proxy:
    """Stands before a server.

    Args:
        port: of the server.
        latency_s: of each request.
        bytes_per_s: that all answers share.
        stops_after: bytes of an answer after which nothing comes; None: all comes.
        cuts: whether it closes the connection there.

    Attributes:
        requests: that were made of it.
    """

    def __init__(self, port, latency_s=0.0, bytes_per_s=1e12, stops_after=None, cuts=False) -> None:
        self.port = None
        self._server_port = port
        self.latency_s, self.bytes_per_s = latency_s, bytes_per_s
        self.stops_after, self.cuts = stops_after, cuts
        self.requests = 0
        self._free_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        while self.port is None:
            time.sleep(0.01)
        return self

    def __exit__(self, *_) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    async def _serve(self, reader, writer) -> None:
        with suppress(OSError, asyncio.CancelledError):
            theirs = await asyncio.open_connection("127.0.0.1", self._server_port)
            both = (self._requests(reader, theirs[1]), self._answers(theirs[0], writer))
            await asyncio.gather(*both, return_exceptions=True)
            for one in (writer, theirs[1]):
                one.close()

    async def _requests(self, reader, writer) -> None:
        while piece := await reader.read(1 << 16):
            self.requests += 1
            await asyncio.sleep(self.latency_s)
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def _answers(self, reader, writer) -> None:
        came = 0
        while piece := await reader.read(1 << 14):
            came += len(piece)
            if self.stops_after is not None and came > self.stops_after:
                if not self.cuts:
                    await asyncio.sleep(3600)
                break
            now = self._loop.time()
            self._free_s = max(self._free_s, now) + len(piece) / self.bytes_per_s
            await asyncio.sleep(self._free_s - now)
            writer.write(piece)
            await writer.drain()
        writer.close()
