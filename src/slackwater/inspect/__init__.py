"""Read-only questions about pipelines and their checkpoints."""
