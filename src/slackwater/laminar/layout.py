"""LaminarDB's paths: as its documents have them, and as its code writes them, which lacks a slash.

Every path is built and parsed here. A folder of LaminarDB is recognised by the keys of its objects alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal
from urllib.parse import quote

import msgspec

Form = Literal["documented", "defective"]

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# Characters that object_store's `Path::from` leaves as they are; it encodes the others, and all that is not ASCII.
_KEPT = "!$&'()+,;=:@-_. "


class CheckpointPaths(msgspec.Struct, frozen=True):
    """LaminarDB's path generator; ``form`` says whether a checkpoint's objects lie in its folder or beside it."""

    base_prefix: str = "checkpoints/"
    form: Form = "documented"

    @classmethod
    def new(cls, base_prefix: str, form: Form = "documented") -> CheckpointPaths:
        """Append the slash when it is missing, as LaminarDB does; a prefix is a relative key, never a URL (A12)."""
        base = base_prefix.strip("/")
        return cls(f"{base}/" if base else "", form)

    @property
    def latest_pointer(self) -> str:
        return f"{self.base_prefix}_latest"

    def checkpoint_dir(self, checkpoint_id: str) -> str:
        return f"{self.base_prefix}{checkpoint_id}/"

    def manifest(self, checkpoint_id: str) -> str:
        return f"{self._inside(checkpoint_id)}manifest.json"

    def snapshot(self, checkpoint_id: str, operator: str, partition: int) -> str:
        return self._inside(checkpoint_id) + artifact(operator, partition, delta=False)

    def delta(self, checkpoint_id: str, operator: str, partition: int) -> str:
        return self._inside(checkpoint_id) + artifact(operator, partition, delta=True)

    def source_offset(self, checkpoint_id: str, source: str) -> str:
        return f"{self._inside(checkpoint_id)}offsets/{source}.json"

    def _inside(self, checkpoint_id: str) -> str:
        return f"{self.base_prefix}{checkpoint_id}{'/' if self.form == 'documented' else ''}"


def artifact(operator: str, partition: int, *, delta: bool) -> str:
    """The path of a partition's state below its checkpoint, names as they are (A10)."""
    return f"operators/{operator}/partition-{partition}.{'delta' if delta else 'snap'}"


def object_key(path: str) -> str:
    """The key that object_store makes of a path: empty segments dropped, special characters encoded.

    >>> object_key("checkpoints//a b/../ä~")
    'checkpoints/a b/%2E%2E/%C3%A4%7E'
    """
    parts = [part for part in path.split("/") if part]
    dots = {".": "%2E", "..": "%2E%2E"}
    return "/".join(dots.get(part) or quote(part, safe=_KEPT).replace("~", "%7E") for part in parts)


def below_checkpoint(path: str, checkpoint_id: str) -> str:
    """Cut a stored path down to what lies below its checkpoint: it may be relative, or begin with the prefix (A11)."""
    at = path.rfind(checkpoint_id)
    return path if at < 0 else path[at + len(checkpoint_id) :].removeprefix("/")


# --- a folder, recognised by its keys

Kind = Literal["v1", "v2", "incremental"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint of a folder: its document, its sidecar's key (there or not), and below what its objects lie."""

    kind: Kind | None  # None: a manifest alone, whose own version tells
    name: str
    document: str
    sidecar: str
    inside: str
    form: Form


class Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """What the keys of a folder are; ``strays`` look like checkpoints and are none, ``partial`` have no document."""

    places: list[Place]
    batches: dict[str, int]  # key → epoch
    pointers: list[str]
    strays: list[str]
    partial: list[str]


_BASE = r"(?P<base>(?:checkpoints/)?)"
_V2 = re.compile(rf"{_BASE}(?P<id>{_UUID})(?P<slash>/?)manifest\.json")
_V1 = re.compile(rf"{_BASE}checkpoint_(?P<id>[0-9]{{6,20}})/manifest\.json")
_V1_OBJECTS = re.compile(r"manifests/manifest-(?P<id>[0-9]{6,20})\.json")
_INCREMENTAL = re.compile(rf"{_BASE}checkpoint_(?P<id>[0-9a-f]{{16}})/metadata\.json")
# The batcher joins its prefix as it is, slash or not (D10), and has one name an epoch (D1).
_BATCH = re.compile(r"(?:.*?)(?:checkpoints/|^)batch-(?P<epoch>[0-9]{6,20})\.lz4")
_POINTER = re.compile(rf"{_BASE}(?:_latest|latest\.txt)|manifests/latest\.json")
_PARTIAL = re.compile(rf"({_BASE}checkpoint_[0-9a-f]{{6,20}})/.+")


_FOLDERS = re.compile(rf".*checkpoints|manifests|operators|offsets|checkpoint_[0-9a-f]{{6,20}}|{_UUID}.*")


def may_hold(folders: Iterable[str]) -> bool:
    """Tell from the folders right below it whether a folder can be LaminarDB's, before all of it is listed."""
    names = list(folders)
    return not names or any(_FOLDERS.fullmatch(name) for name in names)


def survey(keys: Iterable[str]) -> Surveyed:
    """Recognise the checkpoints, batches and pointers among a folder's keys."""
    places: list[Place] = []
    batches: dict[str, int] = {}
    pointers: list[str] = []
    strays: list[str] = []
    touched: set[str] = set()
    for key in sorted(keys):
        if partial := _PARTIAL.fullmatch(key):
            touched.add(partial[1])
        if place := _place(key):
            places.append(place)
        elif match := _BATCH.fullmatch(key):
            batches[key] = int(match["epoch"])
        elif _POINTER.fullmatch(key):
            pointers.append(key)
        elif key.endswith(("manifest.json", "metadata.json")):
            strays.append(key)
    whole = {place.document.rpartition("/")[0] for place in places}
    return Surveyed(places=places, batches=batches, pointers=pointers, strays=strays, partial=sorted(touched - whole))


def _place(key: str) -> Place | None:
    if match := _V2.fullmatch(key):
        inside = key.removesuffix("manifest.json")
        form: Form = "documented" if match["slash"] else "defective"
        return Place(kind="v2", name=match["id"], document=key, sidecar="", inside=inside, form=form)
    if match := _V1.fullmatch(key) or _INCREMENTAL.fullmatch(key):
        inside = key.rpartition("/")[0] + "/"
        kind: Kind = "v1" if key.endswith("manifest.json") else "incremental"
        number = int(match["id"], 10 if kind == "v1" else 16)
        return Place(
            kind=kind, name=str(number), document=key, sidecar=f"{inside}state.bin", inside=inside, form="documented"
        )
    if match := _V1_OBJECTS.fullmatch(key):
        sidecar = f"checkpoints/state-{match['id']}.bin"
        name = str(int(match["id"]))
        return Place(kind="v1", name=name, document=key, sidecar=sidecar, inside="", form="documented")
    if key == "manifest.json":
        return Place(kind=None, name="", document=key, sidecar="state.bin", inside="", form="documented")
    if key == "metadata.json":
        return Place(kind="incremental", name="", document=key, sidecar="state.bin", inside="", form="documented")
    return None
