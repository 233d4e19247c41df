"""A real S3 server on loopback: SeaweedFS in a folder of its own, stopped by its pid."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from obstore.exceptions import BaseError
from obstore.store import S3Store

BUCKET = "slackwater"
ACCESS_KEY = "TESTONLYACCESSKEY"
SECRET_KEY = "test-only-secret-that-must-never-be-shown"
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
    "s3.port.grpc",
    "s3.port",
)


class Seaweed:
    """A running server. ``options`` are for ``open_store``."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.endpoint = f"http://127.0.0.1:{port}"
        self.options = {"endpoint": self.endpoint, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}

    def url(self, prefix: str) -> str:
        """Name a folder in the server's bucket."""
        return f"s3://{BUCKET}/{prefix}"

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the server answer nothing for a while; it still accepts connections."""
        self.stop()
        try:
            yield
        finally:
            self.go_on()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)  # until then some of its threads still answer

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def running() -> Iterator[Seaweed]:
    """Start a server, wait until its bucket answers, and end it afterwards with all that it wrote."""
    folder = Path(tempfile.mkdtemp(prefix="seaweed-"))
    ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "test", "credentials": credentials, "actions": actions}
    (folder / "ids.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    command = [
        *(str(Path(sys.executable).with_name("weed")), "-logtostderr", "mini"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-dir=data", "-s3.config=ids.json", f"-bucket={BUCKET}"),
        *("-admin.ui=false", "-webdav=false", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *(f"-s3.localSocket={folder}/s3.sock", f"-filer.localSocket={folder}/filer.sock"),
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        server = Seaweed(process, ports["s3.port"])
        _wait_for_bucket(server, process, folder / "log")
        yield server
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder)
        for left in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{ports['filer.port.grpc']}.sock"):
            left.unlink()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _wait_for_bucket(server: Seaweed, process: subprocess.Popen[bytes], log: Path) -> None:
    config = {**server.options, "allow_http": "true", "timeout": "2s"}
    bucket = S3Store(BUCKET, config=config, retry_config={"max_retries": 0})  # type: ignore[arg-type]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(BaseError, FileNotFoundError):
            bucket.list().collect()
            return
        time.sleep(0.05)
    raise RuntimeError(f"SeaweedFS did not start (exit code {process.poll()}): {log.read_text()[-2000:]}")
