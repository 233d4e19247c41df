"""Every failure of a store leaves as an error of ours, in time, with what to do next, without secrets."""

from __future__ import annotations

import errno
import http.server
import json
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from slackwater.errors import InvalidInput, NotFound, SlackwaterError, Unavailable, Unsupported
from slackwater.settings import Settings
from slackwater.store import Store, disk, files, local_folder, open_store
from slackwater.store.verbs import HIDDEN
from tests.services import seaweed

HASTY = Settings(request_timeout_s=0.5, total_timeout_s=2.0)
SECRET = "wJalr-fake-secret/EXAMPLE+KEY"


# --- URLs and options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "", "  ", "ftp://host/x", "s3a://bucket/x", "s3:bucket", "s3://", "s3:///prefix", f"s3://user:{SECRET}@bucket/x",
        f"s3://bucket/x?secret_access_key={SECRET}", f"s3://bucket/x#{SECRET}", "s3://buc ket/x", "s3://bucket:80/x",
        "file://host/path", "file:relative", "file:///a?b=c", "memory://x", "memory:a/b", f"x:{SECRET}", "a\0b",
        "file:///tmp/a%00b", "s3://bucket\0/x", "memory:a\0", "a\ud800b", b"/tmp/x", 5,
    ],
)  # fmt: skip
def test_a_bad_url_is_refused_with_a_hint_and_never_echoed(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url)
    assert caught.value.code == "store.invalid" and "the store" in str(caught.value)
    assert caught.value.hint
    assert SECRET not in _everything(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket/../x", "s3://bucket/a//b", "gs://bucket/a#1/b"])
def test_a_root_that_walks_upwards_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(url)


def test_a_file_cannot_be_a_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput) as caught:
        open_store(str(tmp_path / "file"))
    assert caught.value.code == "store.invalid" and "the store" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket", {"no_such_option": SECRET}),
        ("s3://bucket", {"endpoint": f"https://user:{SECRET}@host"}),
        ("s3://bucket", {"endpoint": "http://example.org", "secret_access_key": SECRET}),
        ("s3://bucket", {"unsigned_payload": SECRET}),
        ("s3://bucket", {"url": SECRET}),
        ("s3://bucket", {"settings": SECRET}),
        ("s3://bucket", {"endpoint": 5, "secret_access_key": SECRET}),
        ("s3://bucket", {"region": [SECRET]}),
        ("az://container", {"secret_access_key": SECRET}),
        ("memory:", {"secret_access_key": SECRET}),
        ("/tmp/x", {"secret_access_key": SECRET}),
    ],
)
def test_a_bad_option_is_refused_and_its_value_never_shown(url: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url, None, **options)
    assert caught.value.code == "store.invalid" and "the store cannot be opened" in str(caught.value)
    assert SECRET not in _everything(caught.value)


def test_plain_http_needs_loopback_or_the_users_word() -> None:
    for endpoint in ("http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1", "https://example.org"):
        assert open_store("s3://bucket", endpoint=endpoint)
    assert open_store("s3://bucket", endpoint="http://example.org", allow_http="true")


def test_every_spelling_of_a_folder_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "with space+%41"
    open_store(str(folder)).put("k", b"v")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in (
        str(folder),
        folder.as_uri(),
        f"file:{folder.as_uri()[7:]}",
        folder.name,
        f"./{folder.name}",
        f"~/{folder.name}",
    ):
        store = open_store(url)
        assert store.get("k") == b"v" and local_folder(url) == local_folder(store.url) == folder
        assert store.url == folder.as_uri()
        assert open_store(store.url).get("k") == b"v"


def test_memory_is_shared_by_name_only() -> None:
    open_store("memory:shared").put("k", b"v")
    open_store("memory:").put("k", b"v")
    assert open_store("memory:shared").get("k") == b"v"
    assert open_store("memory:other").list("") == open_store("memory:").list("") == []


# --- the disk -----------------------------------------------------------------------------------------------------


class Failing:
    """The ``os`` module with one call that fails."""

    def __init__(self, call: str, number: int) -> None:
        self._call, self._number = call, number

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._call else getattr(os, name)

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize("verb", ["put", "create"])
@pytest.mark.parametrize(
    ("call", "number", "kind", "code"),
    [
        ("write", errno.ENOSPC, Unavailable, "store.full"),
        ("write", errno.EDQUOT, Unavailable, "store.full"),
        ("fsync", errno.EIO, Unavailable, "store.unavailable"),
        ("fsync", errno.ENOSPC, Unavailable, "store.full"),
        ("open", errno.EACCES, Unavailable, "store.denied"),
        ("open", errno.EROFS, Unavailable, "store.denied"),
        ("open", errno.EMFILE, Unavailable, "store.unavailable"),
        ("mkdir", errno.EPERM, Unavailable, "store.denied"),
        ("mkdir", errno.ENOSPC, Unavailable, "store.full"),
    ],
)
def test_a_failing_disk_is_named_and_nothing_half_written_stays(
    *, verb, call, number, kind, code, tmp_path, monkeypatch
) -> None:
    store = open_store(str(tmp_path))
    store.put("old/key", b"old")
    with monkeypatch.context() as patch, pytest.raises(SlackwaterError) as caught:
        for module in (disk, files):
            patch.setattr(module, "os", Failing(call, number))
        getattr(store, verb)("new/key" if call == "mkdir" else "old/key", b"new")
    assert (type(caught.value), caught.value.code) == (kind, code)
    assert caught.value.hint
    assert store.get("old/key") == b"old"
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["old/key"]


def test_a_file_system_without_hard_links_cannot_create(tmp_path, monkeypatch) -> None:
    store = open_store(str(tmp_path))
    monkeypatch.setattr(disk, "os", Failing("link", errno.EPERM))
    with pytest.raises(Unsupported) as caught:
        store.create("key", b"")
    assert caught.value.code == "store.unsupported" and "hard links" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_real_limit_on_file_size_is_a_full_store_with_nothing_left(tmp_path) -> None:
    program = """
import resource, sys
from slackwater.errors import Unavailable
from slackwater.store import open_store
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
store = open_store(sys.argv[1])
store.put("small", bytes(10_000))
for write in (store.put, store.create):
    try:
        write("large", bytes(10_001))
    except Unavailable as error:
        print(error.code)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, check=True
    )
    assert ran.stdout.split() == [b"store.full", b"store.full"]
    assert os.listdir(tmp_path) == ["small"]


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("a/b", b"")
    for write in (lambda: store.put("a/b/c", b""), lambda: store.create("a/b/c/d", b""), lambda: store.put("a", b"")):
        with pytest.raises(InvalidInput) as caught:
            write()
        assert caught.value.code == "store.invalid" and "a file stands where" in str(caught.value)
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b"]
    assert not any(HIDDEN.fullmatch(path.name) for path in tmp_path.rglob("*"))


def test_a_link_below_the_root_leads_nowhere(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "secret").write_text("secret")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    store = open_store(str(root))
    for call in (
        lambda: store.get("folder/secret"),
        lambda: store.get("file"),
        lambda: store.put("folder/new", b""),
        lambda: store.create("folder/new", b""),
        lambda: store.delete(["folder/secret"]),
        lambda: store.list("folder/"),
        lambda: store.move("folder/secret", "mine"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.code == "store.invalid"
    assert [listed.key for listed in store.list("")] == ["file", "folder"], "a link must not look like nothing"
    assert store.list_folders("") == []
    assert store.create("file", b"") is False
    store.put("file", b"replaces the link itself")
    store.delete(["file"])
    assert (outside / "secret").read_text() == "secret"
    assert os.listdir(outside) == ["secret"]


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    store = open_store(str(tmp_path / "link"))
    store.put("a/b", b"v")
    assert (tmp_path / "target" / "a" / "b").read_bytes() == b"v"
    assert store.get("a/b") == b"v"


def test_what_is_no_file_is_listed_and_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    store = open_store(str(tmp_path))
    assert [listed.key for listed in store.list("")] == ["pipe"]
    with pytest.raises(InvalidInput) as caught:
        store.get("pipe")
    assert caught.value.code == "store.invalid"


def test_a_root_that_vanishes_is_made_again(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    store.put("a/b", b"1")
    os.unlink(tmp_path / "root/a/b")
    os.rmdir(tmp_path / "root/a")
    os.rmdir(tmp_path / "root")
    assert store.list("") == []
    store.put("a/b", b"2")
    assert store.get("a/b") == b"2"


# --- S3 -----------------------------------------------------------------------------------------------------------


def _everything(error: BaseException) -> str:
    """Collect all that a log, a traceback or a pickle of the error could show."""
    shown = "".join(traceback.format_exception(error)) + repr(error)
    return shown + (repr(pickle.loads(pickle.dumps(error)).__dict__) if isinstance(error, SlackwaterError) else "")


def verbs(store: Store) -> dict[str, Any]:
    return {
        "get": lambda: store.get("k"),
        "get a range": lambda: store.get("k", offset=1, size=1),
        "put": lambda: store.put("k", b"v"),
        "create": lambda: store.create("k", b"v"),
        "list": lambda: store.list(""),
        "list_names": lambda: store.list_names(""),
        "list_folders": lambda: store.list_folders(""),
        "delete": lambda: store.delete(["k"]),
        "move": lambda: store.move("k", "l"),
    }


@pytest.mark.parametrize("verb", verbs(open_store("memory:")))
def test_a_closed_port_is_unavailable_within_the_deadline_and_shows_no_secret(verb: str) -> None:
    with socket.socket() as reserved:  # bound but not listening: connections are refused
        reserved.bind(("127.0.0.1", 0))
        options = {"access_key_id": "AKIAFAKE", "secret_access_key": SECRET, "session_token": SECRET[::-1]}
        options["endpoint"] = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        store = open_store("s3://bucket/prefix", HASTY, **options)
        began = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            verbs(store)[verb]()
    assert time.monotonic() - began < 5
    assert caught.value.code == "store.unavailable"
    assert caught.value.hint
    shown = _everything(caught.value) + repr(store) + store.url
    assert not [text for text in ("AKIAFAKE", SECRET, SECRET[::-1], "Signature", "Debug") if text in shown]


@pytest.mark.parametrize("verb", ["get", "put", "create", "list", "delete"])
def test_a_server_that_does_not_answer_is_unavailable_within_the_deadline(
    verb: str, s3_server: seaweed.Seaweed
) -> None:
    store = open_store(s3_server.url("silent"), HASTY, **s3_server.options)
    store.create("warm", b"")
    with s3_server.stopped():
        began = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            verbs(store)[verb]()
        assert time.monotonic() - began < 5
    assert caught.value.code == "store.unavailable"
    assert seaweed.SECRET_KEY not in _everything(caught.value)
    store.put("k", b"v")
    assert store.get("k") == b"v"


@pytest.mark.parametrize("verb", ["get", "put", "list"])
def test_a_server_that_comes_back_within_the_deadline_is_a_success(verb: str, s3_server: seaweed.Seaweed) -> None:
    patient = Settings(request_timeout_s=0.5, total_timeout_s=30)
    store = open_store(s3_server.url("patient"), patient, **s3_server.options)
    store.put("k", b"v")
    s3_server.stop()
    waking = threading.Timer(1.5, s3_server.go_on)
    waking.start()
    try:
        began = time.monotonic()
        verbs(store)[verb]()
        assert time.monotonic() - began > 1
    finally:
        waking.join()
    assert store.get("k") == b"v"


@pytest.mark.parametrize("verb", verbs(open_store("memory:")))
def test_wrong_credentials_are_denied_and_never_shown(verb: str, s3_server: seaweed.Seaweed) -> None:
    store = open_store(s3_server.url("denied"), None, **{**s3_server.options, "secret_access_key": SECRET})
    with pytest.raises(Unavailable) as caught:
        verbs(store)[verb]()
    assert caught.value.code == "store.denied"
    assert "credentials" in (caught.value.hint or "")
    shown = _everything(caught.value) + repr(store)
    assert not [text for text in (SECRET, seaweed.ACCESS_KEY, "Signature", "Debug") if text in shown]


@pytest.mark.parametrize("verb", ["get", "list"])
def test_a_missing_bucket_is_named_and_is_never_an_empty_store(verb: str, s3_server: seaweed.Seaweed) -> None:
    store = open_store("s3://no-such-bucket/x", None, **s3_server.options)
    with pytest.raises(NotFound) as caught:
        verbs(store)[verb]()
    assert caught.value.code == "folder.not_found" and "the bucket does not exist" in str(caught.value)


class Scripted(http.server.BaseHTTPRequestHandler):
    """A server that speaks as much S3 as a create needs, with flaws that real servers and networks have."""

    objects: ClassVar[dict[str, bytes]] = {}
    honours_conditions = True
    fails_after_writing = 0
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.honours_conditions and "If-None-Match" in self.headers and self.path in self.objects:
            return self._answer(412)
        self.objects[self.path] = data
        if type(self).fails_after_writing and "If-None-Match" in self.headers:
            type(self).fails_after_writing -= 1
            return self._answer(503)
        return self._answer(200)

    def do_GET(self) -> None:
        self._answer(200, self.objects[self.path])

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self._answer(204)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), "ETag": '"1"', "Last-Modified": "Mon, 16 Nov 2026 00:00:00 GMT"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[tuple[type[Scripted], Store]]:
    class Handler(Scripted):
        objects: ClassVar[dict[str, bytes]] = {}

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {"access_key_id": "a", "secret_access_key": "b", "disable_bulk_delete": "true"}
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        yield Handler, open_store("s3://b/p", HASTY, endpoint=endpoint, **options)
        server.shutdown()


def test_a_server_that_ignores_the_condition_of_a_create_is_refused_before_the_first(scripted) -> None:
    handler, store = scripted
    handler.honours_conditions = False
    for _ in range(2):
        with pytest.raises(Unsupported) as caught:
            store.create("log/1", b"mine")
        assert caught.value.code == "store.unsupported" and "If-None-Match" in str(caught.value)
    assert handler.objects == {}


def test_a_server_is_tried_once_and_nothing_of_the_trial_stays(scripted) -> None:
    handler, store = scripted
    assert store.create("log/1", b"mine") is True
    assert store.create("log/1", b"mine") is False
    assert handler.objects == {"/b/p/log/1": b"mine"}


class OtherCloud(Scripted):
    """As much of Google Cloud Storage and of Azure as a create takes, by the conditions that they have."""

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        conditional = self.headers.get("x-goog-if-generation-match") == "0" or self.headers.get("If-None-Match") == "*"
        if self.honours_conditions and conditional and self._key in self.objects:
            return self._answer(409 if "x-ms-version" in self.headers else 412)
        self.objects[self._key] = data
        return self._answer(201)

    def do_DELETE(self) -> None:
        self.objects.pop(self._key, None)
        self._answer(202)

    @property
    def _key(self) -> str:
        return urlsplit(self.path).path

    def do_POST(self) -> None:
        """Delete several blobs in one request: Azure's way."""
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        paths = re.findall(r"DELETE (\S+) HTTP", asked)
        for path in paths:
            self.objects.pop(urlsplit(path).path, None)
        parts = [
            f"--b\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n"
            for number in range(len(paths))
        ]
        body = ("".join(parts) + "--b--\r\n").encode()
        self.send_response(202)
        self.send_header("Content-Type", "multipart/mixed; boundary=b")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def options_of(scheme: str, endpoint: str) -> dict[str, str]:
    """Options that lead a client to this machine, and nowhere else: not for a token, either."""
    if scheme == "az":
        return {"endpoint": endpoint, "account_name": "a", "skip_signature": "true"}
    nobody = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
    return {"service_account_key": json.dumps({"gcs_base_url": endpoint, **nobody}), "allow_http": "true"}


@pytest.mark.parametrize("honours", [True, False])
@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_every_cloud_is_tried_before_the_first_create(scheme: str, honours: bool) -> None:
    class Handler(OtherCloud):
        objects: ClassVar[dict[str, bytes]] = {}
        honours_conditions = honours

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        store = open_store(f"{scheme}://b/{honours}", HASTY, **options_of(scheme, endpoint))
        if honours:
            assert store.create("log/1", b"mine") is True
            assert store.create("log/1", b"other") is False
            assert list(Handler.objects.values()) == [b"mine"]
        else:
            with pytest.raises(Unsupported) as caught:
                store.create("log/1", b"mine")
            assert caught.value.code == "store.unsupported" and "If-None-Match" in str(caught.value)
            assert Handler.objects == {}
        server.shutdown()


def test_a_create_whose_answer_was_an_error_may_be_told_that_its_own_object_is_in_the_way(scripted) -> None:
    handler, store = scripted
    store.create("log/1", b"before")
    handler.fails_after_writing = 1
    assert store.create("log/2", b"mine") is False
    assert store.get("log/2") == b"mine"


def test_a_server_that_only_fails_is_unavailable_with_its_status(scripted) -> None:
    handler, store = scripted
    store.create("log/1", b"before")
    handler.fails_after_writing, handler.honours_conditions = 1000, False
    with pytest.raises(Unavailable) as caught:
        store.create("log/2", b"mine")
    assert caught.value.code == "store.unavailable"
    assert "status 503" in str(caught.value)
