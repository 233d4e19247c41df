"""The command line, as a user meets it: real stores, real processes."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slackwater.cli.pipelines import command as pipelines_command
from slackwater.formats.keys import LATEST, record_key
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify_checkpoints
from slackwater.testing.faulty_store import Fault, Faults
from tests.commands import NOWHERE, answer, command, environment, finish, lines, refusal, slackwater
from tests.pipelines import START_MS, flip, make_pipeline

HEAVY = {
    "obstore",
    "pyspark",
    "pyarrow",
    "deltalake",
    "pandas",
    "rich",
    "msgspec",
    "lz4",
    "uvicorn",
    "starlette",
    "websockets",
    "rocksdict",
}
COMMANDS = [
    [], ["pipelines"], ["list"], ["show"], ["verify"], ["savepoint"], ["savepoint", "create"], ["savepoint", "list"],
    ["savepoint", "delete"], ["forget"], ["restore"], ["rollback"], ["repair"], ["import"], ["export"], ["probe"],
    ["run"], ["receive"], ["receive", "http"], ["receive", "ws"], ["receive", "show"],
]  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("template")
    make_pipeline(root, 6, keep_last=4)
    make_pipeline(root, 1, name="a b", release=False)
    return root / "store"


@pytest.fixture
def store(template, tmp_path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "store"))


@pytest.fixture
def url(store) -> str:
    return str(store / "orders")


def ids(url: str) -> dict[int, str]:
    return {entry["epoch"]: entry["checkpoint_id"] for entry in answer("list", url)["checkpoints"]}


# --- help


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_help_has_examples_and_imports_nothing_heavy(args):
    started = time.monotonic()
    done = finish(command(*args, "--help", python=("-X", "importtime")))
    print(f"{' '.join(args)} --help: {1000 * (time.monotonic() - started):.0f} ms")
    assert done.returncode == 0
    assert b"Examples:\n" in done.stdout and b"    slackwater " in done.stdout
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.decode().splitlines()}
    assert "click" in imported
    assert imported & HEAVY == set()


def test_the_version_is_told():
    assert lines("--version")[0].startswith("slackwater 0.")


@pytest.mark.parametrize(
    "args",
    [["lsit"], ["list"], ["list", "a", "b"], ["list", "--colour", "x"], ["restore", "x"], ["savepoint", "create", "x"],
     ["list", "x", "--timeout", "0"], ["list", "memory:x/orders"], ["list", "s3://key:secret@bucket/orders"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_exits_2_with_a_hint(args):
    assert "\nhint: " in refusal(*args, code=2)


def test_without_a_command_the_help_is_an_error_on_stderr():
    done = slackwater()
    assert (done.returncode, done.stdout) == (2, "") and "Commands:" in done.stderr


def test_a_wrong_option_is_told_in_json_too():
    assert answer("list", "--colour", code=2)["error"]["code"] == "usage.wrong"


# --- pipelines


def test_pipelines_are_listed_with_the_urls_that_the_other_commands_take(store):
    for address in (str(store), store.as_uri()):
        found = {entry["name"]: entry for entry in answer("pipelines", address)["pipelines"]}
        assert found.keys() == {"a b", "orders"}
        facts = {"epoch": 6, "checkpoints": 4, "savepoints": 0, "released": True, "problem": None}
        assert facts.items() <= found["orders"].items()
        assert found["orders"]["updated_at_ms"] == START_MS + 5 * 60_000
        assert found["a b"]["released"] is False
        assert answer("list", found["a b"]["url"])["pipeline"] == "a b"


def test_pipelines_are_a_table_for_people(store):
    header, *rows = lines("pipelines", store)
    assert header.split()[:3] == ["PIPELINE", "EPOCH", "UPDATED"]
    assert "a b" in rows[0] and "running or crashed" in rows[0]
    assert rows[1].split()[:3] == ["orders", "6", "2026-11-15T10:05:00Z"]


def test_damaged_pipelines_are_reported_and_other_folders_are_not(store):
    flip(max((store / "orders" / "log").iterdir()))
    shutil.rmtree(store / "a%20b" / "log")
    (store / "something else" / "deep").mkdir(parents=True)
    found = {entry["name"]: entry["problem"] for entry in answer("pipelines", store)["pipelines"]}
    assert {name: problem["code"] for name, problem in found.items()} == {"orders": "log.corrupt", "a b": "log.missing"}
    done = slackwater("pipelines", store)
    rows = done.stdout.splitlines()[1:]
    assert "damaged: log.missing" in rows[0] and "damaged: log.corrupt" in rows[1] and max(map(len, rows)) < 200
    assert "note: orders: [log.corrupt] " in done.stderr


def test_a_pipeline_that_cannot_be_read_does_not_hide_the_others(store, capsys):
    with Faults(Fault("denied", verb="get", key="log/*")).everywhere():
        pipelines_command.main([str(store)], standalone_mode=False)
    told = capsys.readouterr()
    assert told.out.count("not read: store.denied") == 1 and len(told.out.splitlines()) == 3
    assert "[store.denied] get log/" in told.err


def test_an_empty_store_is_no_error(tmp_path):
    done = slackwater("pipelines", tmp_path)
    assert (done.returncode, done.stdout) == (0, "") and "no pipelines" in done.stderr
    assert answer("pipelines", tmp_path)["pipelines"] == []


def test_a_store_that_is_not_there_exits_10(tmp_path):
    assert "no folder" in refusal("pipelines", tmp_path / "typo", code=10)
    assert "no folder" in refusal("pipelines", (tmp_path / "a typo").as_uri(), code=10)


def test_a_pipeline_where_a_store_belongs_is_told_with_the_command_to_run(store, url):
    told = refusal("pipelines", url, code=2)
    assert "[store.invalid]" in told and f"slackwater list {url}; its store is {store}" in told


def test_a_hostile_name_never_reaches_the_terminal(store):
    evil = "\x1b]0;owned\x07\u202egnp\udcff[red]"
    shutil.copytree(store / "orders", store / evil)
    done = finish(command("pipelines", store))
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr and b"\x07" not in done.stdout + done.stderr
    assert rb"\x1b]0;owned\x07\u202egnp\udcff[red]" in done.stdout
    assert evil in [entry["name"] for entry in answer("pipelines", store)["pipelines"]]
    missing = finish(command("list", store / "\x1b[2J"))
    assert missing.returncode == 10 and b"\x1b" not in missing.stderr


# --- list, show


def test_checkpoints_are_listed_for_people_and_programs(url):
    document = answer("list", url)
    assert document["pipeline"] == "orders" and document["epoch"] == 6
    assert [entry["epoch"] for entry in document["checkpoints"]] == [3, 4, 5, 6]
    newest = document["checkpoints"][-1]
    assert newest["head"] and newest["settled"]
    assert (newest["micro_batch"], newest["size_bytes"], newest["problem"]) == (None, None, None)
    assert newest["parent_id"] == document["checkpoints"][-2]["checkpoint_id"]
    header, *rows = lines("list", url)
    assert header.split() == ["EPOCH", "ID", "MADE", "AGE", "LABELS", "NOTES"]
    assert rows[-1].startswith("    6  ") and "2026-11-15T10:05:00Z" in rows[-1] and rows[-1].endswith("head")
    assert len({row.split()[1] for row in rows}) == 4


def test_a_long_list_has_what_the_manifests_say(url):
    newest = answer("list", url, "--long")["checkpoints"][-1]
    assert newest["micro_batch"] == 5 and newest["size_bytes"] > 6 * 6000
    header, *rows = lines("list", url, "--long")
    assert header.split() == ["EPOCH", "ID", "MADE", "AGE", "MICRO-BATCH", "STATE", "LABELS", "NOTES"]
    assert "KiB" in rows[0] and rows[-1].endswith("head")


def test_the_pipeline_may_come_from_the_environment(url):
    assert answer("list", SLACKWATER_PIPELINE=url)["epoch"] == 6
    assert answer("savepoint", "create", "here", SLACKWATER_PIPELINE=url)["epoch"] == 6
    assert answer("savepoint", "delete", "here", SLACKWATER_PIPELINE=url)["deleted"]


def test_a_damaged_manifest_does_not_hide_the_other_checkpoints(url):
    flip(Path(url, "checkpoints", ids(url)[4], "manifest.json"))
    found = {entry["epoch"]: entry["problem"] for entry in answer("list", url, "--long")["checkpoints"]}
    problem = found.pop(4)
    assert problem["code"] == "object.damaged" and "is not the one that the log names" in problem["message"]
    assert set(found.values()) == {None}
    assert "damaged: " in "\n".join(lines("list", url, "--long"))
    assert "damaged: " not in "\n".join(lines("list", url)), "it reads no manifest"


def test_a_checkpoint_is_shown_with_all_that_it_holds(url):
    document = answer("show", url, "--at", "5")
    checkpoint = document["checkpoint"]
    assert (checkpoint["epoch"], checkpoint["head"], checkpoint["micro_batch"]) == (5, False, 4)
    assert document["sources"] == {"0": {"source_type": "rate", "offsets": {"offset": "400"}}}
    operator = document["operators"]["0-stateStoreSave"]
    assert [partition["kind"] for partition in operator["partitions"]] == ["delta", "delta"]
    assert operator["size_bytes"] == sum(partition["size_bytes"] for partition in operator["partitions"])
    sink = document["sinks"]["totals"]
    assert (sink["kind"], len(sink["descriptors"][0]["files"])) == ("folder", 1)
    assert {entry["kind"] for entry in document["objects"]} == {"batch", "object"}
    assert {entry["own"] for entry in document["objects"]} == {True, False}
    assert document["inline_files"] > 0
    text = "\n".join(lines("show", url, "--at", "5"))
    for words in ("epoch        5\n", "offset 400", "2 delta", "1 file", "its own", "an older checkpoint"):
        assert words in text
    assert "(head)" in lines("show", url)[1]


def test_a_head_without_a_release_is_not_settled_on_record(store):
    checkpoint = answer("show", store / "a%20b")["checkpoint"]
    assert checkpoint["head"] and not checkpoint["settled"]
    assert "not yet on record" in "\n".join(lines("show", store / "a%20b"))


def test_every_form_of_a_reference_works(url):
    slackwater("savepoint", "create", url, "monday", "--at", "4")
    known = ids(url)
    for ref, epoch in {"latest": 6, "5": 5, known[3]: 3, "monday": 4, "@2026-11-15T10:04:30Z": 5}.items():
        assert answer("show", url, "--at", ref)["checkpoint"]["epoch"] == epoch
    done = slackwater("show", url, "--at", "@2026-11-15T10:04:30")
    assert "read as UTC" in done.stderr and "epoch 5" in done.stderr and "epoch        5" in done.stdout


def test_a_reference_that_names_several_checkpoints_lists_them(url):
    known = ids(url)
    stderr = refusal("show", url, "--at", known[3][:6], code=2)
    assert "[ref.invalid]" in stderr
    assert all(checkpoint_id in stderr for checkpoint_id in known.values())


@pytest.mark.parametrize("ref", ["1", "99", "nobody", "@2020-01-01T00:00Z"])
def test_a_reference_to_nothing_exits_10_with_the_command_to_run(url, ref):
    assert f"hint: slackwater list {url}\n" in refusal("show", url, "--at", ref, code=10)


def test_an_unknown_pipeline_is_answered_with_similar_names(store):
    stderr = refusal("list", store / "order", code=10)
    assert (
        "[pipeline.not_found]" in stderr and f"{store}/orders?" in stderr and f"slackwater pipelines {store}" in stderr
    )
    assert f"slackwater pipelines {store}" in refusal("list", store / "zzz", code=10)
    below = refusal("list", store, code=10)
    assert "pipelines below it" in below and f"slackwater pipelines {store}\n" in below


def test_an_error_is_one_json_document_too(store):
    error = answer("show", store / "orders", "--at", "99", code=10)["error"]
    assert error["code"] == "checkpoint.not_found" and "99" in error["message"]
    assert error["hint"].startswith("slackwater list ") and error["details"] == {}


# --- verify


def findings(url: str, *args: str) -> list[dict[str, Any]]:
    document = answer("verify", url, *args, code=13)
    assert document["sound"] is False
    return document["findings"]


def test_a_sound_pipeline_is_sound(url):
    document = answer("verify", url, "--read-data")
    assert document["sound"] and document["findings"] == [] and document["epochs"] == [3, 4, 5, 6]
    assert document["read_bytes"] > 6 * 6000
    assert answer("verify", url)["read_bytes"] == 0
    assert answer("verify", url, "--at", "latest")["epochs"] == [6]
    assert lines("verify", url)[-1].endswith("sound")


@pytest.mark.parametrize("pattern", ["batches/*.lcb", "operators/*/partition-0.delta"])
def test_a_flipped_bit_is_found_when_data_is_read_once_for_all_who_need_it(url, pattern):
    damaged = next(Path(url, "checkpoints", ids(url)[4]).glob(pattern))
    flip(damaged)
    assert answer("verify", url)["sound"]
    (finding,) = findings(url, "--read-data")
    assert finding["key"] == str(damaged.relative_to(url)) and finding["code"] == "object.damaged"
    assert "missing or damaged" in finding["message"]
    assert (finding["severity"], finding["epochs"]) == ("error", [4, 5, 6])
    assert answer("verify", url, "--read-data", "--at", "3")["sound"]
    table = "\n".join(lines("verify", url, "--read-data", code=13))
    assert finding["key"] in table and "4, 5, 6" in table and "1 error" in table


def test_a_missing_and_a_cut_object_are_found_without_reading(url):
    folder = Path(url, "checkpoints", ids(url)[5])
    next(folder.glob("batches/*.lcb")).unlink()
    cut = next(folder.glob("operators/*/*.delta"))
    cut.write_bytes(cut.read_bytes()[:-1])
    found = {finding["message"]: (finding["code"], finding["epochs"]) for finding in findings(url)}
    size = cut.stat().st_size
    assert found == {
        "the object is not there": ("object.damaged", [5, 6]),
        f"it has {size} bytes, not {size + 1}": ("object.damaged", [5, 6]),
    }
    assert len(findings(url, "--read-data")) == 2


def test_a_damaged_and_a_missing_manifest_are_found(url):
    known = ids(url)
    flip(Path(url, "checkpoints", known[3], "manifest.json"))
    Path(url, "checkpoints", known[4], "manifest.json").unlink()
    found = {tuple(finding["epochs"]): finding["code"] for finding in findings(url)}
    assert found == {(3,): "object.damaged", (4,): "manifest.missing"}


def test_damage_to_an_old_record_is_found_when_all_is_read(url):
    flip(Path(url, record_key(3)))
    assert answer("verify", url)["sound"]
    (finding,) = findings(url, "--read-data")
    assert (finding["code"], finding["key"], finding["epochs"]) == ("log.corrupt", record_key(3), [])


def test_a_gap_and_an_exchanged_record_are_found(url):
    Path(url, record_key(2)).unlink()
    rewrite(Path(url, record_key(5)), append_id="f" * 32)
    found = [(finding["code"], finding["key"], finding["message"]) for finding in findings(url, "--read-data")]
    assert found == [
        ("log.inconsistent", record_key(3), "records 2 to 2 are not there"),
        ("log.inconsistent", record_key(6), "it does not follow the record before it"),
    ]


def test_what_a_driver_retires_while_it_is_verified_is_no_damage(url):
    newer = {path: path.read_bytes() for path in Path(url, "log").iterdir() if path > Path(url, record_key(4))}
    for path in newer:
        path.unlink()
    slow = read_pipeline(url)
    for path, record in newer.items():
        path.write_bytes(record)
    before = slow.state.live
    assert [entry.epoch for entry in before] == [1, 2, 3]
    assert not Path(url, "checkpoints", before[0].checkpoint_id, "manifest.json").exists()
    assert verify_checkpoints(slow, before, read_data=True).findings == []
    assert slow.state.epoch == 6


def test_a_broken_pointer_is_only_a_note(url):
    for broken in (b"\xff\x00nonsense", b"x" * 10_000, None):
        pointer = Path(url, LATEST)
        pointer.write_bytes(broken) if broken else pointer.unlink()
        document = answer("verify", url)
        assert document["sound"] and [finding["code"] for finding in document["findings"]] == ["latest.stale"]
        assert answer("show", url)["checkpoint"]["epoch"] == 6


def rewrite(path: Path, **fields: object) -> None:
    """Change fields of a record, and give it the digest that fits."""
    body = {**json.loads(path.read_bytes())["body"], **fields}
    data = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    path.write_bytes(b'{"body":%s,"sha256":"%s"}' % (data, hashlib.sha256(data).hexdigest().encode()))


@pytest.mark.parametrize("name", ["list", "show", "verify"])
def test_a_damaged_newest_record_exits_13(url, name):
    flip(max(Path(url, "log").iterdir()))
    assert "[log.corrupt]" in refusal(name, url, code=13)


def test_a_log_that_is_gone_exits_13(url):
    shutil.rmtree(Path(url, "log"))
    assert "[log.missing]" in refusal("list", url, code=13)


def test_a_record_of_a_newer_release_exits_14(url):
    rewrite(max(Path(url, "log").iterdir()), version=99)
    assert "[format.unknown_version] the log record " in refusal("list", url, code=14)


# --- savepoint


def test_a_savepoint_is_created_listed_and_deleted(url):
    assert lines("savepoint", "create", url, "before upgrade", "--at", "4")[0].startswith(
        "savepoint before upgrade: epoch 4"
    )
    (savepoint,) = answer("savepoint", "list", url)["savepoints"]
    assert (savepoint["label"], savepoint["epoch"], savepoint["checkpoint_id"]) == ("before upgrade", 4, ids(url)[4])
    assert "before upgrade" in lines("savepoint", "list", url)[1]
    assert answer("list", url)["checkpoints"][1]["labels"] == ["before upgrade"]
    assert not answer("savepoint", "delete", url, "before upgrade", "--dry-run")["deleted"]
    assert len(answer("savepoint", "list", url)["savepoints"]) == 1
    assert "is deleted" in lines("savepoint", "delete", url, "before upgrade")[0]
    assert answer("savepoint", "list", url)["savepoints"] == []
    assert answer("verify", url, "--read-data")["sound"]


def test_a_savepoint_of_an_undone_epoch_is_marked(url):
    for epoch in (4, 6):
        answer("savepoint", "create", url, f"of-{epoch}", "--at", epoch)
    answer("rollback", url, "--to", "5", "--yes")
    undone = {savepoint["label"]: savepoint["undone"] for savepoint in answer("savepoint", "list", url)["savepoints"]}
    assert undone == {"of-4": False, "of-6": True}
    rows = lines("savepoint", "list", url)
    assert not rows[1].endswith("undone") and rows[2].endswith("undone")


def test_damage_to_an_undone_epoch_is_an_error_that_says_so(url):
    answer("rollback", url, "--to", "5", "--yes")
    (victim,) = (path for path in Path(url).rglob("manifest.json") if path.parent.name == ids(url)[6])
    flip(victim)
    (finding,) = answer("verify", url, code=13)["findings"]
    assert (finding["severity"], finding["epochs"], finding["undone"]) == ("error", [6], [6])
    assert "  6 (undone)  " in next(line for line in lines("verify", url, code=13) if line.startswith("error"))


def test_a_label_that_is_taken_exits_11_with_the_command_that_lists_them(url):
    lines("savepoint", "create", url, "monday")
    stderr = refusal("savepoint", "create", url, "monday", "--at", "4", code=11)
    assert "[label.taken]" in stderr and f"slackwater savepoint list {url}" in stderr


@pytest.mark.parametrize("label", ["7", "latest", "@noon", "a\tb", "x" * 101, "0192d3f0-7b7c"])
def test_a_label_that_would_mislead_exits_2(url, label):
    told = refusal("savepoint", "create", url, label, code=2)
    assert "[name.invalid]" in told and "cannot be a label" in told


def test_a_label_that_is_not_there_exits_10(url):
    for option in ((), ("--dry-run",)):
        assert f"slackwater savepoint list {url}" in refusal("savepoint", "delete", url, "no", *option, code=10)


# --- restore


def test_a_restored_directory_holds_what_spark_had_written(template, url, tmp_path):
    target = tmp_path / "deep" / "restored"
    document = answer("restore", url, "--to", target, "--at", "4")
    assert (document["epoch"], document["micro_batch"], document["directory"]) == (4, 3, str(target))
    work = template.parent / "work" / "orders"
    files = [path.relative_to(target) for path in target.rglob("*") if path.is_file()]
    assert len(files) == document["files"] > 8
    assert sum((target / path).stat().st_size for path in files) == document["size_bytes"]
    assert all((target / path).read_bytes() == (work / path).read_bytes() for path in files)


def test_a_restore_tells_how_to_use_the_directory(url, tmp_path):
    text = lines("restore", url, "--to", tmp_path / "it")
    assert f'  .option("checkpointLocation", "file://{tmp_path}/it")' in text
    assert "epoch 6" in text[0] and "goes on with 6" in text[1]


def test_a_restore_names_the_directory_as_spark_takes_it_without_percent_encoding(url, tmp_path):
    text = lines("restore", url, "--to", tmp_path / "zürich 50% #1")
    assert f'  .option("checkpointLocation", "file://{tmp_path}/zürich 50% #1")' in text


def test_a_file_is_no_directory_to_restore_into(url, tmp_path):
    (tmp_path / "precious").write_text("x")
    assert "is a file, and a directory is needed" in refusal("restore", url, "--to", tmp_path / "precious", code=2)
    assert (tmp_path / "precious").read_text() == "x"


def test_a_directory_with_something_in_it_is_refused_and_left_alone(url, tmp_path):
    (tmp_path / "precious").write_text("x")
    assert "not empty" in refusal("restore", url, "--to", tmp_path, code=2)
    assert (tmp_path / "precious").read_text() == "x"


def test_a_damaged_checkpoint_is_not_restored(url, tmp_path):
    flip(next(Path(url, "checkpoints", ids(url)[4]).glob("batches/*.lcb")))
    stderr = refusal("restore", url, "--to", tmp_path / "it", code=13)
    assert "[object.damaged] the object " in stderr and f"slackwater verify {url} --read-data" in stderr
    assert not (tmp_path / "it").exists()


# --- a store that does not answer


def test_a_store_that_cannot_be_reached_exits_12_and_tells_no_secret():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, but nobody listens
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        stderr = refusal("list", "s3://bucket/orders", "--timeout", "1", code=12, AWS_ENDPOINT_URL=endpoint, **NOWHERE)
    assert "[store.unavailable]" in stderr and "hush-hush" not in stderr


def test_a_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "[store." in refusal("pipelines", tmp_path / "file", code=2)


def test_ctrl_c_ends_a_command_that_waits_for_its_store():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        variables = environment(AWS_ENDPOINT_URL=f"http://127.0.0.1:{silent.getsockname()[1]}", **NOWHERE)
        with subprocess.Popen(command("list", "s3://bucket/orders"), env=variables, stderr=subprocess.PIPE) as process:
            silent.settimeout(30)
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                # Far less than the command would wait for an answer, much more than a busy machine needs.
                _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, b"interrupted\n")


def test_a_reader_that_leaves_early_causes_no_noise(url):
    with subprocess.Popen(
        command("show", url), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
    done = finish(["bash", "-c", '"$@" | head -1; echo "${PIPESTATUS[@]}"', "sh", *command("show", url, "--json")])
    assert done.stdout.startswith(b"{\n") and done.stderr == b""
    assert done.stdout.split()[1:] in ([b"0", b"0"], [b"141", b"0"]), "all was read at once, or not"


def closing(stream: str, *args: object) -> subprocess.CompletedProcess[bytes]:
    return finish(["sh", "-c", f'exec "$@" {stream}', "sh", *command(*args)])


def test_a_closed_stdout_is_no_failure(url):
    done = closing(">&-", "show", url)
    assert (done.returncode, done.stderr) == (0, b"")


def test_with_a_closed_stderr_stdout_has_the_document_and_nothing_else(url):
    done = closing("2>&-", "show", url, "--at", "none", "--json")
    assert done.returncode == 10
    assert json.loads(done.stdout)["error"]["code"] == "checkpoint.not_found"


def test_an_unexpected_failure_is_one_line_and_a_traceback_only_when_asked_for(url):
    patched = "import sys, slackwater.ops.checkpoints as c; c.load_manifest = None"
    code = f"{patched}; from slackwater import cli; sys.exit(cli.main())"
    for variables, traces in (({}, 0), ({"SLACKWATER_TRACEBACK": "1"}, 1)):
        done = finish([sys.executable, "-c", code, "show", url], **variables)
        assert (done.returncode, done.stderr.count(b"Traceback")) == (1, traces)
        assert b"error: [unexpected.failure] TypeError: " in done.stderr


# --- run


PATIENT = """
import time
try:
    print("up", flush=True)
    time.sleep(60)
finally:
    print("down")
"""
STUBBORN = """
import time
while True:
    try:
        print("up", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("no", flush=True)
"""


def app(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "app.py"
    path.write_text(text)
    return path


def test_a_program_runs_as_python_would_run_it(tmp_path):
    (tmp_path / "neighbour.py").write_text("word = 'hello'\n")
    program = app(tmp_path, "import sys, neighbour\nprint(__name__, neighbour.word, sys.argv[1:])\n")
    assert lines("run", program, "--json", "-x", "1") == ["__main__ hello ['--json', '-x', '1']"]


def test_what_a_program_prints_does_not_mix_with_the_json_answer(tmp_path):
    done = slackwater("run", "--json", app(tmp_path, "print('chatter')\n"))
    assert json.loads(done.stdout) == {"app": str(tmp_path / "app.py"), "exit_code": 0, "stopped_by": None}
    assert done.stderr == "chatter\n"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('bad day')", 1, "bad day"),
        ("def f():\n    return 1 / 0\nf()", 1, "line 2, in f"),
        (
            "from slackwater import Conflict\nraise Conflict('mine', code='a.b', hint='do')",
            11,
            "error: [a.b] mine\nhint: do",
        ),
        (
            "from slackwater import Corrupt\n"
            "try:\n    raise Corrupt('deep', code='a.b')\nexcept Corrupt as e:\n    raise ValueError('outer') from e",
            13,
            "error: [a.b] deep",
        ),
        (
            "raise OSError('Py4J: slackwater.errors.Unavailable: [store.full] no room (hint: free some)\\n  at x')",
            12,
            "error: [store.full] no room\nhint: free some",
        ),
    ],
)
def test_a_program_that_fails_is_told_apart_by_its_exit_code(tmp_path, text, code, words):
    done = slackwater("run", app(tmp_path, text))
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr and "runpy" not in done.stderr


@pytest.mark.parametrize("text", ["not python at all", "x = '", "\0"])
def test_what_is_not_python_exits_2(tmp_path, text):
    told = refusal("run", app(tmp_path, text), code=2)
    assert "[usage.wrong]" in told and "is not a Python program" in told


def test_a_program_that_is_not_there_exits_2(tmp_path):
    for path in (tmp_path / "none.py", tmp_path):
        told = refusal("run", path, code=2)
        assert "[usage.wrong]" in told and "cannot be read" in told


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_a_program_without_pipelines(tmp_path, number, code):
    program = app(tmp_path, PATIENT)
    with subprocess.Popen(command("run", program), env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        rest, _ = process.communicate(timeout=15)
    assert (process.returncode, rest) == (code, "down\n")


def test_a_second_signal_ends_a_program_that_will_not_end(tmp_path):
    with subprocess.Popen(
        command("run", app(tmp_path, STUBBORN)), env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "no\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=15) == 130


def test_a_log_that_lost_its_newest_records_is_found(url):
    newest = max(Path(url, "log").iterdir())
    while b'"type":"checkpoint"' not in newest.read_bytes():
        newest.unlink()
        newest = max(Path(url, "log").iterdir())
    newest.unlink()
    assert "log.records_lost" in {finding["code"] for finding in findings(url)}


def test_a_linked_record_is_an_error_and_not_an_older_state(url, tmp_path):
    newest = max(Path(url, "log").iterdir())
    newest.rename(tmp_path / "elsewhere.json")
    newest.symlink_to(tmp_path / "elsewhere.json")
    done = slackwater("restore", url, "--to", str(tmp_path / "restored"))
    assert done.returncode != 0 and "[store.invalid]" in done.stderr and "symbolic link" in done.stderr
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("endpoint", ["garbage", "http://127.0.0.1:99999", "http://[::1"])
def test_a_malformed_endpoint_is_wrong_input(endpoint):
    keys = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S", "AWS_REGION": "x", "AWS_ENDPOINT_URL": endpoint}
    done = slackwater("list", "s3://bucket/orders", "--timeout", "1", **keys)
    assert done.returncode == 2, done.stderr
    assert "[store.invalid] the store cannot be opened" in done.stderr and "endpoint" in done.stderr


@pytest.mark.parametrize("secret", ["SECRET", "ab/SECRET", "a@SECRET", "SE@CRET"])
def test_credentials_in_a_surplus_argument_are_not_shown(secret):
    for surplus in (f"s3://KEY:{secret}@bucket/p", f"s3://{secret.replace('/', '')}@bucket/p"):
        for more in ((), ("--json",)):
            done = slackwater("list", "x", surplus, *more)
            assert done.returncode == 2
            shown = done.stdout + done.stderr
            assert "usage.wrong" in shown and "bucket/p" in shown
            assert "SECRET" not in shown and "CRET" not in shown


def test_credentials_in_what_is_taken_for_a_reference_are_not_shown(url):
    for secret in ("SECRET", "ab/SECRET"):
        for command_line in (("show", url, "--at"), ("forget", url), ("savepoint", "delete", url)):
            done = slackwater(*command_line, f"s3://KEY:{secret}@bucket/p", "--json")
            assert done.returncode == 10 and "bucket/p" in done.stderr
            assert "SECRET" not in done.stdout + done.stderr


def test_a_path_with_an_at_sign_is_shown_as_it_is(tmp_path):
    place = (tmp_path / "me@home").as_uri()
    assert f"there is no pipeline at {place}/orders@2" in refusal("list", f"{place}/orders@2", code=10)


def test_a_restore_that_fails_leaves_nothing_where_it_was_told_to_write(url, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    flip(max(Path(url, "checkpoints").rglob("*.lcb")))
    done = slackwater("restore", url, "--to", str(tmp_path / "linked"))
    assert done.returncode == 13, done.stderr
    assert list((tmp_path / "real").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "store") == ["linked", "real"]
