"""Keyed state on RocksDB: its tables are files that checkpoints share, its log is what came after the newest."""
