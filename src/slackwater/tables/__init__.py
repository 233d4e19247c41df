"""Reference tables: looked up by a stream, and checkpointed with it."""
