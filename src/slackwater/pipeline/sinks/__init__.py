"""Sinks: where a pipeline's rows go."""
