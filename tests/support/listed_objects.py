"""A server that lists objects as S3 does, of whatever names: those of real servers cannot all be files."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_HEAD = '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>'
_ITEM = (
    "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>"
    "<Size>0</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


@contextmanager
def listing(keys: Collection[str]) -> Iterator[int]:
    """Serve a list of empty objects, whatever is asked for; gives the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None: ...

        def do_GET(self) -> None:
            items = "".join(map(_ITEM.format, keys))
            text = f"{_HEAD}<KeyCount>{len(keys)}</KeyCount><MaxKeys>1000</MaxKeys>{items}"
            data = f"{text}<IsTruncated>false</IsTruncated></ListBucketResult>".encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
