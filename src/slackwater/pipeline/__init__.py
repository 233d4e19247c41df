"""The pipeline on Spark: its coordinator, sources and sinks."""
