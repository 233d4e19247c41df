"""The payments' pipeline with its store and both sinks below one URL, as a program for `slackwater run`.

Credentials come from the environment, as they would for a user. Where the environment names the gateway of a JVM, the
program uses that one's Spark: to be killed and begun again takes two seconds then, and not ten.
"""

from __future__ import annotations

import argparse
import os

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

import slackwater as sw
from demo.jvm import SHORT_LIVED_CONF
from demo.payments_stream import totals
from slackwater.spark.session import RECOMMENDED, REQUIRED

CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    **SHORT_LIVED_CONF,
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "4",
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
}


def attach() -> None:
    """Make the context of the JVM that runs already, or will for those who come later, the one of this process."""
    gateway = launch_gateway()
    SparkContext._ensure_initialized(gateway=gateway)
    conf = SparkConf(_jvm=gateway.jvm).setMaster("local[2]").setAppName("payments")
    conf.setAll(list({**REQUIRED, **RECOMMENDED, **CONF}.items()))
    context = gateway.jvm.org.apache.spark.SparkContext.getOrCreate(conf._jconf)
    java_context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext(context)
    SparkContext(gateway=gateway, jsc=java_context, conf=SparkConf(_jconf=context.getConf()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="where the store and both sinks go")
    parser.add_argument("workdir")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--rows-per-batch", type=int, required=True)
    args = parser.parse_args()

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        attach()
    spark = sw.session("payments", master="local[2]", conf=CONF)
    spark.sparkContext.setLogLevel("OFF")
    # The query of a process that was killed must not call back into this one.
    for query in spark.streams.active:
        query.stop()
    patience = {"timeout": "5s", "retry_timeout": "60s"}
    writer = (
        sw.writeStream(totals(spark, rows=args.rows, rows_per_batch=args.rows_per_batch))
        .queryName("payments")
        .trigger(availableNow=True)
        .options(store=f"{args.url}/store", workdir=args.workdir, keep_last=2)
        .options(request_timeout_s=5, total_timeout_s=60)
        .to("delta", sw.DeltaSink(f"{args.url}/totals-delta", storage_options=patience))
        .to("files", sw.FileSink(f"{args.url}/totals-files", storage_options=patience))
    )
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
