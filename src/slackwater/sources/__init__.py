"""Sources: what each kind promises, and what it may drop once checkpoints cover it."""
