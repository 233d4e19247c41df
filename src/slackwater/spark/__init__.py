"""Spark: its working directory captured and hydrated, its session checked, its Java found."""
