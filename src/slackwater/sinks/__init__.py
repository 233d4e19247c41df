"""Sinks: where the rows of a Spark query go, and become visible with their checkpoint."""
