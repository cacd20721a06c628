"""A folder by HTTP, on the loopback; it may cut each answer short."""

import functools
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, most_bytes, *request, **named) -> None:
        self.most_bytes = most_bytes
        super().__init__(*request, **named)

    def copyfile(self, source, outputfile) -> None:
        outputfile.write(contents := source.read(self.most_bytes))
        self.close_connection = len(contents) == self.most_bytes

    def log_message(self, *_) -> None:
        """Write no log."""


class _Patient(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """Clients ask for a hundred files at once; those that do not fit in try again after seconds."""


@contextmanager
def folder_server(folder, most_bytes=-1):
    """Serve a folder, with a page that lists it, and yield the port.

    Args:
        folder: its files.
        most_bytes: of an answer, after which the connection is cut; -1: all come.
    """
    handler = functools.partial(_Handler, most_bytes, directory=str(folder))
    server = _Patient(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
