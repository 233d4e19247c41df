"""JVMs that live for seconds: less compiling, and the classes that the first one loaded kept for the others."""

from __future__ import annotations

from pathlib import Path

# Settings of Spark: generated code would take longer to compile than it saves.
SHORT_LIVED_CONF = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

# Options of the JVM, and the variable that has them: the second compiler never earns back what it takes.
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
# An archive of classes costs the first JVM about as much as it saves the next four.
_WORTH_AN_ARCHIVE = 6
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def quick_start(folder: Path) -> dict[str, str]:
    """Return the environment for a Spark driver that is to start fast.

    The first one that asks writes an archive of its classes when its JVM ends; those that start later load it. A JVM
    that finds no archive, or half of one, does without.
    """
    archive = folder / "classes.jsa"
    if archive.exists():
        return {JVM_OPTIONS: f"{SHORT_LIVED_JVM} {_QUIET} -XX:SharedArchiveFile={archive}"}
    try:
        (folder / "classes.begun").touch(exist_ok=False)
    except FileExistsError:
        return {JVM_OPTIONS: SHORT_LIVED_JVM}
    return {JVM_OPTIONS: f"{SHORT_LIVED_JVM} {_QUIET} -XX:ArchiveClassesAtExit={archive}"}


def spare_archive(folder: Path, starts: int) -> None:
    """Let no driver write an archive of its classes when too few will start after it."""
    if starts < _WORTH_AN_ARCHIVE:
        (folder / "classes.begun").touch()
