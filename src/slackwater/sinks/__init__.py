"""Sinks, a folder each: where rows go, to become visible with their checkpoint. ``registry.py`` lists them."""
