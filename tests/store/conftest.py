"""Every kind of store that the conformance suite runs on."""

from __future__ import annotations

import uuid

import pytest

from slackwater.store import Store, open_store
from tests.services import seaweed


@pytest.fixture(scope="session")
def s3_server():
    with seaweed.running() as server:
        yield server


@pytest.fixture(params=["memory", "disk", "s3"])
def store(request, tmp_path) -> Store:
    if request.param == "memory":
        return open_store("memory:")
    if request.param == "disk":
        return open_store(str(tmp_path / "root"))
    server = request.getfixturevalue("s3_server")
    return open_store(server.url(f"run-{uuid.uuid4()}/root"), **server.options)
