"""`slackwater receive`: what senders are answered, and what people are shown."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from slackwater.errors import InvalidInput
from slackwater.inboxes.files import read_published
from slackwater.inboxes.reader import read_contents, read_messages
from slackwater.inboxes.receivers.http import open_socket, parse_listen
from slackwater.inboxes.receivers.http_bodies import HttpLimits, split
from slackwater.inboxes.receivers.messages import find_position, parse_path
from slackwater.inboxes.receivers.websocket import check_url
from tests.crash.receivers import NDJSON, Receiver, get, post
from tests.store.test_full_and_read_only import NAMESPACE, can_mount

TOKEN = "SLACKWATER_RECEIVE_TOKEN"


def kept(folder: Path) -> list[bytes]:
    published = read_published(folder)
    chunks = read_messages(folder, published.inbox, published.dropped, published.position)
    return [message.content for chunk in chunks for message in chunk]


def test_json_and_ndjson_are_taken_as_they_are_and_what_is_neither_is_refused_whole(receive, tmp_path):
    receiver, port = receive("--max-message", 100, "--max-body", 1000)
    assert post(port, b' {"a":  1} ') == (200, {"accepted": 1, "first": 1, "last": 1, "repeated": False})
    assert post(port, b'{"b":2}\n\n[3]\r\n', Content_Type=NDJSON)[1]["last"] == 3
    for body in (b"", b"  ", b"{", b'{"a":1}{"b":2}', b'{"a":NaN}', b'"\xff"', b"[" * 90, b"\0"):
        status, answer = post(port, body)
        assert (status, answer["error"]["code"]) == (400, "receive.invalid"), body
    status, answer = post(port, b'{"a":1}\n{"b":', Content_Type=NDJSON)
    assert status == 400 and "message 2" in answer["error"]["message"]
    refused = post(port, b"1", Idempotency_Key="x" * 257)[1]["error"]
    assert refused["code"] == "receive.invalid" and "Idempotency-Key" in refused["message"]
    for blank in (b"\x0b1", b"1\x0c"):  # to Python, not to JSON
        assert post(port, blank)[0] == 400
    for body in (b'"' + 200 * b"x" + b'"', bytes(2000)):
        assert post(port, body)[0] == 413
    assert get(port, "/health") == (200, {"status": "ok"})
    counters = get(port, "/counters")[1]
    assert (counters["position"], counters["garbage"], counters["oversized"]) == (3, 12, 2)
    status, answer = post(port, b"1", Content_Encoding="gzip")
    assert (status, answer["error"]["code"]) == (415, "receive.encoded")
    assert receiver.end()[0] == 0
    assert kept(tmp_path / "inbox") == [b'{"a":  1}', b'{"b":2}', b"[3]"]
    found = read_contents(tmp_path / "inbox").description
    assert (found.garbage, found.oversized) == (12, 2)


def test_a_full_inbox_answers_429_and_a_reused_key_422(receive):
    _, port = receive("--max-held", 2)
    assert post(port, b"1", Idempotency_Key="a")[0] == 200
    assert post(port, b"2", Idempotency_Key="a")[0] == 422
    assert post(port, b"2")[0] == 200
    status, answer = post(port, b"3")
    assert (status, answer["error"]["code"]) == (429, "inbox.full")


def test_two_idempotency_keys_are_none(receive):
    _, port = receive()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sender:
        sender.sendall(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n" + 2 * b"Idempotency-Key: a\r\n" + b"\r\n1"
        )
        assert sender.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert get(port, "/counters")[1]["position"] == 0


def test_what_can_never_fit_is_too_large_and_need_not_wait(receive):
    _, port = receive("--max-held", 2, "--max-held-bytes", 1000)
    assert post(port, b"1\n2\n3\n", Content_Type=NDJSON)[0] == 413
    assert post(port, b'"' + 1000 * b"x" + b'"')[0] == 413
    assert get(port, "/health")[0] == 200
    assert post(port, b"1\n2", Content_Type=NDJSON)[0] == 200


def test_a_receiver_that_has_as_many_keys_as_it_may_have_says_so_and_knows_them_still(receive, tmp_path):
    receiver, port = receive("--max-keys", 1)
    assert post(port, b"1", Idempotency_Key="a")[0] == 200
    for _ in range(2):
        status, answer = post(port, b"2", Idempotency_Key="b")
        assert (status, answer["error"]["code"]) == (429, "inbox.full")
    assert post(port, b"1", Idempotency_Key="a")[1]["repeated"] is True
    assert get(port, "/health") == (503, {"status": "failing", "error": {"code": "inbox.full"}})
    shown = run("show", tmp_path / "inbox")
    assert (
        "full        the inbox takes no more at the moment: as many keys are remembered as may be (1)" in shown.stdout
    )
    assert json.loads(run("show", tmp_path / "inbox", "--json").stdout)["full"] is not None
    assert post(port, b"2")[0] == 200
    assert get(port, "/health")[0] == 200
    assert receiver.end()[0] == 0
    assert receiver.words.count("messages have to wait") == 1


def test_a_receiver_whose_folder_is_removed_acknowledges_nothing_more_and_ends_with_an_error(receive, tmp_path):
    receiver, port = receive()
    assert post(port, b"1")[0] == 200
    shutil.rmtree(tmp_path / "inbox")
    status, answer = post(port, b"2")
    assert (status, answer["error"]["code"]) == (503, "inbox.swapped")
    assert receiver.process.wait(30) == 13
    code, _ = receiver.end()
    assert code == 13 and "ended cleanly" not in receiver.words and "inbox.swapped" in receiver.words


def test_one_ctrl_c_that_comes_twice_ends_a_receiver_cleanly(tmp_path):
    """As where a program signals its child, and then the group that the child is in."""
    commands = [["http", "--listen", "127.0.0.1:0"], ["ws", "ws://127.0.0.1:9/"]]
    for kind, *rest in commands:
        for pause_s in (0, 0.001, 0.01, 0.05):
            receiver = Receiver(kind, tmp_path / kind, *rest)
            assert receiver.wait_for("receiving (at|from)"), receiver.words
            receiver.process.send_signal(signal.SIGINT)
            time.sleep(pause_s)
            with suppress(ProcessLookupError):
                receiver.process.send_signal(signal.SIGINT)
            code, _ = receiver.end()
            assert code == 130 and "ended cleanly" in receiver.words, receiver.words
            assert "Traceback" not in receiver.words


def test_with_a_token_only_those_who_know_it_are_heard_and_it_is_never_said(receive):
    receiver, port = receive(**{TOKEN: "hush-hush"})
    assert post(port, b"1")[0] == post(port, b"1", Authorization="Bearer wrong")[0] == 401
    assert get(port, "/counters")[0] == 401
    assert get(port, "/health")[0] == 200
    status, _ = post(port, b"1", Authorization="Bearer hush-hush")
    assert status == 200
    code, printed = receiver.end()
    assert code == 0 and "hush" not in printed + receiver.words


def test_other_machines_need_a_token_and_addresses_are_checked():
    with pytest.raises(InvalidInput, match=r"option\.invalid.*can be reached from other machines"):
        open_socket("0.0.0.0", 0, token=None)
    assert parse_listen("8080") == ("127.0.0.1", 8080) and parse_listen("[::1]:0") == ("::1", 0)
    for text in ("", "x", "127.0.0.1:", ":8080", "127.0.0.1:70000"):
        with pytest.raises(InvalidInput, match=r"option\.invalid.*not an address to listen at"):
            parse_listen(text)
    assert check_url("wss://[::1]:444/{position}?key=x") and check_url("ws://bücher.example")
    for url in ("http://x", "ws://", "x", "ws://x:99999/", "ws://[::1/", "ws://a..b/", "ws://x/#part"):
        with pytest.raises(InvalidInput, match=r"option\.invalid.*not the address of a WebSocket server"):
            check_url(url)


def test_no_part_of_an_answer_waits_until_the_sender_has_got_another():
    with (
        open_socket("127.0.0.1", 0, token=None) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as taken,
    ):
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_url_is_no_folder_of_an_inbox(tmp_path):
    for command in (["http", "s3://bucket/clicks"], ["ws", "s3://bucket/clicks", "ws://127.0.0.1:9/"]):
        done = subprocess.run(
            [sys.executable, "-m", "slackwater.cli", "receive", *command],
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 2 and b"is a URL" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_paths_to_positions():
    assert find_position('{"a": [{"b c": "x"}]}', parse_path("$.a[0]['b c']")) == "x"
    for message in ('{"a": []}', '{"a": true}', '{"a": 1.5}', "[]", '{"a": null}'):
        assert find_position(message, parse_path("$.a")) is None
    for text in ("", "$", "a", "$a", "$.a.", "$.a[x]", "$..a"):
        with pytest.raises(InvalidInput, match=r"option\.invalid.*is not a path to a position"):
            parse_path(text)


# Each is JSON by RFC 8259, and too much for a decoder that makes Unicode, doubles and integers of what it reads.
UNUSUAL = [rb'{"seq":7,"text":"\ud83d"}', b'{"seq":7,"number":1e400}', b'{"seq":7,"number":' + 5000 * b"9" + b"}"]


@pytest.mark.parametrize("message", UNUSUAL)
def test_all_that_is_json_is_taken_even_what_python_cannot_hold(message):
    assert split(message, "application/json", HttpLimits()) == [message]
    assert find_position(message, ["seq"]) == find_position(message.decode(), ["seq"]) == "7"


def test_a_position_that_no_text_can_hold_is_none():
    assert find_position(rb'{"seq":"\ud83d"}', ["seq"]) is None
    assert find_position(b'{"seq":' + 5000 * b"9" + b"}", ["seq"]) is None
    assert find_position(b'{"seq":1.5,"number":1e400}', ["seq"]) is None


@pytest.mark.parametrize(
    "message", [b'{"a":1e400', b"[1e400,NaN]", b'"\xff"', b"\xef\xbb\xbf1", b'["\\ud83d", "\n"]', 100_000 * b"["]
)
def test_what_is_no_json_is_refused_however_it_is_looked_at(message):
    with pytest.raises(InvalidInput, match=r"receive\.invalid.*nothing of this request was taken"):
        split(message, "application/json", HttpLimits())


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slackwater.cli", "receive", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_what_an_inbox_holds_is_shown_beside_its_receiver_and_after_it(receive, tmp_path):
    receiver, port = receive()
    post(port, b"1\n2", Content_Type=NDJSON, Idempotency_Key="a")
    shown = run("show", tmp_path / "inbox")
    assert shown.returncode == 0 and "held        2 messages, 2 B" in shown.stdout, shown
    receiver.process.kill()
    receiver.end()
    receiver, _ = receive()
    assert receiver.end()[0] == 0
    told: Any = json.loads(run("show", tmp_path / "inbox", "--json").stdout)
    assert (told["position"], told["held"], told["keys"], told["covered"]) == (2, 2, 1, None)
    (gap,) = told["gaps"]
    assert gap["after"] == 2 and gap["from_ms"] <= gap["to_ms"] <= time.time() * 1000 and "killed" in gap["why"]
    assert told["away"] == "the receiver was stopped"
    assert run("show", tmp_path).returncode == 10


FULL = """
import json, random, sys
from contextlib import suppress
from pathlib import Path
from tests.crash.receivers import Receiver, get, post
root = Path(sys.argv[1])
(root / "ballast").write_bytes(bytes(24 << 20))
receiver = Receiver("http", root / "inbox", "--listen", "127.0.0.1:0")
port = receiver.port()
number, refused = 0, []
def send():
    content = random.Random(number).randbytes(25_000).hex()
    return post(port, json.dumps([number, content]).encode(), Idempotency_Key=str(number))
while len(refused) < 3:
    status, answer = send()
    if status == 200:
        number += 1
    else:
        refused.append(status)
print(refused[0], get(port, "/health")[0])
(root / "ballast").unlink()
more = 0
while more < 20:
    status, _ = send()
    number, more = number + (status == 200), more + (status == 200)
print(get(port, "/health")[0], receiver.end()[0])
from slackwater.inboxes.files import read_published
from slackwater.inboxes.reader import read_messages
found = read_published(root / "inbox")
chunks = read_messages(root / "inbox", found.inbox, 0, found.position)
print([json.loads(message.content)[0] for chunk in chunks for message in chunk] == list(range(number)))
"""


@pytest.mark.skipif(not can_mount(), reason="this user may not mount")
def test_a_full_disk_is_answered_507_and_messages_are_taken_again_once_it_has_room(tmp_path):
    script = 'mount -t tmpfs -o size=72m none "$0" && exec "$1" -c "$2" "$0"'
    ran = subprocess.run(
        [*NAMESPACE, "sh", "-ec", script, str(tmp_path), sys.executable, FULL],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.stdout.splitlines() == ["507 503", "200 0", "True"], ran.stderr
