"""The pipeline on Spark: its coordinator, writer and sinks."""
