"""An HTTP server between a client of S3 and S3, which can hold, drop, repeat or bare a request."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

CONDITIONS = ("if-match", "if-none-match")
PIECE = 2**18
"""Bytes that are sent at a time where the rate is bounded."""
_WHO = re.compile(r"Credential=([^/]+)/")


@dataclass
class Request:
    """One request: whose it is (the access key), which of his, and what for."""

    author: str
    number: int
    method: str
    path: str

    @property
    def writes_root(self) -> bool:
        """Whether it replaces the root of a store."""
        return self.method == "PUT" and self.path.count("/") == 3 and "zarr.json" in self.path


Rule = Callable[[Request], str | None]
"""What is done to a request: None as it is; "drop" carried out, the answer is lost; "repeat" twice;
"bare" without conditions; "busy" not carried out, with an answer 503; "reset" not carried out,
and the connection closed. A rule may also wait."""


@dataclass
class Proxy:
    """What passes through, and the rule for it.

    rate    bytes a second of a connection, as those of an object store have, or None
    """

    url: str
    rule: Rule = lambda _: None
    rate: float | None = None
    seen: list[Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, author: str, method: str, path: str) -> Request:
        with self._lock:
            number = sum(request.author == author for request in self.seen)
            found = Request(author, number, method, path)
            self.seen.append(found)
        return found

    def options(self, author: str) -> dict[str, Any]:
        """How an author reaches the server."""
        kwargs = {"connect_timeout": 60, "read_timeout": 60}
        return {
            "key": author,
            "secret": "s",
            "endpoint_url": self.url,
            "config_kwargs": kwargs,
        }


@contextmanager
def proxy_to(server: str) -> Iterator[Proxy]:
    """Stand between clients and a server, on this machine alone."""
    place = urlsplit(server)
    assert place.hostname is not None

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def handle_expect_100(self) -> bool:
            held = super().handle_expect_100()
            self.wfile.flush()
            return held

        def _forward(self, headers: dict[str, str], body: bytes) -> tuple[int, Any, bytes]:
            connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
            try:
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {k: v for k, v in self.headers.items() if k.lower() != "expect"}
            who = _WHO.search(self.headers.get("Authorization", ""))
            request = proxy.note(who[1] if who else "", self.command, self.path)
            action = proxy.rule(request)
            if action == "reset":
                self.close_connection = True
                return
            if action == "busy":
                self.send_response_only(503)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if action == "bare":
                headers = {k: v for k, v in headers.items() if k.lower() not in CONDITIONS}
            status, found, data = self._forward(headers, body)
            if action == "repeat":
                status, found, data = self._forward(headers, body)
            if action == "drop":
                self.close_connection = True
                return
            self.send_response_only(status)
            for name, value in found:
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            length = {k.lower(): v for k, v in found}.get("content-length", len(data))
            self.send_header("Content-Length", str(length if self.command == "HEAD" else len(data)))
            self.end_headers()
            if proxy.rate is None:
                self.wfile.write(data)
                return
            begun = time.monotonic()
            for sent in range(0, len(data), PIECE):
                time.sleep(max(0.0, begun + sent / proxy.rate - time.monotonic()))
                self.wfile.write(data[sent : sent + PIECE])

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        proxy = Proxy(f"http://127.0.0.1:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            listening.shutdown()
            thread.join()
