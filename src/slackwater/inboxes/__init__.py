"""The inbox: a durable queue of what receivers were sent, until checkpoints cover it."""
