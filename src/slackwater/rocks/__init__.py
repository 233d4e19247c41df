"""The local database: RocksDB, with its log checked before anything goes on from it."""
