"""Keyed state on a local database: its tables are files that checkpoints share."""
