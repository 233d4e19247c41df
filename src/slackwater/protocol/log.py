"""The log: read the newest record, append the next, trim old ones.

Rules 1 to 3 and 12 are here and nowhere else, and so is the append of rule 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import msgspec

from ..clock import Clock
from ..errors import Code, Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable
from ..failpoints import reach
from ..formats import record as records
from ..formats.change import Change, Claim, Repair
from ..formats.keys import LOG, parse_record_name, record_key, record_name
from ..formats.record import Record
from ..formats.state import LiveCheckpoint, State
from ..settings import Settings
from ..store import Store
from .log_damage import Lost, explain, look_back, read_record
from .state import apply, require_current

# Chosen anew on every try: what to append on this state, or None when there is nothing left to do.
Decide = Callable[[State | None], Change | None]

_MAX_READS = 100
# Answers: nothing was written. After any other Unavailable a create may have landed, or may still land.
_REFUSALS = (Code.STORE_DENIED, Code.STORE_FULL)
# So many of the newest records are never deleted. Rules 1 to 3 hold with one; the rest is for audits, and for listings
# that take so long that records come and go meanwhile.
KEPT_RECORDS = 1_000


class Permit(msgspec.Struct, frozen=True):
    """Ownership of a pipeline. Only ``Log.claim`` gives one, and every append of a driver asks for it."""

    generation: int


# Refuses, by raising, the state that a claim would follow on; asked anew on every try.
Admit = Callable[[State | None], None]


class Log:
    """One writer's view of the log. ``state`` is the newest state that this writer knows."""

    def __init__(self, store: Store, clock: Clock, settings: Settings, *, kept_records: int = KEPT_RECORDS) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self.kept_records = kept_records
        # The number at which the log has, or had, just as many records as are kept.
        self._trimmed_at = 0
        self._newest: Record | None = None
        self._newest_sha256: str | None = None

    @property
    def state(self) -> State | None:
        return self._newest.state if self._newest else None

    @property
    def change(self) -> Change | None:
        """What the newest record that this writer knows has changed."""
        return self._newest.change if self._newest else None

    @property
    def number(self) -> int:
        return self._newest.number if self._newest else 0

    def read(self) -> State | None:
        """Read the newest state; None is an empty log.

        Rule 1: list, get the highest, list again. The second list is there because a record may have been trimmed, and
        its number created again by a writer that slept, between the first list and the get.
        """
        for _ in range(_MAX_READS):
            number = self._highest_after(self.number)
            if number is None:
                return self.state
            try:
                data = self._store.get(record_key(number), max_bytes=records.MAX_RECORD_BYTES)
                if self._highest_after(number) is None:
                    self._newest, self._newest_sha256 = records.decode(data, number=number), records.digest(data)
                    return self.state
            except NotFound:
                continue
            except Corrupt as damage:
                if (lost := self.look_back(number)).seen:
                    raise explain(lost, damage) from None
                # It was read wrong, and is sound.
        raise Unavailable("the log grows faster than it can be read", code=Code.LOG_BUSY, hint="try again")

    def claim(self, uid: str, driver: str, *, admit: Admit | None = None) -> Permit:
        """Append a claim, which fences every older driver, unless ``admit`` refuses the state that it would follow on.

        ``uid`` names the pipeline if this is its first record; later ones keep the first.
        """

        def decide(state: State | None) -> Claim:
            if admit is not None:
                admit(state)
            return Claim(uid=uid, driver=driver)

        return Permit(generation=self.append(decide).generation)

    def append(self, decide: Decide, *, permit: Permit | None = None) -> State:
        """Append what ``decide`` chooses, and return the state that has it.

        Rule 2: one append id for all tries; a change that the newest state already has is done; one that does not fit a
        state freshly read is refused. Rule 3: after a create, list once more. A driver gives its ``permit``, and is
        refused as soon as another one has claimed, even if its change has counted.
        """
        append_id = self._clock.random_id()
        is_stale = self._newest is None

        def append_once() -> bool:
            nonlocal is_stale
            is_fresh, is_stale = is_stale, True
            try:
                if is_fresh:
                    self.read()
                state = self.state
                if state is not None and permit is not None:
                    require_current(state, permit.generation)
                if state is not None and state.has(append_id):
                    return True
                change = decide(state)
                return change is None or self._create(change, append_id)
            except SlackwaterError as error:
                # What I knew may be old news: refuse only what does not fit a state freshly read.
                if is_fresh or isinstance(error, Unavailable):
                    raise
                return False

        self._persist(append_once)
        return cast(State, self.state)

    def trim(self) -> int:
        """Delete all records but the newest thousand, and return how many went; with them, what killed writers left.

        Rule 12: a listing alone says which. It may be old when the deletes come, and another trimmer may have been
        faster: what was old stays old, and so does what a writer that slept has put where an old record was.
        """
        self._trimmed_at = self.number
        old = list_records(self._store)[: -self.kept_records]
        if old:
            self._store.delete([record_key(number) for number in old])
            reach("trim.after")
        self._store.remove_unfinished(LOG)
        return len(old)

    def trim_if_due(self) -> int:
        """Trim when the log has a quarter more than what stays: most starts and appends are free of it."""
        return self.trim() if 4 * (self.number - self._trimmed_at) >= self.kept_records else 0

    def look_back(self, number: int) -> Lost:
        """Look at what there is before a newest record that is damaged."""
        return look_back(self._store, number, kept_records=self.kept_records)

    def repair(self, lost: Lost, change: Repair) -> bool:
        """Append after the damaged records, on the state before them; False when somebody else was first.

        Rule 13: the number after the newest is created, as always. So a driver that knows the newest record from
        before its damage may be first, and the log is sound again; or it finds this record, and is fenced.
        """
        for damaged, fingerprint in lost.seen.items():
            if read_record(self._store, damaged)[0] != fingerprint:
                raise Unavailable(
                    f"record {damaged} is not read as it was before",
                    code=Code.STORE_UNAVAILABLE,
                    hint="the store, or the way to it, damages what is read: fix that first. Nothing was repaired",
                )
        number, append_id = lost.number + 1, self._clock.random_id()
        _, data = self._draw_up(lost.before, lost.before_sha256, change, number=number, append_id=append_id)

        def create() -> bool:
            self._store.create(record_key(number), data)
            self.read()
            return True

        self._persist(create)
        # Whatever the answer was, and however late: the newest state has this change, or it does not count.
        return self.state is not None and self.state.has(append_id)

    @contextmanager
    def unless_fenced(self, permit: Permit) -> Iterator[None]:
        """Tell missing or damaged objects from those that a newer driver has retired: that one is a conflict."""
        try:
            yield
        except (NotFound, Corrupt):
            if (state := self.read()) is not None:
                require_current(state, permit.generation)
            raise

    @contextmanager
    def unless_retired(self, entry: LiveCheckpoint) -> Iterator[None]:
        """Tell missing or damaged objects from those of a checkpoint that was retired while it was read: that is none.

        For whoever reads without a claim, beside a driver that goes on.
        """
        try:
            yield
        except (NotFound, Corrupt):
            state = self.read()
            if state is None or all(one.checkpoint_id != entry.checkpoint_id for one in state.live):
                raise NotFound(
                    f"epoch {entry.epoch} was retired while it was read",
                    code="checkpoint.not_found",
                    hint="slackwater savepoint create URL LABEL keeps one: restore that",
                ) from None
            raise

    def _persist(self, act: Callable[[], bool]) -> None:
        """Act until it is done, ever more slowly, through what may pass: until the time is up."""
        deadline, pause_s = self._clock.monotonic() + self._settings.total_timeout_s, 0.0
        while True:
            try:
                if act():
                    return
            except Unavailable as error:
                if self._clock.monotonic() >= deadline or error.code in _REFUSALS:
                    raise
            if self._clock.monotonic() >= deadline:
                raise Unavailable("the log is too busy to append to", code=Code.LOG_BUSY, hint="try again")
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s + 0.02, 2.0)

    def _create(self, change: Change, append_id: str) -> bool:
        """Create the next record; True when it is there and the newest."""
        number = self.number + 1
        record, data = self._draw_up(self._newest, self._newest_sha256, change, number=number, append_id=append_id)
        if not self._store.create(record_key(number), data) or self._highest_after(number) is not None:
            return False
        self._newest, self._newest_sha256 = record, records.digest(data)
        return True

    def _draw_up(
        self, before: Record | None, before_sha256: str | None, change: Change, *, number: int, append_id: str
    ) -> tuple[Record, bytes]:
        """Make the record that follows on another; one that would be too large to be read again is refused."""
        state, at_ms = before.state if before else None, self._clock.now_ms()
        record = Record(
            version=records.VERSION,
            number=number,
            append_id=append_id,
            previous_sha256=before_sha256,
            change=change,
            state=apply(state, change, number=number, append_id=append_id, at_ms=at_ms),
        )
        data = records.encode(record)
        if len(data) > records.MAX_RECORD_BYTES:
            raise InvalidInput(
                f"the record would take {len(data)} bytes, and {records.MAX_RECORD_BYTES} is the most that one can",
                code="log.state_too_large",
                hint="make it smaller: slackwater savepoint delete URL LABEL, slackwater forget URL --keep-last N",
            )
        return record, data

    def _highest_after(self, number: int) -> int | None:
        newer = self._store.list_names(LOG, after=record_name(number) if number else None)
        # The last one is it, unless somebody has put another file there.
        numbers = (parse_record_name(name) for name in reversed(newer))
        highest = next((found for found in numbers if found is not None), None)
        if not number:
            self._trimmed_at = (highest or 0) - len(newer) + self.kept_records
        return highest


def list_records(store: Store) -> list[int]:
    """List the numbers of all records that there are, in order."""
    numbers = (parse_record_name(name) for name in store.list_names(LOG))
    return [number for number in numbers if number is not None]
