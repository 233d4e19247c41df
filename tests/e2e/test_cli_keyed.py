"""The commands on a keyed pipeline."""

from __future__ import annotations

import json

from slackwater.keyed.opening import open_keyed
from slackwater.keyed.state import KeyedState
from tests.commands import answer, lines, slackwater
from tests.keyed_pipelines import config_of, content


def test_every_command_works_on_a_keyed_pipeline(tmp_path):
    url = str(tmp_path / "store" / "counts")
    with open_keyed(config_of(tmp_path)) as counts:
        for number in range(3):
            counts.write([(b"n", b"%d" % number)], offsets={"rows": {"row": str(number)}})
            counts.create_checkpoint()
    assert [entry["epoch"] for entry in answer("list", url)["checkpoints"]] == [1, 2, 3]
    shown = answer("show", url, "--at", "2")
    assert shown["sources"] == {"rows": {"source_type": "keyed", "offsets": {"row": "1"}}}
    assert shown["operators"]["keyed-state"]["store"] == "rocksdb"
    assert any(line.startswith("keyed-state") for line in lines("show", url))
    assert answer("verify", url, "--read-data")["sound"]
    answer("savepoint", "create", url, "first", "--at", "1")
    assert answer("rollback", url, "--to", "2", "--yes")["acted"]
    assert content(tmp_path) == {b"n": b"1"}
    assert "a keyed state's" in lines("restore", url, "--to", tmp_path / "files", "--at", "first")[1]
    names = {path.name for path in (tmp_path / "files" / "keyed" / "state").iterdir() if path.suffix != ".sst"}
    assert names - {name for name in names if name.startswith("MANIFEST-")} == {"CURRENT", "state.json"}
    restored = KeyedState(tmp_path / "files" / "keyed" / "state", read_only=True)
    assert dict(restored.scan()) == {b"n": b"0"}
    restored.close()
    assert json.loads((tmp_path / "files" / "metadata.json").read_text())["body"]["key_count"] == 1
    assert answer("forget", url, "--keep-last", "1")["forget"]["forgotten_epochs"] == [2, 3]
    assert answer("verify", url, "--read-data")["sound"]
    assert [line.split()[0] for line in slackwater("pipelines", tmp_path / "store").stdout.splitlines()[1:]] == [
        "counts"
    ]
