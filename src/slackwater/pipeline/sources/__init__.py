"""Sources: what they promise, and those that are ours."""
