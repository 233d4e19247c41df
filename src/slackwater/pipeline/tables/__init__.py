"""Reference tables: kept current by a feed, looked up by a stream, checkpointed with it."""
