"""SIGKILL of receivers at every step, with senders that retry: nothing acknowledged is lost, nothing comes twice."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from slackwater.inboxes.files import read_published
from slackwater.inboxes.group_commit import KILLED
from slackwater.inboxes.reader import read_contents
from tests.crash.receivers import NDJSON, Collector, Receiver, post

# In the order of the path; what is written is written at the open, when receiving begins, and for each request.
POINTS = [
    "inbox.open.after",
    "document.write.after",
    "inbox.write.before",
    "inbox.write.before@5",
    "inbox.write.after@2",
    "inbox.write.after@6",
    "inbox.publish.after@4",
    "inbox.drop.after",
    "inbox.write.after@9",
    "inbox.publish.after@12",
    "inbox.drop.after@2",
]


def test_a_receiver_killed_at_every_step_loses_and_repeats_nothing_that_is_sent_until_it_is_acknowledged(tmp_path):
    folder = tmp_path / "inbox"
    collector = Collector(folder)
    sent = kills = 0
    for point in [*POINTS, ""]:
        receiver = Receiver("http", folder, "--listen", "127.0.0.1:0", failpoints=f"{point}=kill" if point else "")
        port = receiver.port()
        first = sent
        while port is not None and receiver.process.poll() is None and (point or sent < first + 20):
            messages = [{"sender": 1, "number": 3 * sent + part} for part in range(3)]
            body = b"\n".join(json.dumps(message).encode() for message in messages)
            try:
                status, answer = post(port, body, Idempotency_Key=f"request {sent}", Content_Type=NDJSON)
            except OSError:
                continue  # no answer: the same once more, to this receiver or to the next
            assert (status, answer["accepted"], answer["first"]) == (200, 3, 3 * sent + 1), answer
            sent += 1
            assert sent < first + 500, f"{point} was never reached"
            if sent % 4 == 0:
                collector.collect()
        code, _ = receiver.end()
        kills += code == -signal.SIGKILL
        assert code == (-signal.SIGKILL if point else 0), receiver.words
    collector.collect()
    assert [json.loads(row)["number"] for row in collector.rows] == list(range(3 * sent))
    gaps = read_contents(folder).gaps
    assert kills == len(POINTS)
    assert gaps and {gap.why for gap in gaps} == {KILLED}
    assert all(gap.from_ms <= gap.to_ms for gap in gaps)


@pytest.mark.parametrize(("point", "durable"), [("inbox.write.before", False), ("inbox.write.after", True)])
def test_a_message_is_not_acknowledged_by_a_write_that_fails(tmp_path, point, durable):
    """A kill cannot show an answer that comes too early: it ends the process before the answer leaves it."""
    folder = tmp_path / "inbox"
    # Written before: its uid, and that it receives.
    receiver = Receiver("http", folder, "--listen", "127.0.0.1:0", failpoints=f"{point}@3=raise")
    port = receiver.port()
    assert port is not None
    status, answer = post(port, b"1", Idempotency_Key="a")
    assert (status, answer["error"]["code"]) == (503, "failpoint.raised")
    receiver.process.wait(60)
    assert receiver.end()[0] == 1, "it ends, and says why"
    assert read_published(folder).position == 0, "readers are told only of what is known to be durable"
    receiver = Receiver("http", folder, "--listen", "127.0.0.1:0")
    port = receiver.port()
    assert port is not None
    # The outcome was unknown to the sender: sent again, it is there once.
    assert post(port, b"1", Idempotency_Key="a") == (
        200,
        {"accepted": 1, "first": 1, "last": 1, "repeated": durable},
    )
    assert receiver.end()[0] == 0
    collector = Collector(folder)
    collector.collect()
    assert collector.rows == [b"1"]


def test_many_senders_and_kills_at_any_time_leave_each_message_once(tmp_path):
    folder = tmp_path / "inbox"
    acknowledged: dict[str, int] = {}
    port: list[int | None] = [None]
    ended = threading.Event()

    def send(sender: int) -> None:
        number = 0
        while not ended.is_set():
            key = f"{sender}-{number}"
            try:
                status, answer = post(port[0] or 9, json.dumps(key).encode(), Idempotency_Key=key)
            except OSError:
                ended.wait(0.02)
                continue
            assert status == 200
            acknowledged[key] = answer["first"]
            number += 1

    senders = [threading.Thread(target=send, args=(sender,)) for sender in range(6)]
    for thread in senders:
        thread.start()
    for life in range(4):
        before = len(acknowledged)
        receiver = Receiver("http", folder, "--listen", "127.0.0.1:0")
        port[0] = receiver.port()
        ended.wait(1.0)
        assert len(acknowledged) > before, f"nothing was acknowledged in life {life}"
        if life < 3:
            receiver.process.kill()
            receiver.end()
    ended.set()
    for thread in senders:
        thread.join()
    assert receiver.end()[0] == 0
    collector = Collector(folder)
    collector.collect()
    found = [json.loads(row) for row in collector.rows]
    assert len(found) == len(set(found)), "repeated"
    assert {key: found[position - 1] for key, position in acknowledged.items()} == {key: key for key in acknowledged}
    print(f"{len(acknowledged)} acknowledged, {len(found)} kept")
    assert len(found) - len(acknowledged) <= len(senders), "only those whose answer was lost at the end"


class Upstream:
    """A WebSocket server that goes on from a position, breaks connections, and repeats the message at the position."""

    def __init__(self, count: int, *, break_every: int) -> None:
        self._count, self._break_every = count, break_every
        self.subscriptions: list[Any] = []
        self.done = threading.Event()
        self._server = serve(self._handle, "127.0.0.1", 0)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}/feed?key=secret"

    def _handle(self, connection: ServerConnection) -> None:
        try:
            asked = json.loads(connection.recv())
            self.subscriptions.append(asked)
            connection.send(json.dumps({"type": "subscribed"}))
            begin = max(asked["after"], 1)
            for sequence in range(begin, self._count + 1):
                connection.send(json.dumps({"seq": sequence, "price": sequence * 7}))
                if sequence % self._break_every == 0 and sequence > begin:
                    connection.socket.close()  # without a word
                    return
            connection.send("not JSON")
            connection.send(json.dumps({"seq": 0, "long": "x" * 3000}))
            self.done.set()
            # Then it closes the connection: each new one makes the receiver write, so that it comes to every point.
            connection.recv(timeout=2)
        except (ConnectionClosed, OSError):
            return

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()


def test_a_websocket_receiver_killed_and_cut_off_goes_on_where_it_was(tmp_path):
    folder, count = tmp_path / "inbox", 900
    upstream = Upstream(count, break_every=250)
    options = ["--subscribe", '{"after": {position}}', "--position", "$.seq", "--max-message", "2000"]
    options += ["--unique-positions"]  # asked for the one before, this upstream would break at the same place for ever
    try:
        for point in ["inbox.open.after", "inbox.write.before@6", "inbox.write.after@7", "inbox.publish.after@8", ""]:
            upstream.done.clear()
            receiver = Receiver("ws", folder, upstream.url, *options, failpoints=f"{point}=kill" if point else "")
            if point:
                receiver.process.wait(60)
                assert receiver.end()[0] == -signal.SIGKILL, receiver.words
        assert upstream.done.wait(60), receiver.words
        collector = Collector(folder)
        # What is sent after the last row is on record with the next write.
        deadline = time.monotonic() + 60
        known = read_contents(folder).description
        while sum(b"seq" in row for row in collector.rows) < count or not (known.garbage and known.oversized):
            assert time.monotonic() < deadline, (len(collector.rows), known, receiver.words)
            time.sleep(0.05)
            collector.collect(cover=False)
            known = read_contents(folder).description
        code, _ = receiver.end(signal.SIGINT)
    finally:
        upstream.close()
    collector.collect()
    rows = [json.loads(row) for row in collector.rows]
    assert [row["seq"] for row in rows if "seq" in row] == list(range(1, count + 1))
    found = read_contents(folder)
    assert code == 130, receiver.words
    assert found.description.token == str(count)
    assert found.description.garbage >= 1 and found.description.oversized >= 1
    assert found.description.repeated > 0, "the upstream repeats the message at the position"
    assert "the connection was lost" in {gap.why for gap in found.gaps}
    assert "secret" not in receiver.words


def test_a_websocket_receiver_with_a_full_inbox_lets_its_upstream_wait_and_loses_nothing(tmp_path):
    folder, count = tmp_path / "inbox", 400
    upstream = Upstream(count, break_every=10_000)
    options = ["--subscribe", '{"after": {position}}', "--position", "$.seq", "--max-held", "50"]
    receiver = Receiver("ws", folder, upstream.url, *options)
    collector = Collector(folder)
    try:
        assert receiver.wait_for("connected to"), receiver.words
        deadline = time.monotonic() + 60
        while sum(b"price" in row for row in collector.rows) < count:
            assert time.monotonic() < deadline, (len(collector.rows), receiver.words)
            collector.collect()
            assert read_contents(folder).description.held <= 50
            time.sleep(0.05)
        code, _ = receiver.end()
    finally:
        upstream.close()
    rows = [json.loads(row) for row in collector.rows]
    assert code == 0
    assert [row["seq"] for row in rows if "price" in row] == list(range(1, count + 1))


def test_a_second_receiver_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    first = Receiver("http", tmp_path / "inbox", "--listen", "127.0.0.1:0")
    port = first.port()
    assert port is not None
    second = Receiver("http", tmp_path / "inbox", "--listen", "127.0.0.1:0", "--json")
    code, printed = second.process.wait(60), second.end()[1]
    assert (code, json.loads(printed)["error"]["code"]) == (11, "inbox.taken")
    assert post(port, b"1")[0] == 200
    assert first.end()[0] == 0
