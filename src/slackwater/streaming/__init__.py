"""``writeStream`` with checkpoints: from the user's call to a running query."""
