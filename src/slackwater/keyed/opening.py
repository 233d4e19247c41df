"""``open_keyed``, in the order of its steps: look at the local database, claim, go on with it or restore.

lock ─ look at the local database ─ claim ─ go on with it, or restore the head, every byte verified
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

import msgspec

from ..errors import Conflict, Corrupt, InvalidInput
from ..formats.change import Claim
from ..formats.manifest import Manifest, references
from ..formats.state import State
from ..protocol.address import refuse_inside_pipeline
from ..protocol.artifacts import Held, Holdings
from ..protocol.driver import Claimed, Driver, open_driver
from ..protocol.kinds import KEYED, check_kind, refuse_foreign, refuse_renamed
from ..protocol.log_damage import read_record
from ..protocol.pipeline import locate
from ..protocol.recovery import tell_fallback
from ..rocks.database import require_library
from ..settings import Settings
from ..store import Store
from .capture import STATE, operator_of
from .checkpoints import KeyedCheckpoints, KeyedPipeline, OpenedState
from .config import CheckpointConfig
from .documents import Lineage
from .local_folder import TOKEN, LocalFolder
from .state import KeyedState

logger = logging.getLogger("slackwater")

_CLAIMED = re.compile(rf".* {KEYED} ({TOKEN.pattern})")


def open_keyed(
    config: CheckpointConfig,
    *,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    fallback: bool = False,
    take_over: bool = False,
) -> KeyedCheckpoints:
    """Open a keyed pipeline: go on with its local database, or restore the newest checkpoint where there is none.

    The folder is locked and the pipeline claimed: a second writer is a :class:`Conflict`, here or at its next
    checkpoint. A database that is not the newest one is a conflict, too, and nothing is changed. With ``fallback``, a
    newest checkpoint that is damaged, and has to be restored, is rolled back to the newest that is sound. With
    ``take_over`` this folder goes on although the pipeline was opened with another one since, whose writes are lost.

    >>> import tempfile
    >>> config = CheckpointConfig(tempfile.mkdtemp() + "/counts")
    >>> with open_keyed(config) as counts:
    ...     counts.write([(b"a", b"1"), (b"b", b"2")], offsets={"orders": {"row": "2"}})
    ...     counts.create_checkpoint().epoch
    ...     counts.put(b"c", b"3")
    1
    >>> with open_keyed(config) as counts:
    ...     counts.get(b"c"), counts.key_count, counts.offsets, counts.epoch
    (b'3', 3, {'orders': {'row': '2'}}, 1)
    """
    if not isinstance(config, CheckpointConfig):
        raise InvalidInput(
            f"open_keyed takes a CheckpointConfig, not {config!r:.100}",
            code="option.invalid",
            hint='write sw.open_keyed(sw.CheckpointConfig("store/counts"))',
        )
    config.validate()
    require_library("sw.open_keyed")
    # A table is stored once, and never packed with others: it is compressed already, and may be needed alone.
    settings = msgspec.structs.replace(settings or Settings(), keep_last=config.max_retained, object_min_bytes=1)
    located = locate(config.url, settings, storage_options)
    refuse_foreign(located, "keyed")
    if located.log.state is None:
        refuse_inside_pipeline(config.url, settings, storage_options)
    local = LocalFolder(config.folder, located.clock, archive_wal=not config.truncate_wal)
    pipeline = KeyedPipeline(**msgspec.structs.asdict(located), config=config, local=local)
    try:
        opening = _Opening(pipeline, _look_at(pipeline, take_over=take_over))
        driver, opened = open_driver(
            pipeline,
            local.driver,
            hydrate=opening.hydrate,
            fallback=tell_fallback if fallback else None,
            without_head=opening.without_head,
        )
        try:
            return KeyedCheckpoints(pipeline, driver, opening.place(driver, opened))
        except BaseException as error:
            driver.end(error)
            raise
    except BaseException:
        local.close()
        raise


def _look_at(pipeline: KeyedPipeline, *, take_over: bool) -> KeyedState | None:
    """Open the local database, if it may go on; None when the head is to be restored, or there is nothing yet.

    What is a conflict is one before the claim, which would fence whoever is right.
    """
    local, known = pipeline.local, pipeline.log.state
    if not local.database.exists():
        return None
    database = local.open()
    lineage = database.lineage
    if lineage is None:
        if database.key_count:
            raise Conflict(
                f"{local.database} holds a keyed state that no pipeline has made",
                code="keyed.wrong_folder",
                hint="name another wal_path, or move the folder away",
            )
        local.give_way()  # it was begun, and nothing was acknowledged
        return None
    if known is None:
        raise Conflict(
            f"{local.folder} belongs to a pipeline, and there is none at {pipeline.store.url}",
            code="keyed.wrong_folder",
            hint="see that checkpoint_dir is right; or move the folder away, and a new pipeline begins",
        )
    if plan_opening(lineage, known, local.folder) == "replace":
        return None
    if not take_over:
        _refuse_opened_elsewhere(pipeline.store, known, local)
    return database


def plan_opening(lineage: Lineage, state: State, folder: Path) -> Literal["keep", "replace"]:
    """Decide what becomes of a database: it goes on, or gives way to the head. What nobody can decide is a conflict."""
    head = state.head
    hint = f"move {folder} away, and the newest checkpoint is restored; what is only there stays there"
    if lineage.uid != state.uid:
        raise Conflict(
            f"{folder} belongs to another pipeline, or to one whose store is lost",
            code="keyed.wrong_folder",
            hint=hint,
        )
    noted = (lineage.attempt_id, lineage.base_id)
    if (lineage.base_id is None) if head is None else (head.checkpoint_id in noted):
        return "keep"
    if _was_rolled_back(lineage, state):
        return "replace"
    if lineage.base_epoch > state.epoch:
        what, hint = f"the store ends at {state.epoch}", f"was the store restored from an older copy? If so, {hint}"
    else:
        what = f"the pipeline has come to {state.epoch} elsewhere"
    raise Conflict(
        f"{folder} was last checkpointed after epoch {lineage.base_epoch}, and {what}",
        code="keyed.wrong_folder",
        hint=hint,
        epoch=state.epoch,
    )


def _was_rolled_back(lineage: Lineage, state: State) -> bool:
    """Tell whether nothing but rollbacks and repairs came after the checkpoint that the database goes on from."""
    known = {entry.checkpoint_id: entry for entry in state.live}
    entry = state.head
    while entry is not None and entry.rollback_to is not None and entry.parent_id is not None:
        if entry.parent_id in (lineage.attempt_id, lineage.base_id):
            return True
        # A repair forgets the records after its target, and this database's checkpoint may have been one of them.
        if entry.repair and entry.rollback_to <= lineage.base_epoch < entry.epoch:
            return True
        entry = known.get(entry.parent_id)
    return False


def _refuse_opened_elsewhere(store: Store, state: State, local: LocalFolder) -> None:
    """Refuse to go on with a folder when the pipeline was opened with another one since: that may have newer writes."""
    _, record = read_record(store, state.generation)
    if record is None or not isinstance(record.change, Claim):
        return
    claimed = _CLAIMED.fullmatch(record.change.driver)
    if claimed is not None and claimed[1] != local.token:
        raise Conflict(
            f"the pipeline was opened with another folder than {local.folder} since, by {record.change.driver}",
            code="keyed.wrong_folder",
            hint=f"open it there, and let it checkpoint; or move {local.folder} away, and the newest checkpoint is "
            "restored; or, if that other folder has nothing that counts, open_keyed(config, take_over=True) goes on "
            "with this one",
        )


class _Opening:
    """Brings the local database to where the pipeline is, once that is claimed."""

    def __init__(self, pipeline: KeyedPipeline, found: KeyedState | None) -> None:
        self._pipeline, self._local, self._found = pipeline, pipeline.local, found

    def hydrate(self, manifest: Manifest | None, claimed: Claimed) -> tuple[OpenedState, Holdings]:
        """Go on with the database that was found; else restore the head beside it, or begin a database."""
        found = self._found_for(claimed)
        if found is not None:
            if manifest is None:
                return OpenedState(state=found), {}
            return self._hold(found, manifest, claimed)
        if manifest is None:
            return OpenedState(state=self._local.begin(claimed.state.uid)), {}
        check_kind(manifest, "keyed")
        refuse_renamed(manifest, self._pipeline.name)
        return OpenedState(state=None), self._local.receive(self._pipeline.store, manifest, self._pipeline.settings)

    def without_head(self, damage: Corrupt, claimed: Claimed) -> tuple[OpenedState, Holdings] | None:
        """Go on with a whole database beside a head that is damaged, if the next checkpoint stores all of it again."""
        found = self._found_for(claimed)
        if found is None:
            return None
        if not self._pipeline.config.incremental:
            return OpenedState(state=found), {}
        raise Corrupt(
            f"the newest checkpoint is damaged, and the next one would refer to it: {damage.message}",
            code="keyed.head_damaged",
            hint="the local database is whole: open it with incremental=False, and checkpoint, which stores all of it "
            "again; or restore the object from a copy",
        ) from damage

    def place(self, driver: Driver, opened: OpenedState) -> OpenedState:
        """Let the database give way to what was restored, now that it is known whose content that is."""
        head = driver.head
        if opened.state is not None or head is None:
            return opened
        if self._local.database.exists():
            logger.warning("the pipeline was rolled back: %s is replaced by epoch %d", self._local.database, head.epoch)
        database = self._local.replace(
            Lineage(uid=driver.state.uid, base_id=head.checkpoint_id, base_epoch=head.epoch, attempt_id=None)
        )
        return OpenedState(state=database, saved_at=database.wal_position)

    def _found_for(self, claimed: Claimed) -> KeyedState | None:
        """The database that was found, unless a tool has rolled back since it was looked at."""
        found, folder = self._found, self._local.folder
        kept = found is not None and plan_opening(cast(Lineage, found.lineage), claimed.state, folder) == "keep"
        return found if kept else None

    def _hold(self, found: KeyedState, manifest: Manifest, claimed: Claimed) -> tuple[OpenedState, Holdings]:
        """Tell what the head holds of the database, without reading it: a checkpoint refers to tables by name."""
        if missing := references(manifest) - set(claimed.survey.keys):
            raise Corrupt(f"the object {min(missing)} is not there", code="keyed.head_damaged")
        (partition,) = manifest.operators[operator_of(STATE)].partitions
        held = {
            file.path: Held(manifest.objects[file.object], file.offset, file.sha256, file.size_bytes)
            for file in partition.files
            if file.object is not None and file.offset is not None
        }
        return OpenedState(state=found, saved_at=partition.version), held
