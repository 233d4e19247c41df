"""A driver that runs every query of the catalogue at once, each as a pipeline of its own, to the end of its inputs."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import slackwater as sw
from demo.jvm import SHORT_LIVED_CONF
from slackwater.streaming.query import PipelineQuery
from tests.crash.queries import CATALOGUE, Inputs

PATIENCE_S = 120
# Spark gives a Python process ten seconds to begin.
TOO_BUSY = "Python worker failed to connect back"


class Pace:
    """Where a pipeline that is about to stage says so and, if they are to go in step, waits for all others."""

    def __init__(self, together: threading.Barrier | None) -> None:
        self.begun = threading.Event()
        self._together = together

    def keep(self) -> None:
        self.begun.set()
        if self._together is not None:
            self._together.wait(PATIENCE_S)


class Paced:
    """A sink that keeps a pace."""

    pace: Pace | None = None

    def stage(self, *args: Any, **kwargs: Any) -> Any:
        if self.pace is not None:
            self.pace.keep()
        return super().stage(*args, **kwargs)  # type: ignore[misc]


class Files(Paced, sw.FileSink):
    pass


class Delta(Paced, sw.DeltaSink):
    pass


def start(name: str, inputs: Inputs, folder: Path, pace: Pace) -> PipelineQuery:
    query = CATALOGUE[name]
    for key, value in query.conf.items():
        inputs.spark.conf.set(key, value)
    writer = sw.writeStream(query.frame(inputs)).queryName(name).outputMode(query.mode).trigger(availableNow=True)
    # With one epoch in flight none is staged before the one before it has settled.
    writer.options(store=str(folder / "store"), epochs_in_flight=1)
    sinks: list[Files | Delta] = []
    if query.sink in ("delta", "both"):
        sinks.append(Delta(folder / "delta" / name, key=query.key or None))
    if query.sink in ("files", "both"):
        sinks.append(Files(folder / "files" / name))
    sinks[0].pace = pace
    for sink in sinks:
        writer.to(sink.kind, sink)
    return writer.start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("folder", type=Path, help="where the store and the sinks go")
    parser.add_argument("names", nargs="*", default=list(CATALOGUE), help="the queries to run, all by default")
    parser.add_argument("--in-step", action="store_true", help="let all pipelines go from epoch to epoch together")
    args = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("slackwater").setLevel(logging.INFO)

    spark = sw.session(
        "every query",
        master="local[2]",
        conf={
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": False,
            "spark.ui.showConsoleProgress": False,
            **SHORT_LIVED_CONF,
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": 2,
            "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    together = threading.Barrier(len(args.names)) if args.in_step else None
    # Few at a time until each has a first output, those with processes of their own first, on an idle machine.
    starting = threading.Semaphore(2)
    names = sorted(args.names, key=lambda name: not name.startswith(("transform", "apply")))

    def run(name: str, tries: int = 3) -> bool:
        pace = Pace(together)
        try:
            with starting:
                query = start(name, Inputs(spark.newSession(), args.inputs), args.folder, pace)
                while query.isActive and not pace.begun.wait(0.1):
                    pass
            query.awaitTermination()
        except Exception as error:
            logging.exception("%s failed", name)
            return TOO_BUSY in str(error) and tries > 1 and run(name, tries - 1)
        return True

    with ThreadPoolExecutor(len(names)) as pool:
        fine = all(list(pool.map(run, names)))
    spark.stop()
    sys.exit(not fine)


if __name__ == "__main__":
    main()
