"""A server on loopback that speaks enough S3 for a store, with the flaws that some real ones have."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_DATE = "2026-11-16T00:00:00.000Z"


class TinyS3(http.server.ThreadingHTTPServer):
    """The objects of one bucket in memory, and what is wrong with the server."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.asked: list[str] = []  # get, put, list, delete, bulk delete
        self.lock = threading.Lock()
        self.ignores_conditions = False
        self.refuses_conditions = False
        self.checks_before_it_writes = False  # the condition is checked, and not together with the write
        self.ignores_ranges = False
        self.hides_from_lists: set[str] = set()  # parts of keys
        self.keeps: set[str] = set()  # parts of keys that a delete passes over without a word
        self.denied: set[str] = set()  # of get, put, list, delete; a bulk delete is denied key by key
        self.fails_parts_from = 1_000_000
        self.delays_s: dict[str, float] = {}
        self.options = {
            "endpoint": f"http://127.0.0.1:{self.server_address[1]}",
            "access_key_id": "a",
            "secret_access_key": "b",
        }

    def handle_error(self, *_: Any) -> None:
        pass


class _Handler(http.server.BaseHTTPRequestHandler):
    server: TinyS3
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def _begin(self, verb: str) -> bool:
        self.key = unquote(urlsplit(self.path).path).removeprefix("/bucket").lstrip("/")
        self.query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, True).items()}
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(verb)
        time.sleep(self.server.delays_s.get(verb, 0))
        if verb in self.server.denied:
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            return False
        return True

    def do_PUT(self) -> None:
        if not self._begin("put"):
            return None
        if "partNumber" in self.query:
            return self._put_part(int(self.query["partNumber"]))
        if source := self.headers.get("x-amz-copy-source"):
            return self._copy(unquote(source).removeprefix("/").removeprefix("bucket/"))
        return self._put()

    def _put_part(self, number: int) -> None:
        if number >= self.server.fails_parts_from:
            return self._answer(400, b"<Error><Code>InvalidPart</Code></Error>")
        self.server.uploads[self.query["uploadId"]][number] = self.body
        return self._answer(200)

    def _copy(self, source: str) -> None:
        if source not in self.server.objects:
            return self._missing()
        self.server.objects[self.key] = self.server.objects[source]
        return self._answer(200, f"<R><ETag>1</ETag><LastModified>{_DATE}</LastModified></R>".encode())

    def _put(self) -> None:
        server = self.server
        if "If-None-Match" in self.headers and server.refuses_conditions:
            return self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")
        conditional = "If-None-Match" in self.headers and not server.ignores_conditions
        with contextlib.nullcontext() if server.checks_before_it_writes else server.lock:
            if conditional and self.key in server.objects:
                return self._answer(412)
            if conditional and server.checks_before_it_writes:
                time.sleep(0.05)
            server.objects[self.key] = self.body
        return self._answer(200)

    def do_POST(self) -> None:
        server = self.server
        if "delete" in self.query_of_path():
            if not self._begin("bulk delete"):
                return None
            keys = [element.text or "" for element in ElementTree.fromstring(self.body).iter() if _is(element, "Key")]
            if "delete" in server.denied:
                why = "<Code>AccessDenied</Code><Message>Access Denied</Message>"
                rows = "".join(f"<Error><Key>{escape(key)}</Key>{why}</Error>" for key in keys)
            else:
                rows = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
                for key in keys:
                    if not any(part in key for part in server.keeps):
                        server.objects.pop(key, None)
            return self._answer(200, f"<DeleteResult>{rows}</DeleteResult>".encode())
        if not self._begin("put"):
            return None
        if "uploads" in self.query:
            upload = f"upload-{len(server.asked)}"
            server.uploads[upload] = {}
            return self._answer(200, f"<R><UploadId>{upload}</UploadId></R>".encode())
        parts = server.uploads.pop(self.query["uploadId"])
        server.objects[self.key] = b"".join(parts[number] for number in sorted(parts))
        return self._answer(200, b"<R><ETag>1</ETag></R>")

    def query_of_path(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, True)

    def do_DELETE(self) -> None:
        if self._begin("delete"):
            if "uploadId" in self.query:
                self.server.uploads.pop(self.query["uploadId"], None)
            else:
                self.server.objects.pop(self.key, None)
            self._answer(204)

    def do_GET(self) -> None:
        if "list-type" in self.query_of_path():
            return self._list() if self._begin("list") else None
        return self._get() if self._begin("get") else None

    do_HEAD = do_GET

    def _get(self) -> None:
        if self.key not in self.server.objects:
            return self._missing()
        data = self.server.objects[self.key]
        wanted = self.headers.get("Range")
        if not wanted or self.server.ignores_ranges:
            return self._answer(200, data)
        first, last = wanted.removeprefix("bytes=").split("-")
        begin, end = int(first), min(int(last) + 1 if last else len(data), len(data))
        if begin >= len(data):
            return self._answer(416, b"<Error><Code>InvalidRange</Code></Error>")
        return self._answer(206, data[begin:end], {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})

    def _list(self) -> None:
        prefix, after = self.query.get("prefix", ""), self.query.get("start-after", "")
        keys = [key for key in sorted(self.server.objects) if key.startswith(prefix) and key > after]
        keys = [key for key in keys if not any(part in key for part in self.server.hides_from_lists)]
        folders: set[str] = set()
        if delimiter := self.query.get("delimiter"):
            folders = {
                prefix + k[len(prefix) :].split(delimiter)[0] + "/" for k in keys if delimiter in k[len(prefix) :]
            }
            keys = [key for key in keys if delimiter not in key[len(prefix) :]]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.objects[key])}</Size>"
            f"<LastModified>{_DATE}</LastModified><ETag>1</ETag></Contents>"
            for key in keys
        )
        rows += "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode())

    def _missing(self) -> None:
        # As S3 does, to those who may not list.
        self._answer(403 if "list" in self.server.denied else 404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        told = {"Content-Length": str(len(body)), "ETag": '"1"', "Last-Modified": "Mon, 16 Nov 2026 00:00:00 GMT"}
        for name, value in {**told, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _is(element: ElementTree.Element, name: str) -> bool:
    return element.tag.rpartition("}")[2] == name


@contextlib.contextmanager
def running() -> Iterator[TinyS3]:
    """Serve until the block ends."""
    with TinyS3() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
