"""Sinks: where rows go, to become visible with their checkpoint. ``registry.py`` lists the kinds."""
