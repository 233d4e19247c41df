"""The protocol: one log per pipeline, whose newest record is the state. Read ``checkpoint`` and ``recovery`` first."""
