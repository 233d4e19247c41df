"""Act two, Slackwater's half: one bit of a state file is flipped; the start is refused, then falls back."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from demo import judge
from demo.flipping import flip, say
from demo.lives import Life, Sizes, live
from slackwater.errors import Corrupt
from slackwater.formats import batch
from slackwater.formats.manifest import Manifest
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.refs import NEWEST_VERIFIED
from slackwater.protocol.verified_reads import load_manifest


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """A byte of a state file, in an object that the newest checkpoint needs."""

    key: str
    file: str
    at: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the start over the flipped bit ended, and the one that was told to fall back."""

    victim: Victim
    refused: Life
    resumed: Life | None = None
    verdict: judge.Verdict | None = None

    @property
    def error(self) -> dict[str, Any]:
        """What the first start said."""
        return dict(self.refused.answer.get("error", {"code": "no error", "details": {}}))

    @property
    def code(self) -> str:
        return str(self.error["code"])

    @property
    def to_epoch(self) -> int | None:
        """The epoch that it says it went back to."""
        return self.resumed.rolled_back_to if self.resumed else None

    @property
    def stopped(self) -> bool:
        """Whether the start was refused as it must be: by code, naming the very object."""
        named = self.error["details"].get("key")
        return (self.refused.exit_code, self.code, named) == (Corrupt.exit_code, "head.damaged", self.victim.key)

    @property
    def proper(self) -> bool:
        """Whether it was refused, went back to where it had said, and ended with every row once."""
        return (
            self.stopped
            and self.to_epoch == self.error["details"]["newest_verified"]
            and self.resumed is not None
            and self.resumed.exit_code == 0
            and self.verdict is not None
            and self.verdict.exact
        )


def play(console: Console, folder: Path, sizes: Sizes) -> Outcome:
    """Damage the pipeline's head, start it, and start it again with the option that lets it fall back."""
    url = folder / "store" / "payments"
    victim = find_victim(url)
    flip(url / victim.key, victim.at)
    say(console, f"one bit is flipped in {victim.file}, stored in {victim.key}")
    with console.status("start"):
        outcome = Outcome(victim=victim, refused=live(folder, sizes))
    if not outcome.stopped:
        say(console, f"start: exit code {outcome.refused.exit_code}, and no refusal that names the object")
        console.print(outcome.refused.last_words, style="red", markup=False)
        return outcome
    say(console, f"start: exit code {outcome.refused.exit_code}, [{outcome.code}] {outcome.error['message']}")
    plan = ask_for_plan(url)
    way = f"from epoch {plan['head_epoch']} to {plan['to_epoch']}"
    say(console, f"slackwater rollback URL --to {NEWEST_VERIFIED}: {way}")
    for sink in plan["sinks"]:
        say(console, f"    {sink['name']}: {sink['action']} {sink['detail']}")
    with console.status("start with fallback"):
        resumed = live(folder, sizes, fallback=True)
    outcome = msgspec.structs.replace(outcome, resumed=resumed)
    say(
        console,
        f'start with .option("fallback", "{NEWEST_VERIFIED}"): rolled back to epoch {outcome.to_epoch}, '
        f"{resumed.epochs} epochs more, exit code {resumed.exit_code}",
    )
    if resumed.exit_code != 0:
        console.print(resumed.last_words, style="red", markup=False)
        return outcome
    return msgspec.structs.replace(outcome, verdict=judge.judge(folder, sizes.rows))


def ask_for_plan(url: Path) -> dict[str, Any]:
    """Ask the command what it would do; without --yes it changes nothing."""
    command = [sys.executable, "-m", "slackwater.cli", "rollback", str(url), "--to", NEWEST_VERIFIED, "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    return dict(msgspec.json.decode(done.stdout)["plan"])


def find_victim(url: Path) -> Victim:
    """Find the object that takes most checkpoints with it, the newest among them, and leaves at least one sound."""
    pipeline = read_pipeline(str(url))
    manifests = [load_manifest(pipeline.store, entry) for entry in pipeline.state.branch]
    needed = Counter(stored.key for manifest in manifests for stored in manifest.objects)
    found = [
        (needed[victim.key], victim)
        for victim in _state_files(url, manifests[-1])
        if needed[victim.key] < len(manifests)
    ]
    if not found:
        raise SystemExit("every object of the newest checkpoint is needed by all of them: try other --rows")
    return max(found, key=lambda pair: pair[0])[1]


def _state_files(url: Path, head: Manifest) -> list[Victim]:
    """List a byte in the middle of each state file that lies in an object of the head."""
    victims = []
    for stored in head.objects:
        if stored.kind == "batch":
            entries = batch.decode_index((url / stored.key).read_bytes()).values()
            places = [(entry.key, entry.offset + entry.stored_bytes // 2) for entry in entries]
        else:
            files = [f for op in head.operators.values() for part in op.partitions for f in part.files]
            mine = [file for file in files if file.object is not None and head.objects[file.object] == stored]
            places = [(file.path, (file.offset or 0) + file.size_bytes // 2) for file in mine]
        victims += [Victim(key=stored.key, file=path, at=at) for path, at in places if path.startswith("state/")]
    return victims
