"""What a checkpoint of the seeds holds, in our terms; and that as a manifest of version 3."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping

import msgspec

from ...errors import InvalidInput
from ..layout import ArtifactKind, artifact_key, format_name
from ..manifest import VERSION, File, Manifest, Object, Operator, Origin, Partition, SourcePosition
from .findings import Findings

_MAX_COUNT = 2**53 - 1


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one partition, or one link of its chain: inline, or at an offset of an object of the folder.

    ``path`` is its name among the files of a checkpoint of ours; ``checkpoint`` is the seed's id of whoever wrote it.
    """

    operator: str
    partition: int
    delta: bool
    path: str
    size_bytes: int
    sha256: str
    checkpoint: str
    inline: bytes | None = None
    offset: int = 0


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of the seeds. Its pieces are in order: by operator, by partition, each from its snapshot on."""

    origin: Origin
    created_at_ms: int
    watermark_ms: int
    sources: dict[str, SourcePosition]
    source_watermarks: dict[str, str]
    table_offsets: dict[str, SourcePosition]
    table_store_path: str | None
    sink_epochs: dict[str, int]
    vnode_count: int | None
    pieces: list[Piece]

    @property
    def operators(self) -> dict[str, dict[int, list[Piece]]]:
        """The pieces by operator and partition."""
        found: dict[str, dict[int, list[Piece]]] = {}
        for piece in self.pieces:
            found.setdefault(piece.operator, {}).setdefault(piece.partition, []).append(piece)
        return found


def piece_path(operator: str, partition: int, checkpoint: str, *, delta: bool) -> str:
    """Name a piece among the files of a checkpoint; the checkpoint's own id keeps the links of a chain apart."""
    return f"{partition_path(operator, partition)}/{checkpoint}.{'delta' if delta else 'snap'}"


def partition_path(operator: str, partition: int) -> str:
    return f"operators/{format_name(operator)}/{partition}"


def to_v3(
    content: Content, *, checkpoint_id: str, pipeline: str, uid: str, epoch: int = 1, parent_id: str | None = None
) -> Manifest:
    """Upgrade in memory: the manifest that a checkpoint of ours with this content would have.

    A partition's pieces stand one after the other in an object of its own, as ``docs/spec/layout.md`` has it.
    """
    operators: dict[str, Operator] = {}
    objects: list[Object] = []
    for number, (name, partitions) in enumerate(sorted(content.operators.items())):
        described = [
            _partition(content.origin, pieces, artifact_key(checkpoint_id, name, partition, _kind(pieces)), objects)
            for partition, pieces in sorted(partitions.items())
        ]
        operators[name] = Operator(
            operator_id=number,
            operator_name=name,
            store="default",
            size_bytes=sum(partition.size_bytes for partition in described),
            partitions=described,
        )
    return Manifest(
        version=VERSION,
        checkpoint_id=checkpoint_id,
        epoch=epoch,
        parent_id=parent_id,
        pipeline=pipeline,
        uid=uid,
        created_at_ms=content.created_at_ms,
        micro_batch=content.origin.epoch,
        watermark_ms=content.watermark_ms,
        pipeline_hash=None,
        query=None,
        rollback=None,
        origin=content.origin,
        source_names=list(content.sources),
        sink_names=[],
        source_offsets=content.sources,
        source_watermarks=content.source_watermarks,
        table_offsets=content.table_offsets,
        table_store_path=content.table_store_path,
        sinks={},
        sink_epochs=content.sink_epochs,
        vnode_count=content.vnode_count,
        operators=operators,
        files=[],
        objects=objects,
        total_size_bytes=sum(operator.size_bytes for operator in operators.values()),
    )


def _kind(pieces: list[Piece]) -> ArtifactKind:
    return "delta" if all(piece.delta for piece in pieces) else "snap"


def _partition(origin: Origin, pieces: list[Piece], key: str, objects: list[Object]) -> Partition:
    offset, files = 0, []
    for piece in pieces:
        inline = None if piece.inline is None else base64.b64encode(piece.inline).decode()
        files.append(
            File(
                path=piece.path,
                sha256=piece.sha256,
                size_bytes=piece.size_bytes,
                inline=inline,
                object=len(objects) if inline is None else None,
                offset=offset if inline is None else None,
            )
        )
        offset += piece.size_bytes if inline is None else 0
    if any(file.object is not None for file in files):
        objects.append(Object(key=key, kind="object", sha256=None, size_bytes=offset))
    first = pieces[0]
    return Partition(
        partition=first.partition,
        path=partition_path(first.operator, first.partition),
        kind="delta" if any(piece.delta for piece in pieces) else "snap",
        version=origin.epoch,
        unique_id=origin.checkpoint_id,
        size_bytes=sum(piece.size_bytes for piece in pieces),
        files=files,
    )


# --- what both manifests are checked for


def check_count(value: int, where: str, findings: Findings) -> None:
    """A number that no JSON tool keeps cannot be carried on (C12)."""
    if value > _MAX_COUNT:
        findings.fatal("the number is above 2^53 - 1 and cannot be carried on", code="seed.number_range", where=where)


def check_positive(value: int, where: str, findings: Findings) -> None:
    if value == 0:
        findings.fatal("it is 0, and counts from 1", code="seed.zero", where=where)
    check_count(value, where, findings)


def check_time(value: int, where: str, findings: Findings) -> None:
    """A clock that could not be read gives 0; nothing is decided by it."""
    if value == 0:
        findings.warn("it is 0: the clock could not be read", code="seed.no_time", where=where)
    check_count(value, where, findings)


def check_watermark(value: int | None, findings: Findings) -> None:
    if value is not None and not 0 <= value <= _MAX_COUNT:
        findings.fatal(
            "a watermark before 1970, or past 2^53 - 1 ms, cannot be carried on",
            code="seed.watermark_range",
            where="watermark",
        )


def check_names(names: Iterable[str], where: str, findings: Findings) -> None:
    """Names become one component of a path each; a seed's are joined as they are (A10)."""
    for name in names:
        try:
            fits = bool(format_name(name)) and len(name) <= 200
        except InvalidInput:
            fits = False
        if not fits:
            findings.fatal(
                "it is empty, made of dots, too long, or has control characters",
                code="seed.hostile_name",
                where=f"{where}.{name[:60]!r}",
            )


def check_epoch(epoch: int, newest: int, where: str, findings: Findings) -> None:
    """The epoch that an entry repeats must not be another than the manifest's (A14)."""
    if epoch > newest:
        findings.fatal(f"it belongs to epoch {epoch}, after epoch {newest}", code="seed.epoch_mismatch", where=where)
    elif epoch < newest:
        findings.warn(f"it belongs to epoch {epoch}, before epoch {newest}", code="seed.epoch_older", where=where)


_WITHOUT_TOPIC = re.compile(r"partition-[0-9]+")


def check_offsets(source_type: str, offsets: Mapping[str, str], where: str, findings: Findings) -> None:
    """Two spellings of Kafka's partitions exist: the seeds' documents leave the topic out, connectors do not (C13)."""
    if source_type == "kafka" and any(_WITHOUT_TOPIC.fullmatch(key) for key in offsets):
        findings.note(
            "the keys do not name the topic; they are carried on as they are",
            code="seed.offsets_without_topic",
            where=where,
        )


def unprotected(findings: Findings) -> None:
    """Nothing vouches for a seed's manifest itself (A8, C4): every one has this finding."""
    findings.warn(
        "the manifest has no digest: a changed offset, watermark or inline byte cannot be noticed",
        code="seed.no_self_digest",
        where="manifest",
    )
