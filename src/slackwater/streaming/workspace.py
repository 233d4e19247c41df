"""The local folder of one run: Spark's working directory, and the versions of the tables that it reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..errors import Corrupt
from ..protocol.cut import Cut
from ..spark.capture import capture
from ..spark.working_directory import WorkingDirectory
from ..tables.table import Table
from ..tables.versions import Tables
from .epochs import Epoch


class Workspace:
    """The working directory of a run, hydrated, with the tables of its query opened in it."""

    def __init__(self, directory: WorkingDirectory, source_types: Sequence[str], tables: Mapping[str, Table]) -> None:
        self.directory, self._source_types = directory, source_types
        self.tables = Tables(tables, directory)

    def check_followed(self, micro_batch: int, before: int) -> None:
        """Check that Spark keeps its logs where we look for them; otherwise no micro-batch would be checkpointed."""
        # It writes a micro-batch's offsets before foreachBatch, and its commit before the next one.
        expected = [f"offsets/{micro_batch}", *([f"commits/{before}"] if before >= 0 else [])]
        for name in expected:
            if not (self.directory.checkpoint / name).exists():
                raise Corrupt(
                    f"Spark runs micro-batch {micro_batch}, and {name} is not in {self.directory.checkpoint}",
                    code="capture.damaged",
                    hint="see that nobody cleans up in the working directory, then start again",
                )

    def is_committed(self, micro_batch: int) -> bool:
        """Tell whether Spark has committed a micro-batch."""
        return (self.directory.checkpoint / "commits" / str(micro_batch)).exists()

    def capture(self, epoch: Epoch, held: Collection[str]) -> Cut:
        """Capture what Spark has after an epoch, and the versions of tables that its micro-batches have read."""
        cut = capture(self.directory.checkpoint, epoch.last, self._source_types)
        return self.tables.add(cut, epoch.checkpoint_id, held)
